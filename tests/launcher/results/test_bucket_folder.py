"""A workdir in a bucket is brought as that of a host is; hostile objects lead nowhere."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.pod.errors import HostError
from podrun.launcher.results import bucket_folder
from podrun.launcher.results.pull_run import Pulled, pull_bucket
from podrun.launcher.results.selection import Selection
from podrun.runtime.contract import CHECKPOINT_MANIFEST, UserError
from podrun.runtime.storage.bucket_client import Bucket, BucketError, RefusedError

from ...buckets import BUCKET, bucket_server

URL = "gs://bucket/runs/one"
METRICS = b'{"step": 1}\n'


class Objects:
    """A bucket in memory."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.url = URL
        self.objects = objects
        self.spoiled = ""
        """End of the name of an object whose next answer has another first byte."""

    def sizes(self) -> dict[str, int]:
        return {name: len(content) for name, content in self.objects.items()}

    def read_part(self, name: str, start: int, end: int) -> bytes:
        data = self.objects[name][start:end]
        if self.spoiled and name.endswith(self.spoiled):
            self.spoiled = ""
            return b"?" + data[1:]
        return data


class Pull:
    """Brings what is in a bucket into a folder."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home = path / "above" / "home"
        self.lines: list[str] = []
        self.bucket = Objects({"metrics.jsonl": METRICS, ".podrun-claim": b"{}"})
        monkeypatch.setattr(bucket_folder, "Bucket", lambda url, note: self.bucket)

    def __call__(self) -> Pulled:
        return pull_bucket(URL, Selection(), self.home, self.lines.append, lambda *_: None)

    def files(self) -> list[str]:
        """Return all files that are there, beside the folder as well, but not podrun's own."""
        top = self.home.parents[1]
        paths = (path for path in top.rglob("*") if path.is_file() and ".podrun" not in path.as_posix())
        return sorted(path.relative_to(self.home.parent).as_posix() for path in paths)


@pytest.fixture
def pull(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pull:
    return Pull(tmp_path, monkeypatch)


def add_checkpoint(bucket: Objects, step: int, files: dict[str, bytes]) -> None:
    """Add a complete checkpoint."""
    digests = {name: [len(data), hashlib.sha256(data).hexdigest()] for name, data in files.items()}
    bucket.objects.update({f"checkpoints/{step}/{name}": data for name, data in files.items()})
    bucket.objects[f"checkpoints/{step}/{CHECKPOINT_MANIFEST}"] = json.dumps({"files": digests}).encode()


def test_what_is_here_is_not_brought_again(pull: Pull) -> None:
    add_checkpoint(pull.bucket, 5, {"state/a": b"x" * 100, "state/b": b""})
    assert pull().describe().startswith("1 checkpoint and 1 file, 112 bytes received")
    assert pull.files() == [f"home/checkpoints/5/{n}" for n in (CHECKPOINT_MANIFEST, "state/a", "state/b")] + [
        "home/metrics.jsonl"
    ]
    assert pull().describe().startswith("nothing new; 2 unchanged")
    pull.bucket.objects["metrics.jsonl"] = b'{"step": 2}\n'
    assert pull().describe().startswith("1 file, 12 bytes received; 1 unchanged")
    assert (pull.home / "metrics.jsonl").read_bytes() == b'{"step": 2}\n'


def test_names_that_lead_out_of_the_folder_are_left_out(pull: Pull) -> None:
    hostile = [
        "../evil",
        "a/../../evil",
        "/etc/evil",
        "checkpoints/5/../../../evil",
        "a\x1b[2Jb",
        "x\ny",
        "a//b",
        "n" * 300,
    ]
    pull.bucket.objects.update(dict.fromkeys(hostile, b"evil"))
    pull.bucket.objects.update({"metrics.jsonl/below": b"evil", "folder/": b""})
    pulled = pull()
    assert pull.files() == ["home/metrics.jsonl"]
    assert pulled.problems == []
    text = "\n".join(pull.lines)
    assert "names a file outside its folder" in text and "6 links, or unsafe names" in text
    assert "\x1b" not in text


NOBODY = b"0" * 64
"""The digest of no file."""


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        (b"no JSON", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b'{"files": {"../../../evil": [4, "0"]}}', "names a file outside its folder"),
        (b'{"files": {"/evil": [4, "0"]}}', "names a file outside its folder"),
        (b'{"files": {"state/a": [1000000000000, "' + NOBODY + b'"]}}', "a has 4 bytes, not 1000000000000"),
        (b'{"files": {"state/a": [4, "' + NOBODY + b'"]}}', "a has changed"),
        (b'{"files": {"state/b": [4, "%s"], "state/a": [4, "%s"]}}' % (NOBODY, NOBODY), "b is missing"),
        (b" " * ((64 << 20) + 1), "has 67108865 bytes"),
    ],
    ids=["text", "deep", "dots", "absolute", "size", "digest", "missing", "huge"],
)
def test_a_hostile_manifest_leaves_its_checkpoint_out(pull: Pull, manifest: bytes, why: str) -> None:
    add_checkpoint(pull.bucket, 4, {"state/a": b"good"})
    pull.bucket.objects.update({f"checkpoints/5/{CHECKPOINT_MANIFEST}": manifest, "checkpoints/5/state/a": b"evil"})
    pulled = pull()
    assert pulled.downloaded.checkpoints == [4]
    (problem,) = pulled.problems
    assert problem.startswith(f"checkpoint 5 on {URL} is left out: it is damaged there: ") and why in problem
    assert "home/checkpoints/4/state/a" in pull.files() and not any("evil" in name for name in pull.files())


def test_bytes_that_changed_on_the_way_are_asked_for_again(pull: Pull) -> None:
    add_checkpoint(pull.bucket, 5, {"state/a": b"x" * 100})
    pull.bucket.objects.pop("metrics.jsonl")
    pull.bucket.spoiled = "state/a"
    assert pull().problems == []
    assert (pull.home / "checkpoints/5/state/a").read_bytes() == b"x" * 100


@pytest.mark.parametrize(
    ("error", "kind"),
    [(BucketError(f"{URL}: cannot list it after 6 tries: x"), HostError), (RefusedError("gs://bucket: no"), UserError)],
)
def test_a_bucket_that_cannot_be_read(pull: Pull, error: BucketError, kind: type[Exception]) -> None:
    def sizes() -> dict[str, int]:
        raise error

    pull.bucket.sizes = sizes  # type: ignore[method-assign]
    with pytest.raises(kind) as raised:
        pull()
    assert str(raised.value) == str(error)
    assert not pull.home.exists()


def test_an_empty_url(pull: Pull) -> None:
    pull.bucket.objects.clear()
    with pytest.raises(UserError, match="there is nothing in gs://bucket/runs/one, or no such bucket"):
        pull()


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_real_servers(scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{scheme}://{BUCKET}/runs/one"
    with bucket_server(scheme, tmp_path / "server.log") as env:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        objects = Objects(
            {"metrics.jsonl": METRICS, "empty": b"", "large": bytes(range(256)) * 70_000, "a\x1b": b"evil"}
        )
        add_checkpoint(objects, 5, {"state/a b": b"x" * 100})
        bucket = Bucket(url)
        for name, content in objects.objects.items():
            bucket.put(name, content)
        pulled = pull_bucket(url, Selection(), tmp_path / "home", lambda _: None, lambda *_: None)
        assert pulled.problems == [] and pulled.downloaded.checkpoints == [5]
        for name, content in objects.objects.items():
            path = tmp_path / "home" / name
            assert path.read_bytes() == content if name.isprintable() else not path.exists()


@pytest.mark.parametrize("link", ["checkpoints", ".podrun-pull/parts", "metrics.jsonl"])
def test_a_link_in_the_folder_here_is_not_followed(pull: Pull, link: str) -> None:
    """Files behind it would be written over."""
    add_checkpoint(pull.bucket, 5, {"a": b"x"})
    pull()
    elsewhere = pull.home.parent / "elsewhere"
    elsewhere.mkdir()
    path = pull.home / link
    if not path.exists():  # it goes when all is complete
        path.mkdir()
    path.rename(elsewhere / "before")
    path.symlink_to(elsewhere / "before")
    before = {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()}
    add_checkpoint(pull.bucket, 6, {"a": b"x"})
    pull.bucket.objects["metrics.jsonl"] = b"new"
    with pytest.raises(UserError, match=r"names a file behind a link: .* remove that link, or choose another folder"):
        pull()
    assert {path: path.read_bytes() for path in elsewhere.rglob("*") if path.is_file()} == before


def test_sizes_that_would_fill_the_disk(pull: Pull, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are told before anything is brought, and what is here already does not count."""
    pull()
    monkeypatch.setattr(pull.bucket, "sizes", lambda: {"metrics.jsonl": len(METRICS), "large": 1 << 60})
    with pytest.raises(
        UserError, match=r"gs://bucket/runs/one lists .* that are not here yet, and the disk of .* free;"
    ):
        pull()
    monkeypatch.undo()


def test_more_bytes_than_were_listed(pull: Pull, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may have grown, but not without end."""
    get = bucket_folder.BucketFolder.get

    def lying(self: bucket_folder.BucketFolder, *args: Any) -> bucket_folder.BucketFile:
        file = get(self, *args)
        file.size += 1 << 30
        return file

    monkeypatch.setattr(bucket_folder.BucketFolder, "get", lying)
    with pytest.raises(HostError, match=r"announces 1073741836 bytes of metrics.jsonl, but has listed 12"):
        pull()

"""Data in a bucket: what a URL names, that each object comes once, and what happens when something is in the way."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from podrun.runtime.config import Config
from podrun.runtime.contract import CHECKPOINT_MANIFEST, UserError
from podrun.runtime.evaluate.data import data_of_run
from podrun.runtime.evaluate.pod import _download
from podrun.runtime.storage import bucket_cache, bucket_client
from podrun.runtime.storage.bucket_cache import BucketCache
from podrun.runtime.storage.bucket_client import Bucket, BucketError
from podrun.runtime.storage.bucket_data import load_data
from podrun.runtime.storage.bucket_objects import _matches

from ...buckets import ADDRESS, BUCKET
from ...fault_proxy import Faults, fault_proxy
from ..data.prepared_folder import prepared_folder, text_documents


def job(**data: object) -> Config:
    return job_with({"layers": 1, "heads": 2, "width": 32, "context": 16}, **data)


def job_with(model: dict[str, object], **data: object) -> Config:
    return Config.model_validate({"model": model, "steps": 2, "batch_size": 4, "data": data})


def cached(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "podrun" / "data" / "files").iterdir())


def test_a_file_a_folder_and_a_pattern(url: str, tmp_path: Path) -> None:
    bucket = Bucket(url)
    texts = {
        "a.txt": "one fine text. " * 30,
        "sub/b.txt": "another text! " * 30,
        "c.md": "and a third of another kind " * 9,
    }
    for name, text in texts.items():
        bucket.put(f"corpus/{name}", text.encode())
        (tmp_path / "local" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "local" / name).write_text(text)
    bucket.put("corpus-of-others/d.txt", b"not part of it " * 30)
    for path in ("corpus/a.txt", "corpus", "corpus/*.txt", "corpus/**/*.txt"):
        notes: list[str] = []
        mine = load_data(job(name="text", path=f"{url}/{path}"), notes.append)
        local = load_data(job(name="text", path=str(tmp_path / "local" / Path(path).relative_to("corpus"))))
        assert mine.fingerprint == local.fingerprint, path
    assert len(cached(tmp_path)) == 3  # nothing came twice
    assert notes == []


def test_tokens_and_their_validation(url: str, tmp_path: Path) -> None:
    for name in ("train.bin", "val.bin"):
        tokens = np.random.default_rng(len(name)).integers(0, 50, 500).astype(np.uint16)
        tokens.tofile(tmp_path / name)
        Bucket(url).put_file(name, tmp_path / name)
    keys = {"name": "tokens", "vocabulary": 50}
    mine = load_data(job(path=f"{url}/train.bin", validation_path=f"{url}/val.bin", **keys))
    local = load_data(job(path=tmp_path / "train.bin", validation_path=tmp_path / "val.bin", **keys))
    assert mine.fingerprint == local.fingerprint
    with pytest.raises(UserError, match=f"data.path {url}/train.bin: token 0, counted from 0, is 21, but"):
        load_data(job(path=f"{url}/train.bin", name="tokens", vocabulary=3))


def test_what_is_not_there_is_named(url: str) -> None:
    with pytest.raises(UserError, match=f"data.path: no object, folder or match for {url}/nothing"):
        load_data(job(name="text", path=f"{url}/nothing"))
    with pytest.raises(UserError, match=r"data.path: .*://nowhere-at-all: no such bucket|no object, folder"):
        load_data(job(name="text", path=url.replace(BUCKET, "nowhere-at-all")))


def test_another_version_of_an_object_is_brought(url: str, tmp_path: Path) -> None:
    before = "some text " * 50
    for text in (before, before.upper(), before):
        Bucket(url).put("text.txt", text.encode())
        load_data(job(name="text", path=f"{url}/text.txt"))
    assert {file.read_text() for file in cached(tmp_path)} == {before, before.upper()}


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_cache, "_PIECE", 1000)


@pytest.mark.usefixtures("small_pieces")
def test_an_interrupted_transfer_goes_on(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = np.random.default_rng(0).bytes(50_500)
    bucket = Bucket(url)
    bucket.put("data", content)
    objects = bucket.objects()
    read = bucket.read_part
    asked: list[int] = []

    def interrupted(name: str, start: int, end: int) -> bytes:
        asked.append(start)
        if start >= 20_000 and len(asked) < 25:
            raise KeyboardInterrupt
        return read(name, start, end)

    monkeypatch.setattr(bucket, "read_part", interrupted)
    cache = BucketCache(lambda _: None, lambda: None)
    with pytest.raises(KeyboardInterrupt):
        cache.folder(bucket, objects)
    assert [file.stat().st_size for file in cached(tmp_path)] == [20_000]
    asked = [0] * 25
    assert (cache.folder(bucket, objects) / "data").read_bytes() == content
    assert min(asked[25:]) == 20_000


@pytest.mark.usefixtures("small_pieces")
def test_wrong_bytes_are_brought_again(
    url: str, server: tuple[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = np.random.default_rng(1).bytes(5_500)
    Bucket(url).put("data", content)
    address = ADDRESS[server[0]]
    for faults, arrives in (
        (Faults(3, share=0.1, kinds=("wrong bytes",)), True),
        (Faults(always="wrong bytes"), False),
    ):
        with fault_proxy(server[1][address], faults) as proxy:
            monkeypatch.setenv(address, proxy)
            monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(arrives)))
            bucket, cache = Bucket(url), BucketCache(lambda _: None, lambda: None)
            if arrives:
                assert (cache.folder(bucket, bucket.objects()) / "data").read_bytes() == content
            else:
                with pytest.raises(BucketError, match="its checksum never matched"):
                    cache.folder(bucket, bucket.objects())


def test_no_room(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Bucket(url).put("data", b"x" * 1000)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 999}))
    with pytest.raises(UserError, match=r"1\.0 kB must be downloaded .* make room there"):
        load_data(job(name="text", path=f"{url}/data"))


def test_sets_that_no_process_reads_go_at_last(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_cache, "_KEEP", 1)
    monkeypatch.setattr(bucket_cache, "_UNUSED", -1.0)
    bucket, cache = Bucket(url), BucketCache(lambda _: None, lambda: None)
    folders = []
    for text in (b"one", b"two", b"three"):
        bucket.put("data", text)
        folders.append(cache.folder(bucket, bucket.objects()))
    assert all(folder.is_dir() for folder in folders)  # this process reads them
    while bucket_cache._open:
        os.close(bucket_cache._open.pop())
    bucket.put("data", b"four")
    folders.append(cache.folder(bucket, bucket.objects()))
    assert [folder.is_dir() for folder in folders] == [False, False, False, True]
    assert [file.read_bytes() for file in cached(tmp_path)] == [b"four"]


@pytest.mark.parametrize(
    ("path", "pattern", "matches"),
    [
        ("a.txt", "*.txt", True),
        ("b/a.txt", "*.txt", False),
        ("b/c/a.txt", "**/*.txt", True),
        ("a.txt", "**/*.txt", True),
    ],
)
def test_patterns(path: str, pattern: str, matches: bool) -> None:
    assert _matches(path.split("/"), pattern.split("/")) is matches


@pytest.mark.parametrize(
    ("path", "words"), [("gcs://bucket/a", "did you mean gs://bucket/a"), ("s3://bucket", "no path in the bucket")]
)
def test_mistakes_in_a_url(path: str, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        job(name="text", path=path)


def test_an_evaluation_reports_its_download(url: str) -> None:
    """Otherwise its processes would be taken for stalled."""
    Bucket(url).put("text.txt", b"some text " * 50)
    meta: Any = {"fingerprint": "", "tokenizer": {"name": "byte"}}
    advanced: list[bool] = []
    data_of_run(job(name="text", path=f"{url}/text.txt"), meta, None, lambda: advanced.append(True))
    assert advanced


def test_a_checkpoint_that_has_no_room(url: str, tmp_path: Path) -> None:
    """The message names the folder of the attempt, into which an evaluation downloads, and not the cache."""
    Bucket(url).put(f"checkpoints/3/{CHECKPOINT_MANIFEST}", b"{}")
    (tmp_path / "checkpoints").write_text("in the way")
    with pytest.raises(UserError, match=f"the checkpoint cannot be downloaded to {tmp_path}: .*; make room there$"):
        _download(url, lambda folder: folder, tmp_path, lambda _: None)


MODEL: dict[str, object] = {"name": "decoder", "context": 16}


def test_a_model_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed run needs nothing of it: only prepared data asks for its tokenizer, to compare, and goes on without it."""
    monkeypatch.setitem(sys.modules, "gcsfs", None)  # as if it was not installed
    (tmp_path / "text.txt").write_text("some text " * 50)
    folder = prepared_folder(tmp_path / "prepared", [text_documents("some text " * 50, [9])])
    model, notes = {**MODEL, "init_from": "gs://some-bucket/llama"}, list[str]()
    load_data(job_with(model, name="text", path=str(tmp_path / "text.txt")), notes.append)
    assert notes == []
    data = load_data(job_with(model, name="prepared", path=str(folder)), notes.append)
    assert data.fingerprint == load_data(job(name="prepared", path=str(folder))).fingerprint
    [note] = notes
    assert note.startswith("the tokenizer of the data is not compared with the model's: ") and "gcsfs" in note


@pytest.mark.long
def test_a_model_whose_bucket_is_unreachable(
    url: str, server: tuple[str, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_client, "_RETRY_SECONDS", 0.5)
    folder = prepared_folder(tmp_path / "prepared", [text_documents("some text " * 50, [9])])
    notes: list[str] = []
    with fault_proxy(server[1][ADDRESS[server[0]]], Faults(always="refused")) as proxy:
        monkeypatch.setenv(ADDRESS[server[0]], proxy)
        load_data(job_with({**MODEL, "init_from": f"{url}/llama"}, name="prepared", path=str(folder)), notes.append)
    assert notes[-1].startswith(
        f"the tokenizer of the data is not compared with the model's: model.init_from: {url}/llama"
    )

"""Results of a run are brought home by a real agent: whole, verified, and nothing of them twice."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.pod.errors import HostError
from podrun.launcher.remote.download import Incoming, RemoteFolder
from podrun.launcher.transport.local import LocalTransport
from podrun.runtime.contract import UserError

from ..rundir.made import event, record
from .conftest import Pulling, contents, make_checkpoint


def test_all_of_it(pulling: Pulling) -> None:
    """A second time nothing is sent but manifests; what the run has added follows alone."""
    pulled = pulling.pull()
    assert contents(pulling.home) == {**contents(pulling.workdir), "logs/host-0.log": b"a line\n"}
    assert pulled.downloaded.checkpoints == [20, 10] and pulled.problems == []
    assert pulling.lines[0] == f"podrun: pulling {pulling.workdir} to {pulling.home}"

    assert pulling.pull().downloaded.received == 0
    with (pulling.workdir / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2}\n')
    make_checkpoint(pulling.workdir, 30, size=1000)
    shutil.rmtree(pulling.workdir / "checkpoints" / "10")
    downloaded = pulling.pull().downloaded
    assert (downloaded.checkpoints, downloaded.files, downloaded.received) == (
        [30],
        {"metrics.jsonl"},
        12 + 1000 + len('{"step": 30}'),
    )
    assert contents(pulling.home).items() > contents(pulling.workdir).items()  # checkpoint 10 stays here


def add_frozen(checkpoint: Path, data: bytes) -> None:
    """Add a file of frozen parameters to what looks like a checkpoint."""
    (checkpoint / "frozen").mkdir()
    (checkpoint / "frozen" / "data").write_bytes(data)
    manifest = checkpoint / "podrun-manifest.json"
    facts = json.loads(manifest.read_bytes())
    facts["files"]["frozen/data"] = [len(data), hashlib.sha256(data).hexdigest()]
    manifest.write_text(json.dumps(facts))


def test_frozen_parameters(pulling: Pulling) -> None:
    """They are sent once for all checkpoints, which share the file here as well, also with one of an earlier pull."""
    checkpoints, here = pulling.workdir / "checkpoints", pulling.home / "checkpoints"
    for step in (10, 20):
        add_frozen(checkpoints / str(step), bytes(2_000_000))
    pulled = pulling.pull()
    assert pulled.downloaded.checkpoints == [20, 10] and pulled.downloaded.received < 3_000_000
    make_checkpoint(pulling.workdir, 30)
    add_frozen(checkpoints / "30", bytes(2_000_000))
    assert pulling.pull().downloaded.received < 400_000
    assert contents(pulling.home).items() >= contents(checkpoints.parent).items()
    assert (here / "10" / "frozen" / "data").samefile(here / "30" / "frozen" / "data")


def test_a_link_of_an_interrupted_pull_is_not_written_to(pulling: Pulling) -> None:
    """The checkpoint whose file it is stays as it is, if the host now has another file of the name."""
    add_frozen(pulling.workdir / "checkpoints" / "10", b"1" * 1000)
    pulling.pull("10")
    shutil.rmtree(pulling.workdir / "checkpoints" / "20")
    add_frozen(make_checkpoint(pulling.workdir, 20), b"2" * 5000)
    whole = pulling.home / "checkpoints" / "10" / "frozen" / "data"
    part = pulling.home / ".podrun-pull" / "parts" / "checkpoints" / "20" / "frozen" / "data"
    part.parent.mkdir(parents=True)
    os.link(whole, part)
    assert pulling.pull("20").problems == []
    assert whole.read_bytes() == b"1" * 1000
    assert (pulling.home / "checkpoints" / "20" / "frozen" / "data").read_bytes() == b"2" * 5000


def test_what_a_program_wrote_beside_its_code(pulling: Pulling, tmp_path: Path) -> None:
    """From every host and attempt, as it is, also what looks like a checkpoint; a second time nothing is sent."""
    places = {"host-0.earlier-1": "host-0", "host-0": "host-0", "host-1": "host-1"}
    for number, (place, host) in enumerate(places.items()):
        kept = tmp_path / place / "code"
        make_checkpoint(kept, 5 + number, manifest=False)
        (kept / "predictions.txt").write_text(place)
        record(pulling.directory, event("host", host=host, phase="stopped", left=[], kept=str(kept)))
        if number == 0:
            record(pulling.directory, event("start", attempt=1))
    pulled = pulling.pull("files")
    assert pulled.problems == []
    assert contents(pulling.home) == {
        f"files/{place}/{name}": data for place in places for name, data in contents(tmp_path / place / "code").items()
    }
    assert pulling.pull("files").downloaded.received == 0
    assert contents(pulling.workdir).items() <= {**contents(pulling.home), **contents(pulling.pull().folder)}.items()


def test_a_program_without_files_of_its_own(pulling: Pulling, tmp_path: Path) -> None:
    """The message says where the files are if the program worked on this machine."""
    with pytest.raises(UserError, match=f"worked in {tmp_path} on this machine: what the program wrote is there"):
        pulling.pull("files")


def test_an_empty_file(pulling: Pulling) -> None:
    """It comes over the same connection as all others, as what a logger leaves that was killed before it wrote."""
    (pulling.workdir / "tensorboard" / "events.of.another").touch()
    assert "tensorboard/events.of.another" in pulling.pull("metrics").downloaded.files
    assert not [line for line in pulling.lines if "new connection" in line]
    assert "tensorboard/events.of.another" in pulling.pull("metrics").downloaded.unchanged


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["metrics"], {"metrics.jsonl", "config.yaml", "tensorboard"}),
        (["samples"], {"sample.txt"}),
        (["checkpoints"], {"checkpoints"}),
        (["10"], {"checkpoints"}),
        (["logs"], {"logs"}),
        (["metrics", "logs", "20"], {"metrics.jsonl", "config.yaml", "tensorboard", "logs", "checkpoints"}),
    ],
)
def test_a_part_of_it(pulling: Pulling, words: list[str], names: set[str]) -> None:
    pulling.pull(*words)
    assert {path.name for path in pulling.home.iterdir()} == {*names, ".podrun-pull"}
    steps = {path.name for path in pulling.home.glob("checkpoints/*")}
    assert steps == ({word for word in words if word.isdigit()} or ({"10", "20"} if "checkpoints" in words else set()))


def test_an_interrupted_transfer_goes_on_where_it_ended(pulling: Pulling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the checkpoint does not have its name; what was received is not sent again."""
    pieces = Incoming.pieces
    size = make_checkpoint(pulling.workdir, 30, size=1_000_000).joinpath("state/d/data").stat().st_size

    def cut(self: Incoming) -> Iterator[bytes]:
        for data in pieces(self):
            yield data
            if self.size == size:
                raise KeyboardInterrupt

    monkeypatch.setattr(Incoming, "pieces", cut)
    with pytest.raises(KeyboardInterrupt):
        pulling.pull("30")
    assert not (pulling.home / "checkpoints").exists()
    part = pulling.home / ".podrun-pull/parts/checkpoints/30/state/d/data"
    received = part.stat().st_size
    assert 0 < received < size

    monkeypatch.setattr(Incoming, "pieces", pieces)
    assert pulling.pull("30").downloaded.received == size - received
    assert contents(pulling.home / "checkpoints/30") == contents(pulling.workdir / "checkpoints/30")
    assert not part.exists()


def test_a_connection_that_ends_is_followed_by_another(pulling: Pulling, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as each brings something."""
    pieces = Incoming.pieces
    connections = 0

    def cut(self: Incoming) -> Iterator[bytes]:
        nonlocal connections
        for number, data in enumerate(pieces(self)):
            if number == 1:
                connections += 1
                raise self._folder.refuse("the connection ended in the middle")
            yield data

    monkeypatch.setattr(Incoming, "pieces", cut)
    make_checkpoint(pulling.workdir, 30, size=1_000_000)
    downloaded = pulling.pull("30").downloaded
    assert contents(pulling.home / "checkpoints/30") == contents(pulling.workdir / "checkpoints/30")
    assert connections == 3
    assert downloaded.received == 1_000_000 + len('{"step": 30}')
    assert "podrun: host-0: the connection ended in the middle; it goes on over a new connection" in pulling.lines


def test_a_connection_that_brings_nothing_is_the_last(pulling: Pulling, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(self: Incoming) -> Iterator[bytes]:
        raise self._folder.refuse("the connection ended in the middle")

    monkeypatch.setattr(Incoming, "pieces", cut)
    with pytest.raises(HostError, match=r"^host-0: the connection ended in the middle$"):
        pulling.pull("20")


def test_a_part_of_something_else_is_not_continued(pulling: Pulling) -> None:
    part = pulling.home / ".podrun-pull/parts/checkpoints/20"
    (part / "state/d").mkdir(parents=True)
    (part / "state/d/data").write_bytes(b"x" * 1000)
    (part / "rest of another").write_bytes(b"x")
    pulling.pull("20")
    assert contents(pulling.home / "checkpoints/20") == contents(pulling.workdir / "checkpoints/20")


def test_a_checkpoint_that_is_damaged_here_is_repaired(pulling: Pulling) -> None:
    pulling.pull()
    (pulling.home / "checkpoints/20/state/d/data").write_bytes(b"")
    (pulling.home / "checkpoints/10/podrun-manifest.json").unlink()
    assert pulling.pull().downloaded.checkpoints == [20, 10]
    assert contents(pulling.home).items() >= contents(pulling.workdir).items()


def test_metrics_that_were_cut_begin_afresh(pulling: Pulling) -> None:
    """A run that resumes removes later records."""
    pulling.pull("metrics")
    (pulling.workdir / "metrics.jsonl").write_text('{"step": 1}\n{"step": 7}\n')
    pulling.pull("metrics")
    assert (pulling.home / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 7}\n'


def test_an_incomplete_checkpoint_is_left_out(pulling: Pulling) -> None:
    make_checkpoint(pulling.workdir, 30, manifest=False)
    make_checkpoint(pulling.workdir, 40).rename(pulling.workdir / "checkpoints/40.orbax-checkpoint-tmp-7")
    make_checkpoint(pulling.workdir, 50).rename(pulling.workdir / "checkpoints/50.damaged-1")
    assert pulling.pull().downloaded.checkpoints == [20, 10]
    assert "checkpoint 30 on host-0 is not complete; left out" in pulling.lines
    with pytest.raises(UserError, match="no complete checkpoint of step 30; complete ones: 10, 20"):
        pulling.pull("30")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda f: (f / "state/d/data").write_bytes(b"x" * 300_000), "data has changed"),
        (lambda f: (f / "state/d/data").write_bytes(b"x"), "data has 1 bytes, not 300000"),
        (lambda f: (f / "empty").unlink(), "empty is missing"),
        (lambda f: (f / "podrun-manifest.json").write_text("{"), "podrun-manifest.json is not JSON"),
        *(
            (lambda f, text=text: (f / "podrun-manifest.json").write_text(text), f"podrun-manifest.json {why}")
            for text, why in (
                ('{"files": {"empty": [1e999, ""]}}', "has no size of 'empty'"),
                ('{"files": {"a\\u0000": [1, ""]}}', r"names a file with characters that cannot be printed: 'a\x00'"),
                ('{"files": {"a\\ud800": [1, ""]}}', r"names a file with half a character: 'a\ud800'"),
                ('{"files": {}}', "lists no files"),
                (json.dumps({"files": {"empty": [0, "0" * 64]}}), "does not list meta/metadata"),
            )
        ),
        (
            lambda f: (f / "podrun-manifest.json").write_text('{"files": {"../x": [1, ""]}}'),
            "podrun-manifest.json names a file outside its folder: '../x'",
        ),
    ],
)
def test_a_checkpoint_that_is_damaged_on_the_host_is_named(pulling: Pulling, damage: Any, why: str) -> None:
    damage(pulling.workdir / "checkpoints/20")
    pulled = pulling.pull()
    assert pulled.problems == [f"checkpoint 20 on host-0 is left out: it is damaged there: {why}"]
    assert pulled.downloaded.checkpoints == [10]
    assert not (pulling.home / "checkpoints/20").exists()


def test_a_checkpoint_that_is_removed_meanwhile(pulling: Pulling, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, and what has come since is brought."""
    listing = RemoteFolder.list_files

    def list_files(self: RemoteFolder) -> Any:
        result = listing(self)
        if (pulling.workdir / "checkpoints/20").exists():
            shutil.rmtree(pulling.workdir / "checkpoints/20")
            make_checkpoint(pulling.workdir, 30)
        return result

    monkeypatch.setattr(RemoteFolder, "list_files", list_files)
    assert pulling.pull("checkpoints").downloaded.checkpoints == [10, 30]
    assert "checkpoint 20 was removed on host-0 during the download; looking for newer ones" in pulling.lines


def test_what_is_no_file_is_left_out(pulling: Pulling) -> None:
    os.symlink("/etc/passwd", pulling.workdir / "link")
    os.symlink("/etc", pulling.workdir / "folder")
    os.mkfifo(pulling.workdir / "pipe")
    (pulling.workdir / "two\nlines").write_text("x")
    pulling.pull()
    assert f"4 links, or unsafe names, in {pulling.workdir} are left out" in pulling.lines
    assert {"link", "folder", "pipe", "two\nlines"}.isdisjoint(path.name for path in pulling.home.iterdir())


def test_another_host_that_sees_the_folder(pulling: Pulling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only if it is the workdir of this very run."""
    opened = LocalTransport.open

    def open_(self: LocalTransport, host: Any, argv: Any) -> Any:
        if host.name == "host-0":
            raise HostError("host-0", "it is off")
        return opened(self, host, argv)

    monkeypatch.setattr(LocalTransport, "open", open_)
    pulling.pull("samples")
    assert pulling.lines[0] == "podrun: host-0: it is off; host-1 sees the same folder"
    (pulling.workdir / ".podrun-lock").write_text("20260131-110000-aaaa (pid 8 on host-1)")
    with pytest.raises(HostError, match="host-0: it is off"):
        pulling.pull("samples")


# --- folders here ---


def test_a_folder_that_holds_anything_else(pulling: Pulling) -> None:
    pulling.home.mkdir()
    (pulling.home / "mine").touch()
    with pytest.raises(UserError, match=r"home is not empty, and its files were not downloaded by podrun pull; choose"):
        pulling.pull()
    (pulling.home / "mine").unlink()
    pulling.pull("samples")
    source = pulling.home / ".podrun-pull/source.json"
    source.write_text(json.dumps({"source": "host-9:/elsewhere"}))
    with pytest.raises(UserError, match=r"contains results downloaded from host-9:/elsewhere, not from .*work; choose"):
        pulling.pull()


def test_a_folder_that_a_run_has_used_since(pulling: Pulling) -> None:
    """Its metrics would be lost."""
    pulling.pull("samples")
    (pulling.home / ".podrun-lock").touch()
    with pytest.raises(UserError, match=r"a run has used .* as its workdir since results were downloaded there"):
        pulling.pull()


def test_two_at_once(pulling: Pulling) -> None:
    pulling.pull("samples")
    with open(pulling.home / ".podrun-pull/lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another podrun pull writes to"):
            pulling.pull("samples")


def test_a_folder_that_cannot_be_written(pulling: Pulling) -> None:
    pulling.home.touch()
    with pytest.raises(UserError, match=r"cannot write to .*home: Not a directory; choose another with --to DIR"):
        pulling.pull()


def test_a_full_disk(pulling: Pulling, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before anything is sent, and the next time goes on."""
    free = shutil.disk_usage(pulling.workdir)._replace(free=100_000)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "disk_usage", lambda _: free)
        with pytest.raises(
            UserError, match=r"lists .* that are not here yet, and the disk of .* has 100 kB free; free some"
        ):
            pulling.pull()
    pulling.pull()
    assert contents(pulling.home).items() >= contents(pulling.workdir).items()


def test_room_for_frozen_parameters(pulling: Pulling, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are counted once for all checkpoints; on a disk without hard links once for each."""
    for step in (10, 20):
        add_frozen(pulling.workdir / "checkpoints" / str(step), bytes(2_000_000))
    free = shutil.disk_usage(pulling.workdir)._replace(free=4_000_000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refuse)
        with pytest.raises(UserError, match=r"lists .* that are not here yet, and the disk of .* has 4 MB free"):
            pulling.pull()
    assert pulling.pull().downloaded.checkpoints == [20, 10]


def test_a_run_without_results(pulling: Pulling) -> None:
    shutil.rmtree(pulling.workdir)
    with pytest.raises(UserError, match=r"has no results on host-0: there is no folder .*work; it has not begun"):
        pulling.pull()
    assert not pulling.home.exists()
    pulling.pull("logs")
    assert contents(pulling.home) == {"logs/host-0.log": b"a line\n"}


def test_a_run_whose_results_are_there_already(pulling: Pulling) -> None:
    pulling.home = pulling.workdir
    with pytest.raises(
        UserError, match=r"work is the workdir of the run: its results are there already; choose another"
    ):
        pulling.pull()

"""`podrun checkpoints`: a table, and what may be done with checkpoints."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.base import stdin
from podrun.launcher.agent.base.from_agent import parse_answer
from podrun.launcher.agent.results import checkpoint_files, checkpoints
from podrun.launcher.agent.results.checkpoint_files import list_checkpoints, verify
from podrun.launcher.commands.checkpoints import as_table
from podrun.runtime import contract
from tests.conftest import Sandbox

Ask = Callable[..., dict[str, Any]]


def make(workdir: Path, step: int, loss: float | None = None, rate: float = 0.1, manifest: bool = True) -> Path:
    """Make what looks like a checkpoint."""
    folder = workdir / "checkpoints" / str(step)
    files = {
        "meta/metadata": json.dumps({"config": {"optimizer": {"learning_rate": rate}, "steps": 9}}).encode(),
        "metrics/metrics": json.dumps({"loss": loss}).encode(),
        "state/d/data": bytes(5000),
    }
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    if manifest:
        digests = {name: [len(data), hashlib.sha256(data).hexdigest()] for name, data in files.items()}
        (folder / "podrun-manifest.json").write_text(json.dumps({"files": digests}))
    return folder


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """Checkpoints 10, 20 and 30."""
    path = tmp_path / "work"
    make(path, 10, 1.5, manifest=False)
    make(path, 20, 1.25)
    make(path, 30, rate=0.2)
    return path


@pytest.fixture
def ask(workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Asks the agent's command, and checks that its answer is one."""

    def asker(action: str | None = None, *names: str, folder: Path = workdir) -> dict[str, Any]:
        request = json.dumps({"workdir": str(folder), "action": action, "names": names}).encode()
        monkeypatch.setattr(stdin, "read_line", lambda fd: (request, b""))
        checkpoints.checkpoints()
        return parse_answer(capsys.readouterr().out.encode(), "checkpoints")

    return asker


def names(answer: dict[str, Any]) -> list[str]:
    assert answer["error"] is None
    return [row["name"] for row in answer["rows"]]


def test_names_are_those_of_the_runtime() -> None:
    """The agent runs on hosts without it, and spells them again."""
    agents = (checkpoint_files.MANIFEST, checkpoint_files.PINNED, checkpoint_files.LOSS)
    assert agents == (contract.CHECKPOINT_MANIFEST, contract.CHECKPOINT_PINNED, contract.CHECKPOINT_METRICS)
    workdir = contract.Workdir(Path("w"))
    assert (workdir.checkpoints.name, workdir.lock.name) == (checkpoints.FOLDER, checkpoints.LOCK)


def test_a_list(ask: Ask, workdir: Path) -> None:
    """Step, size, loss, whether the files are good, and in what the jobs differ."""
    first, second, third = ask()["rows"]
    assert [row["step"] for row in (first, second, third)] == [10, 20, 30]
    assert [row["loss"] for row in (first, second, third)] == [1.5, 1.25, None]
    assert [row["verified"] for row in (first, second, third)] == [False, True, True]
    assert first["problem"] is None and first["bytes"] > 5000
    assert (second["changes"], third["changes"]) == ([], ["optimizer.learning_rate: 0.1 -> 0.2"])
    lines = as_table([{**row, "time": 0.0} for row in (first, second, third)]).splitlines()
    assert lines[0].split() == ["step", "saved", "size", "loss", "files"]
    without = as_table([{**row, "time": 0.0, "loss": None} for row in (first, second)]).splitlines()
    assert without[0].split() == ["step", "saved", "size", "files"]  # as of a program
    assert lines[1].endswith(" 1.5  no manifest")
    assert lines[2].endswith(" 1.25  verified")
    assert lines[4] == "    optimizer.learning_rate: 0.1 -> 0.2"


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda f: (f / "state/d/data").write_bytes(bytes(4999) + b"x"), "state/d/data has changed"),
        (lambda f: (f / "state/d/data").write_bytes(b""), "state/d/data has 0 bytes, not 5000"),
        (lambda f: (f / "metrics/metrics").unlink(), "metrics/metrics is missing"),
        (lambda f: (f / "podrun-manifest.json").write_text("{"), "podrun-manifest.json is not JSON"),
        (
            lambda f: (f / "podrun-manifest.json").write_text('{"files": [1]}'),
            "podrun-manifest.json has no table of files",
        ),
        *(
            (lambda f, text=text: (f / "podrun-manifest.json").write_text(text), f"podrun-manifest.json {why}")
            for text, why in (
                ('{"files": {"a": [7e6849, ""]}}', "has no size of 'a'"),
                ('{"files": {"a\\u0000": [1, ""]}}', r"names a file with characters that cannot be printed: 'a\x00'"),
                ('{"files": {"a\\ud800": [1, ""]}}', r"names a file with half a character: 'a\ud800'"),
                ('{"files": {}}', "lists no files"),
            )
        ),
        (lambda f: (f / "state/d/more").touch(), "podrun-manifest.json does not list state/d/more"),
    ],
)
def test_a_damaged_file_is_named(ask: Ask, workdir: Path, damage: Callable[[Path], object], problem: str) -> None:
    damage(workdir / "checkpoints" / "20")
    assert [row["problem"] for row in ask()["rows"]] == [None, problem, None]
    assert verify(str(workdir / "checkpoints" / "20")) == (False, problem)
    assert ask("restore", "20")["error"] == f"checkpoint 20 in {workdir}/checkpoints is damaged: {problem}"


def _name(folder: Path, name: str) -> None:
    """Let the manifest name one more file."""
    manifest = json.loads((folder / "podrun-manifest.json").read_text())
    manifest["files"][name] = [5, "0" * 64]
    (folder / "podrun-manifest.json").write_text(json.dumps(manifest))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("name", "make_it", "problem"),
    [
        ("/dev/zero", None, "names a file outside its folder: '/dev/zero'"),
        ("../../../secret", None, "names a file outside its folder: '../../../secret'"),
        ("link", lambda p: p.symlink_to("/dev/zero"), "names a file behind a link: 'link'"),
        ("folder/secret", lambda p: p.parent.symlink_to("../../.."), "names a file behind a link: 'folder/secret'"),
        ("pipe", os.mkfifo, "names no regular file: 'pipe'"),
    ],
)
def test_nothing_but_files_of_the_checkpoint_is_read(
    ask: Ask, workdir: Path, name: str, make_it: Callable[[Path], object] | None, problem: str
) -> None:
    """A manifest may be anybody's who can write there: no pipe is waited for, and of other files no size is told."""
    (workdir.parent / "secret").write_text("12345")
    folder = workdir / "checkpoints" / "20"
    _name(folder, name)
    if make_it:
        make_it(folder / name)
    assert [row["problem"] for row in ask()["rows"]] == [None, f"podrun-manifest.json {problem}", None]


@pytest.mark.timeout(60)
def test_pipes_and_links_in_the_place_of_what_podrun_keeps(ask: Ask, workdir: Path) -> None:
    folder = workdir / "checkpoints"
    for path in ("10/meta/metadata", "10/metrics/metrics", "20/podrun-manifest.json"):
        (folder / path).unlink()
        os.mkfifo(folder / path)
    os.mkfifo(folder / "40")
    os.mkfifo(folder / "10" / "podrun-pinned")
    (workdir / "precious").write_text("x")
    (folder / "30" / "podrun-pinned").symlink_to(workdir / "precious")
    rows = {row["name"]: row for row in ask()["rows"]}
    assert rows["10"]["loss"] is None and rows["20"]["problem"].endswith(
        "names no regular file: 'podrun-manifest.json'"
    )
    for step in ("10", "30"):
        assert ask("keep", step)["error"]
    assert (workdir / "precious").read_text() == "x"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("metrics/metrics", '{"loss": ' + "9" * 4000 + "}"),
        ("meta/metadata", '{"config": ' + '{"a":' * 900 + "1" + "}" * 901),
        ("meta/metadata", '{"config": ' + "[" * 900 + "]" * 900 + "}"),
    ],
)
def test_no_damaged_file_hides_the_other_checkpoints(ask: Ask, workdir: Path, file: str, text: str) -> None:
    (workdir / "checkpoints" / "20" / file).write_text(text)
    rows = ask()["rows"]
    assert [row["name"] for row in rows] == ["10", "20", "30"]
    assert rows[1]["problem"] and rows[2]["verified"]
    assert as_table(rows)


def test_keep_and_drop(ask: Ask, workdir: Path) -> None:
    """Nothing is done unless all names are right."""
    assert ask("keep", "10", "20")["done"] == [f"{n} is kept, however many newer ones there are" for n in (10, 20)]
    assert [row["pinned"] for row in ask()["rows"]] == [True, True, False]
    undone = ["20 is no longer kept: newer checkpoints will replace it", "30 was not kept before"]
    assert ask("unpin", "20", "30")["done"] == undone
    assert [row["pinned"] for row in ask()["rows"]] == [True, False, False]
    nearest = f"there is no checkpoint 14 in {workdir}/checkpoints; the nearest: 10, 20, 30"
    assert ask("drop", "10", "14")["error"] == nearest
    assert ask("drop", "new")["error"] == '"new" is not a step; checkpoints there: 10, 20, 30'
    assert names(ask("drop", "10", "30")) == ["20"]
    assert sorted(path.name for path in (workdir / "checkpoints").iterdir()) == ["20"]


def test_restore(ask: Ask, workdir: Path) -> None:
    """Newer ones are set aside, and can be brought back, also the one of the same step."""
    answer = ask("restore", "10")
    assert names(answer) == ["10", "20.aside-1", "30.aside-1"]
    assert answer["done"][-1] == "the next start resumes from step 10"
    assert names(ask("restore", "30")) == ["10", "20.aside-1", "30"]
    make(workdir, 20)
    (workdir / "checkpoints" / "30").rename(workdir / "checkpoints" / "30.damaged-1")
    assert names(ask("restore", "20.aside-1")) == ["10", "20", "20.aside-2", "30.damaged-1"]
    assert names(ask("restore", "30")) == ["10", "20", "20.aside-2", "30"]
    assert names(ask("drop", "20.aside-2")) == ["10", "20", "30"]


def test_restore_of_one_without_a_manifest(ask: Ask, workdir: Path) -> None:
    """A start prefers an older checkpoint that has one, so the answer names that step."""
    make(workdir, 25, manifest=False)
    answer = ask("restore", "25")
    assert names(answer) == ["10", "20", "25", "30.aside-1"]
    assert answer["done"][-2:] == [
        "25 has no manifest to verify it by, so a start prefers an older one that has",
        "the next start resumes from step 20",
    ]
    ask("drop", "20")
    assert ask("restore", "25")["done"] == ["the next start resumes from step 25"]


def test_mistakes(ask: Ask, workdir: Path) -> None:
    """No folder, no checkpoints, a run that goes on: said, and nothing is changed."""
    assert (
        ask(folder=workdir.with_name("worc"))["error"]
        == f"there is no folder {workdir.parent}/worc; did you mean {workdir}?"
    )
    assert ask(folder=Path("/none/such"))["error"].endswith("is it on another machine (--pod)?")
    assert "has no checkpoints" in ask(folder=workdir.parent)["error"]
    assert "is a file" in ask(folder=Path(__file__))["error"]
    for owner, text in (("", "another run"), ("r-1 (pid 7 on h)", "run r-1 (pid 7 on h); `podrun stop r-1` ends it")):
        with (workdir / ".podrun-lock").open("w") as lock:
            lock.write(owner)
            lock.flush()
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert text in ask("drop", "20")["error"]
            assert names(ask()) == ["10", "20", "30"]


def test_a_folder_that_is_removed_meanwhile(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may go on while its checkpoints are listed."""
    monkeypatch.setattr(checkpoint_files, "names_of", lambda folder: ["5", "20"])
    assert [row["name"] for row in list_checkpoints(str(workdir / "checkpoints"))] == ["20"]


def test_the_command(sandbox: Sandbox) -> None:
    """Equal answers on this machine and on a pod's first host; exit code 1 for damage, 2 for a mistake."""
    make(sandbox.path / "work", 20)
    done = sandbox.podrun("checkpoints", "work")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2), done.stderr
    done = sandbox.podrun("checkpoints", "--simulate", "--slice", "cpu-2x1", "work", "keep", "20")
    assert (done.returncode, done.stdout) == (0, "20 is kept, however many newer ones there are\n")
    (sandbox.path / "work/checkpoints/20/state/d/data").write_bytes(b"")
    done = sandbox.podrun("checkpoints", "work")
    assert done.returncode == 1 and "damaged: state/d/data has 0 bytes" in done.stdout
    for arguments, message in (
        (["work", "drop"], "no step: say which, for example podrun checkpoints work drop 100"),
        (["work", "restore", "1", "2"], "a run goes on from one step; name one"),
        (["nowhere"], f"there is no folder {sandbox.path}/nowhere"),
    ):
        done = sandbox.podrun("checkpoints", *arguments)
        assert done.returncode == 2
        assert done.stderr.startswith(f"podrun: {message}")

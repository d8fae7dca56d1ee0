"""Old runs: which of them may be removed. Files of a run are whole or not there."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from podrun.launcher.rundir import old_runs as module
from podrun.launcher.rundir.follow import follow
from podrun.launcher.rundir.old_runs import old_run, old_runs, remove
from podrun.launcher.rundir.runs import RunDirectory
from podrun.runtime.contract import UserError

from .made import begin, event, make, record

HOUR, DAY = 3600.0, 86400.0


def ended(age: float, left_behind: list[str]) -> RunDirectory:
    """Make a run that ended so many seconds ago."""
    directory = make()
    begin(directory, 0)
    record(directory, event("end", code=0, left_behind=left_behind) | {"time": time.time() - age})
    return directory


@pytest.mark.parametrize(
    ("age", "left_behind", "removable"),
    [
        (2 * HOUR, [], True),
        (0.5 * HOUR, [], False),
        (2 * HOUR, ["host-0: gone"], False),
        (25 * HOUR, ["host-0: gone"], True),
    ],
)
def test_the_only_record_of_leftovers_is_kept(age: float, left_behind: list[str], removable: bool) -> None:
    """For as long as an agent may live that nobody could reach: the lease of a detached run."""
    directory = ended(age, left_behind)
    assert [run.directory.run_id for run in old_runs(HOUR)] == ([directory.run_id] if removable else [])


def test_a_run_that_may_have_left_something_is_not_removed_by_name() -> None:
    """It is stopped first."""
    with pytest.raises(UserError, match="may have left something on host-0: gone; `podrun stop "):
        old_run(ended(DAY, ["host-0: gone"]))


def test_a_run_that_was_taken_over_meanwhile_is_not_removed() -> None:
    """It has a supervisor again, who holds its lock."""
    directory = ended(DAY, [])
    run = old_run(directory)
    with directory.supervise(), pytest.raises(UserError, match="is supervised by another podrun"):
        remove(run)
    assert directory.path.is_dir()
    remove(run)
    assert list(directory.path.parent.iterdir()) == []


def test_a_run_disappears_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever lists the runs while one is removed sees all of it or nothing."""
    directory = ended(DAY, [])
    run = old_run(directory)
    monkeypatch.setattr(
        module.shutil, "rmtree", lambda path: seen.append((directory.path.exists(), Path(path).name[0]))
    )
    seen: list[tuple[bool, str]] = []
    remove(run)
    assert seen == [(False, ".")]


def test_a_file_is_replaced_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in the middle leaves the one before; nobody else may read either."""
    directory = make()
    path = directory.path / "x.json"
    directory._write("x.json", b"before")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    written: list[bytes] = []
    replace = Path.replace

    def look(self: Path, target: Path) -> Path:
        written.append(path.read_bytes())
        assert self.read_bytes() == b"after" and stat.S_IMODE(self.stat().st_mode) == 0o600
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", look)
    before = os.umask(0)
    try:
        directory._write("x.json", b"after")
    finally:
        os.umask(before)
    assert written == [b"before"] and path.read_bytes() == b"after"
    assert {file.name for file in directory.path.iterdir() if file.suffix == ".tmp"} == set()


def test_whose_pid_a_run_has() -> None:
    """While it is supervised; a pid that stands there afterwards is nobody's."""
    directory = make()
    assert directory.supervisor() is None
    with directory.supervise():
        assert directory.supervisor() == os.getpid()
    assert (directory.path / "supervisor.json").read_text() and directory.supervisor() is None


def test_a_run_without_a_supervisor_is_not_followed_for_ever() -> None:
    """All that is on record comes, and then the end; with a supervisor there is a pause."""
    directory = make()
    begin(directory, 0)
    events = [event and event["event"] for event in follow(directory)]
    assert events == ["start", "host", "host"]
    with directory.supervise():
        following = follow(directory)
        assert [event and event["event"] for event, _ in zip(following, range(4), strict=False)] == [*events, None]

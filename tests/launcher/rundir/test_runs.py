"""Run directories: for their owner alone, found by a part of their name, held by one supervisor."""

from __future__ import annotations

import os
import re
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.plan.plan import make_plan
from podrun.launcher.plan.spec import Label
from podrun.launcher.rundir.runs import Recorder, RunDirectory, all_runs, find_run
from podrun.runtime.contract import UserError

from .made import ID, OTHER_FIELDS, make, record, spec_of


def test_a_run_is_for_nobody_else_to_read() -> None:
    """The environment of the workers is in it."""
    directory = make()
    directory.begin(make_plan(spec_of(), 0, {"TOKEN": "hush"}))
    assert stat.S_IMODE(directory.logs.stat().st_mode) == 0o700
    files = [path for path in directory.path.iterdir() if path.is_file()]
    assert {path.name for path in files} == {"spec.json", "plan.json", "attempt.json"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert not any("hush" in path.read_text() for path in files)
    assert directory.spec() == spec_of()


def test_a_home_that_cannot_be_written(home: Path) -> None:
    """The reason, and what to do."""
    home.write_text("a file")
    with pytest.raises(UserError, match=r"cannot make the run directory .*: Not a directory; set PODRUN_HOME"):
        make()


@pytest.mark.parametrize("text", [None, "", "{", '{"run_id": "x"}'])
def test_a_run_of_another_version(text: str | None) -> None:
    """It is named, with its file, in one line."""
    directory = make()
    file = directory.path / "spec.json"
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(
        UserError, match=rf"^run {ID}: cannot read {file} \(.*\): was it written by another version"
    ) as e:
        directory.spec()
    assert "\n" not in str(e.value)


def test_a_full_disk_does_not_end_a_run() -> None:
    """Events that cannot be recorded are lost; the logs are on the same disk and say so."""
    recorder = Recorder(Path("/dev/full"))
    for _ in range(3):
        recorder.event({"event": "note", "message": "x" * 10000})
    recorder.close()


def test_a_run_is_found_by_a_part_of_its_id() -> None:
    """The beginning or the end; without one the newest."""
    for run in ("20260101-000000-abcd", "20260102-000000-ffab", "20260102-000001-0000"):
        make(run)
    assert [run.run_id[-4:] for run in all_runs()] == ["0000", "ffab", "abcd"]
    assert find_run(None).run_id == "20260102-000001-0000"
    for part, found in (("20260101", "abcd"), ("abcd", "abcd"), ("ffab", "ffab"), ("20260102-000000-ffab", "ffab")):
        assert find_run(part).run_id.endswith(found)


def test_a_whole_id_means_that_run() -> None:
    """Also if another one begins with it."""
    make("20260101-000000-abcd")
    make("20260101-000000-abcd-again")
    assert find_run("20260101-000000-abcd").run_id == "20260101-000000-abcd"


def test_a_part_that_means_several() -> None:
    """They are named, four at most."""
    for number in range(5):
        make(f"20260101-00000{number}-abcd")
    with pytest.raises(
        UserError, match=r"^'abcd' means 5 runs: 20260101-000004-abcd, .*, \.\.\.; give more of the id$"
    ):
        find_run("abcd")
    assert find_run("3-abcd").run_id == "20260101-000003-abcd"


def test_a_run_that_is_not_there(home: Path) -> None:
    """The message says what to do, whether there are others or not; a folder that is no run does not count."""
    with pytest.raises(UserError, match=r"^there are no runs in .*/home/runs; `podrun --simulate"):
        find_run(None)
    (home / "runs" / "20270101-empty").mkdir(parents=True)
    (home / "runs" / ".hidden").mkdir()
    (home / "runs" / ".hidden" / "spec.json").touch()
    with pytest.raises(UserError, match=r"^there are no runs in"):
        find_run("2027")
    make()
    assert find_run(None).run_id == ID
    with pytest.raises(UserError, match=rf"^there is no run '0009'; `podrun ps --all` lists them; the newest is {ID}$"):
        find_run("0009")
    assert find_run("0000").run_id == ID  # in the middle of the id


def test_a_name_comes_before_a_part_of_an_id() -> None:
    """And the end of an id before the middle of another one."""
    for run_id, name in (("20260101-000000-abcd", ""), ("20260101-000001-dddd", "d"), ("20260101-000002-dabc", "")):
        RunDirectory.create(replace(spec_of(run_id), label=Label(name)))
    assert find_run("d").run_id == "20260101-000001-dddd"
    assert find_run("abc").run_id == "20260101-000002-dabc"
    assert find_run("bcd").run_id == "20260101-000000-abcd"


def test_the_transport_is_known_from_the_record_if_the_spec_is_damaged() -> None:
    """By it the queue is known that has the run's job."""
    directory = make()
    (directory.path / "spec.json").write_text("{")
    assert directory.transport() is None
    record(directory, {"event": "start", **OTHER_FIELDS["start"], "transport": "slurm"})
    assert directory.transport() == "slurm"
    directory.write_spec(spec_of())
    assert directory.transport() == "local"


def test_one_supervisor_at_a_time() -> None:
    """The second is told who is the first; when that is gone, another may."""
    directory = make()
    assert directory.supervisor() is None
    with directory.supervise():
        assert directory.supervisor() == os.getpid()
        with (
            pytest.raises(UserError, match=rf"^run {ID} is supervised by another podrun \(pid {os.getpid()}\)$"),
            directory.supervise(),
        ):
            pytest.fail("two supervisors")
        assert directory.supervisor() == os.getpid()
    assert directory.supervisor() is None
    with directory.supervise():
        assert directory.supervisor() == os.getpid()


HOLD = """
import sys, time
from pathlib import Path
from podrun.launcher.rundir.runs import RunDirectory
with RunDirectory(Path(sys.argv[1])).supervise():
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_supervisor_that_is_killed_lets_go() -> None:
    """Nothing has to be tidied up, and its pid is not believed any more."""
    directory = make()
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(directory.path)], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        assert directory.supervisor() == holder.pid
        with pytest.raises(UserError, match=rf"\(pid {holder.pid}\)"), directory.supervise():
            pytest.fail("two supervisors")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        assert directory.supervisor() is None
        with directory.supervise():
            assert directory.supervisor() == os.getpid()
    finally:
        holder.kill()
        holder.wait()


def test_a_supervisor_that_fails_lets_go() -> None:
    directory = make()
    with pytest.raises(ZeroDivisionError), directory.supervise():
        raise ZeroDivisionError
    with directory.supervise():
        pass


def test_a_stop_is_known_to_the_supervisor_that_gets_it_only() -> None:
    """A job that is requeued has another supervisor, which nobody has stopped."""
    directory = make()
    with directory.supervise():
        assert directory.stopped_by() == ""
        directory.record_stop(now=True)
        assert re.fullmatch(r"`podrun stop --now` \(\S+ on \S+\)", directory.stopped_by())
        directory.record_stop(now=False)
        assert directory.stopped_by().startswith("`podrun stop` (")
        (directory.path / "stop.json").write_text('{"user": 3}')
        assert directory.stopped_by() == ""
        directory.record_stop(now=True)
    with directory.supervise():
        assert directory.stopped_by() == ""

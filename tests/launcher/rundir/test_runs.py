"""Run directories: found by a part of their name, held by one supervisor, taken over where the one before left off."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.plan import Program
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.rundir.follow import Output, follow
from podrun.launcher.rundir.logs import Logs
from podrun.launcher.rundir.runs import Recorder, RunDirectory, all_runs, find_run, new_run_id
from podrun.launcher.rundir.spec import RunSpec, start_event
from podrun.launcher.view.echo import last_state
from podrun.runtime.config import Launch
from podrun.runtime.contract import UserError

ID = "20260101-000000-abcd"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PODRUN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def spec_of(run_id: str = ID, process_per: str = "host") -> RunSpec:
    launch = Launch.model_validate({"process_per": process_per})
    return RunSpec(run_id, simulated_pod(parse_slice("cpu-2x2")), Program(("a",), launch), Path("/w"), Path("/c"))


def make(run_id: str = ID, **arguments: Any) -> RunDirectory:
    return RunDirectory.create(spec_of(run_id, **arguments))


def record(directory: RunDirectory, *events: dict[str, Any]) -> None:
    with directory.events.open("a") as file:
        file.writelines(json.dumps({"time": 0.0, **event}) + "\n" for event in events)


# --- the directory --------------------------------------------------------------------------------------------------


def test_a_run_is_for_nobody_else_to_read() -> None:
    """The environment of the workers is in it."""
    directory = make()
    directory.begin(spec_of().plan(0, {"TOKEN": "hush"}))
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


def test_a_full_disk_does_not_end_a_run(tmp_path: Path) -> None:
    """What cannot be recorded is not; the logs are on the same disk and say so."""
    recorder = Recorder(Path("/dev/full"))
    for _ in range(3):
        recorder.event({"event": "note", "message": "x" * 10000})
    recorder.close()


# --- find_run -------------------------------------------------------------------------------------------------------


def test_run_ids_sort_by_time_and_differ() -> None:
    ids = [new_run_id() for _ in range(20)]
    assert len(set(ids)) > 15  # of 65536 random parts
    assert [i[:15] for i in ids] == sorted(i[:15] for i in ids)


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
    """What to do, whether there are others or not; a folder that is no run does not count."""
    with pytest.raises(UserError, match=r"^there are no runs in .*/home/runs; `podrun --simulate"):
        find_run(None)
    (home / "runs" / "20270101-empty").mkdir(parents=True)
    (home / "runs" / ".hidden").mkdir()
    (home / "runs" / ".hidden" / "spec.json").touch()
    with pytest.raises(UserError, match=r"^there are no runs in"):
        find_run("2027")
    make()
    assert find_run(None).run_id == ID
    with pytest.raises(UserError, match=rf"^there is no run '0000'; `podrun ps --all` lists them; the newest is {ID}$"):
        find_run("0000")  # in the middle of the id


# --- who supervises it ----------------------------------------------------------------------------------------------


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


# --- taking a run over ----------------------------------------------------------------------------------------------


OTHER_FIELDS: dict[str, dict[str, Any]] = {
    "start": {
        **dict.fromkeys(("run_id", "slice", "transport", "workdir", "logs"), "x"),
        "attempt": 0,
        "devices": 1,
        "hosts": {"host-0": [0]},
        "program": None,
    },
    "step": {"steps": 9},
    "note": {"message": "x"},
    "end": {"host": None, "message": "done"},
}


def event(name: str, process: int | None = None, **fields: Any) -> dict[str, Any]:
    place = {} if process is None else {"host": f"host-{process}", "process": process}
    return {"event": name, "time": 0.0, **place, **OTHER_FIELDS.get(name, {}), **fields}


def begin(directory: RunDirectory, attempt: int) -> None:
    plan = directory.spec().plan(attempt, {})
    directory.begin(plan)
    record(directory, start_event(plan, directory.logs, 0.0))
    record(directory, *(event("host", host=f"host-{n}", phase="hello", pid=n) for n in range(2)))


def started(directory: RunDirectory) -> None:
    for n in range(2):
        record(directory, event("host", n, phase="started", pid=n))


def test_an_attempt_that_has_only_begun() -> None:
    """Nothing is here of it, and its processes have not been started."""
    directory = make()
    assert directory.attempt() is None
    begin(directory, 0)
    assert directory.attempt() == 0
    adoption = directory.adoption(directory.spec().plan(0, {}))
    assert adoption.offsets == {"host-0": {"0.out": 0}, "host-1": {"1.out": 0}}
    assert (adoption.events, adoption.started) == ({}, False)


def test_what_is_here_of_an_attempt() -> None:
    """Bytes in the logs, and events of each process; what the launcher itself told does not count."""
    directory = make()
    begin(directory, 0)
    started(directory)
    with Logs(directory.logs) as logs:
        logs.write("host-0", b"12345")
        logs.write("host-0", "ä\n".encode())
    record(directory, *(event("step", 0, step=step) for step in range(4)), event("phase", 1, phase="train"))
    record(directory, event("note", 1, message="a worker's"), event("error", 1, kind="exception", message="x"))
    record(directory, event("note", message="the launcher's"), event("exit", 0, code=0))
    adoption = directory.adoption(directory.spec().plan(0, {}))
    assert adoption.offsets == {"host-0": {"0.out": 8}, "host-1": {"1.out": 0}}
    assert adoption.events == {("host-0", 0): 4, ("host-1", 1): 3}
    assert adoption.started


def test_only_the_last_attempt_counts() -> None:
    """Its logs go on in the same files, and its events in the same record."""
    directory = make()
    for attempt, text in enumerate([b"first", b"second, longer\n"]):
        begin(directory, attempt)
        assert directory.attempt() == attempt
        started(directory)
        with Logs(directory.logs) as logs:
            logs.write("host-0", text)
            logs.write("host-1", b"x")
            logs.end("host-0")
        record(directory, *(event("step", n, step=0) for n in (0, 1, 1)), event("exit", 0, code=1))
    begin(directory, 2)
    plan = directory.spec().plan(2, {})
    assert directory.adoption(plan).offsets == {"host-0": {"0.out": 0}, "host-1": {"1.out": 0}}
    assert (directory.adoption(plan).events, directory.adoption(plan).started) == ({}, False)
    started(directory)
    record(directory, event("step", 1, step=5))
    with Logs(directory.logs) as logs:
        logs.write("host-1", b"abc")
    adoption = directory.adoption(plan)
    assert adoption.offsets == {"host-0": {"0.out": 0}, "host-1": {"1.out": 3}}
    assert (adoption.events, adoption.started) == ({("host-1", 1): 1}, True)


def test_processes_of_a_host_are_told_apart() -> None:
    """Each has a stream and a log of its own."""
    directory = make(process_per="device")
    begin(directory, 0)
    with Logs(directory.logs) as logs:
        for process in range(4):
            logs.write(f"host-{process // 2}.{process}", b"x" * process)
    record(directory, {**event("step", 2, step=1), "host": "host-1"})
    adoption = directory.adoption(directory.spec().plan(0, {}))
    assert adoption.offsets == {"host-0": {"0.out": 0, "1.out": 1}, "host-1": {"2.out": 2, "3.out": 3}}
    assert adoption.events == {("host-1", 2): 1}


def test_a_record_that_was_cut_off() -> None:
    """A full disk leaves half a line, and the next event may be behind it: neither counts, the others do."""
    directory = make()
    begin(directory, 0)
    with directory.events.open("a") as file:
        file.write('{"event": "step", "host": "ho{"event": "note"}\n')
    record(directory, event("step", 0, step=1))
    with directory.events.open("a") as file:
        file.write('{"event": "step", "host": "host-0", "process": 0')
    assert directory.adoption(directory.spec().plan(0, {})).events == {("host-0", 0): 1}


# --- follow ---------------------------------------------------------------------------------------------------------


def read(directory: RunDirectory) -> Iterator[Any]:
    for found in follow(directory):
        yield found and found["event"]


def test_following_a_run_that_is_over() -> None:
    """All its events, and no wait; what is behind the end is nobody's business."""
    directory = make()
    record(directory, event("start"), event("end", code=0), event("note"))
    assert list(read(directory)) == ["start", "end"]


def test_following_a_run_that_nobody_supervises() -> None:
    """What there is, then the end: nothing more will come."""
    directory = make()
    record(directory, event("start"), event("note"))
    assert list(read(directory)) == ["start", "note"]


def test_following_a_run_that_goes_on() -> None:
    """Events come as they are written, whole, once and in order; between them a moment passes."""
    directory = make()
    record(directory, event("start"))
    seen: list[Any] = []

    def wait_for(true: Any) -> None:
        deadline = time.monotonic() + 10
        while not true():
            assert time.monotonic() < deadline, seen
            time.sleep(0.02)

    def count() -> int:
        return len([s for s in seen if s is not None])

    watcher = threading.Thread(target=lambda: [seen.append(e) for e in read(directory)])
    with directory.supervise():
        watcher.start()
        wait_for(lambda: seen[-1:] == [None])
        with directory.events.open("a") as file:
            line = json.dumps(event("step", 0, step=1)) + "\n"
            file.write(line[:12])
            file.flush()
            moments = len(seen)
            wait_for(lambda: len(seen) > moments + 1)
            assert count() == 1
            file.write(line[12:])
        wait_for(lambda: count() == 2)
        record(directory, event("note"), event("note"))
        wait_for(lambda: count() == 4)
        assert watcher.is_alive()
    watcher.join(10)
    assert not watcher.is_alive()
    assert [s for s in seen if s is not None] == ["start", "step", "note", "note"]


def test_following_over_a_line_that_was_cut_off() -> None:
    """A full disk leaves half a line; what comes after it is seen all the same."""
    directory = make()
    record(directory, event("start"))
    with directory.events.open("a") as file:
        file.write('{"event": "step", "host": "ho{"event": "note"}\n')
    record(directory, event("end", code=0))
    assert list(read(directory)) == ["start", "end"]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain", "plain"),
        (b"", ""),
        (b"windows\r", "windows"),
        (b" 10%\r 50%\r100%", "100%"),
        (b" 10%\r 50%\r100%\r", "100%"),
        (b"\r\r", ""),
        (b"\xc3\xa4\xff", "ä\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_what_a_progress_bar_shows_last(line: bytes, shown: str) -> None:
    assert last_state(line) == shown


@pytest.mark.parametrize(("process_per", "name"), [("host", "host-0"), ("device", "host-0.0")])
def test_the_output_of_a_program(process_per: str, name: str) -> None:
    """Of its first process, in whole lines, each once."""
    directory = make(process_per=process_per)
    output = Output(directory)
    assert output.news() == ""
    begin(directory, 0)
    assert output.news() == ""
    with Logs(directory.logs) as logs:
        logs.write(name, b"one\n 50%\r 100%\nth")
        logs.write("host-1", b"other\n")
        assert output.news() == "one\n 100%"
        assert output.news() == ""
        logs.write(name, b"ree\n")
        assert output.news() == "three"

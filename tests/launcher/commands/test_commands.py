"""ps, status, logs, exec, ssh and clean: runs are made by hand, and hosts are this machine."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.cli.root import main
from podrun.launcher.commands.ssh import find_host, ssh_command
from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.plan import Program
from podrun.launcher.pod.fold import fold
from podrun.launcher.pod.pod import Host, Pod, Ssh
from podrun.launcher.pod.ranges import expand, split_hosts
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.rundir import backwards
from podrun.launcher.rundir.log_files import LogFile, since_offset
from podrun.launcher.rundir.logs import Logs, index_path, log_path
from podrun.launcher.rundir.runs import RunDirectory
from podrun.launcher.rundir.spec import RunSpec
from podrun.launcher.view.times import duration, parse_duration, parse_since
from podrun.launcher.view.times import size as size_text
from podrun.runtime.config import Launch
from podrun.runtime.contract import UserError

from ...conftest import Sandbox

Event = dict[str, Any]
HOUR, DAY = 3600.0, 86400.0


@dataclass
class Done:
    """How podrun ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Podrun = Callable[..., Done]


@pytest.fixture
def sandbox(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """The home of all that a test does."""
    monkeypatch.setenv("PODRUN_HOME", str(sandbox.path / "home"))
    return sandbox


@pytest.fixture
def podrun(sandbox: Sandbox, capfd: pytest.CaptureFixture[str]) -> Podrun:
    """Runs podrun in this process."""

    def run(*args: str) -> Done:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(args), prog_name="podrun")
        out, err = capfd.readouterr()
        return Done(int(ended.value.code or 0), out, err)

    return run


@dataclass
class Made:
    """A run directory that a test fills."""

    directory: RunDirectory
    hosts: dict[str, list[int]]
    began: float

    @property
    def id(self) -> str:
        return self.directory.run_id

    def event(self, kind: str, **fields: Any) -> None:
        with self.directory.events.open("a") as file:
            file.write(json.dumps({"event": kind, "time": self.began + 1, **fields}) + "\n")

    def start(self, program: str | None = None, attempt: int = 0) -> None:
        self.event(
            "start",
            time=self.began,
            run_id=self.id,
            attempt=attempt,
            slice="cpu-2x1",
            devices=1,
            transport="local",
            hosts=self.hosts,
            program=program,
            workdir="/runs/job",
            logs=str(self.directory.logs),
        )

    def step(self, step: int, process: int = 0) -> None:
        host = next(h for h, processes in self.hosts.items() if process in processes)
        times = {"elapsed": 20.0, "seconds_left": 3725.0}
        self.event("step", step=step, steps=100, loss=1.0, **times, host=host, process=process)

    def end(self, code: int = 0, host: str | None = None, message: str = "done") -> None:
        self.event("end", time=self.began + 90, code=code, host=host, process=None, message=message)

    def log(self, name: str, data: bytes, marks: str | None = None) -> None:
        log_path(self.directory.logs, name).write_bytes(data)
        if marks is not None:
            index_path(self.directory.logs, name).parent.mkdir(exist_ok=True)
            index_path(self.directory.logs, name).write_text(marks)


Make = Callable[..., Made]


@pytest.fixture
def make(sandbox: Sandbox) -> Make:
    """Makes a run of two hosts that began `age` seconds ago."""

    def made(
        run_id: str, age: float = 120.0, hosts: dict[str, list[int]] | None = None, begin: bool = True, **start: Any
    ) -> Made:
        pod = replace(simulated_pod(parse_slice("cpu-2x1")), home=str(sandbox.path / "home"), python=sys.executable)
        program = Program(("python", "train.py"), Launch())
        directory = RunDirectory.create(RunSpec(run_id, pod, program, sandbox.path, sandbox.path))
        run = Made(directory, hosts or {"host-0": [0], "host-1": [1]}, time.time() - age)
        if begin:
            run.start(**start)
        return run

    return made


# --- ps ---------------------------------------------------------------------------------------------------------------


def test_ps_tells_how_every_run_goes(podrun: Podrun, make: Make) -> None:
    """The newest first; each state has its own word."""
    make("20260101-000001-aaaa").end()
    make("20260101-000002-bbbb").end(3, "host-1", "failed: host-1: boom [exit code 3]")
    make("20260101-000003-cccc").end(130, None, "interrupted")
    make("20260101-000004-dddd", program="python a.py").step(7)
    running = make("20260101-000005-eeee")
    running.step(42)
    with running.directory.supervise():
        done = podrun("ps")
        rows = podrun("ps", "--json").json
    *lines, hint = done.out.splitlines()
    assert hint == (
        "abandoned: its launcher is gone; `podrun attach 20260101-000004-dddd` takes it over, "
        "`podrun stop 20260101-000004-dddd` ends it"
    )
    assert [line.split()[0][-4:] for line in lines[1:]] == ["eeee", "dddd", "cccc", "bbbb", "aaaa"]
    assert [re.split(r"  +", line)[1] for line in lines[1:]] == [
        "running",
        "abandoned",
        "interrupted",
        "failed 3",
        "done",
    ]
    assert "42/100" in lines[1] and lines[1].endswith("job") and lines[2].endswith("python a.py")
    assert [row["state"] for row in rows] == ["running", "abandoned", "interrupted", "failed", "done"]
    assert [row["code"] for row in rows] == [None, None, 130, 3, 0]
    assert rows[0]["supervisor"] == os.getpid() and rows[0]["step"] == 42 and rows[0]["hosts"] == 2
    assert rows[4]["seconds"] == pytest.approx(90) and 119 < rows[0]["seconds"] < 180


def test_ps_shows_the_last_that_ended_and_all_that_did_not(podrun: Podrun, make: Make) -> None:
    """An old run that was abandoned is not forgotten."""
    make("20260101-000000-left")
    for n in range(13):
        make(f"20260102-0000{n:02}-aaaa").end()
    assert len(podrun("ps", "--json").json) == 11
    assert podrun("ps", "--json").json[-1]["run"] == "20260101-000000-left"
    assert podrun("ps").out.splitlines()[-1] == "3 more have ended: podrun ps --all"
    assert len(podrun("ps", "--all", "--json").json) == 14
    assert "more have ended" not in podrun("ps", "--all").out


def test_ps_without_runs(podrun: Podrun, sandbox: Sandbox) -> None:
    """It says where it looked; JSON stays JSON."""
    assert podrun("ps").out == f"no runs in {sandbox.path / 'home' / 'runs'}\n"
    assert podrun("ps", "--json").json == []


def test_ps_reads_only_the_ends_of_records(podrun: Podrun, make: Make) -> None:
    """A record may be as long as it likes: this one is 4 TB, nearly all of it a hole."""
    run = make("20260101-000001-aaaa")
    os.truncate(run.directory.events, 1 << 42)
    with run.directory.events.open("ab") as file:
        file.write(b"\n")
    run.step(99)
    run.end()
    row = podrun("ps", "--json").json[0]
    assert (row["state"], row["step"], row["slice"]) == ("done", 99, "cpu-2x1")


def test_ps_of_a_run_that_has_just_been_made(podrun: Podrun, make: Make) -> None:
    """It has no event yet, and counts as running for a moment; its spec says the rest."""
    make("20260101-000001-aaaa", begin=False)
    row = podrun("ps", "--json").json[0]
    assert (row["state"], row["slice"], row["hosts"], row["job"]) == ("running", "cpu-2x1", 2, "python train.py")


def test_the_end_of_a_run_is_seen_behind_a_line_that_was_cut_off(make: Make) -> None:
    """A full disk cuts events off; one that is being written is not there yet."""
    run = make("20260101-000001-aaaa")
    with run.directory.events.open("a") as file:
        file.write('{"event": "st\n')
    assert run.directory.end() is None
    run.end(1, "host-0")
    with run.directory.events.open("a") as file:
        file.write('{"event": "st')
    end = run.directory.end()
    assert end is not None and end["code"] == 1
    assert [e["event"] for e in run.directory.read_events()] == ["start", "end"]


def test_a_look_at_a_run_does_not_keep_it_from_being_supervised(make: Make) -> None:
    """Who looks whether somebody supervises it has the lock for a moment; ps and logs do so all the time."""
    run = make("20260101-000001-aaaa")
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            run.directory.supervisor()

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(50):
            with run.directory.supervise():
                assert run.directory.supervisor() == os.getpid()
    finally:
        over.set()
        for thread in threads:
            thread.join()


# --- status -----------------------------------------------------------------------------------------------------------


def running(make: Make) -> Made:
    run = make("20260101-000001-aaaa")
    for host, process in (("host-0", 0), ("host-1", 1)):
        run.event("host", host=host, phase="hello", pid=100 + process)
        run.event("host", host=host, phase="started", process=process, pid=200 + process)
        run.event("phase", host=host, process=process, phase="train", time=run.began + 60)
        run.step(10, process)
    run.event("checkpoint", host="host-0", process=0, step=8)
    run.step(12)
    return run


def test_status_of_a_run_that_goes_on(podrun: Podrun, make: Make) -> None:
    """Per process: phase, since when, step, pid; and the checkpoint, the supervisor, the logs."""
    run = running(make)
    with run.directory.supervise():
        done = podrun("status")
        found = podrun("status", "aaaa", "--json").json
    lines = done.out.splitlines()
    assert lines[0] == f"run {run.id}: running for 2m 00s"
    assert f"  supervisor  pid {os.getpid()} on this machine" in lines
    assert f"  logs        {run.directory.logs}" in lines
    assert any(line.startswith("  checkpoint  step 8, at ") for line in lines)
    assert lines[3:6] == [
        "  phase       training",
        "  step        12/100  loss 1.0000",
        "  time        elapsed 0:20  eta 1:02:05",
    ]
    assert (found["phase"], found["loss"], found["elapsed"], found["seconds_left"]) == ("training", 1.0, 20.0, 3725.0)
    assert [line.split() for line in lines[-2:]] == [
        ["0", "host-0", "training", "1m", "00s", "12", "200", "-"],
        ["1", "host-1", "training", "1m", "00s", "10", "201", "-"],
    ]
    assert found["checkpoint"]["step"] == 8 and found["agents"] == {"host-0": 100, "host-1": 101}
    assert [(p["phase"], p["step"], p["pid"], p["exit_code"]) for p in found["processes"]] == [
        ("train", 12, 200, None),
        ("train", 10, 201, None),
    ]


def test_status_of_a_run_that_failed(podrun: Podrun, make: Make) -> None:
    """How each process ended, and the first cause as the last line."""
    run = running(make)
    run.event("exit", host="host-1", process=1, code=-9)
    run.event("exit", host="host-0", process=0, code=76)
    run.end(137, "host-1", "failed: host-1 (process 1): was ended by SIGKILL [exit code 137]")
    lines = podrun("status").out.splitlines()
    assert lines[0].startswith(f"run {run.id}: failed with exit code 137 at ")
    assert lines[-1] == "podrun: failed: host-1 (process 1): was ended by SIGKILL [exit code 137]"
    assert [line.split()[-1] for line in lines if " host-" in line and "exited" in line] == ["76", "SIGKILL"]
    assert podrun("status", "--json").json["message"].startswith("failed: host-1")


def test_status_of_a_restart_is_that_of_the_new_attempt(podrun: Podrun, make: Make) -> None:
    """What the attempt before had reached says nothing about this one; its checkpoint does."""
    run = running(make)
    run.event("exit", host="host-0", process=0, code=1)
    run.start(attempt=1)
    found = podrun("status", "--json").json
    assert found["attempt"] == 1 and found["checkpoint"]["step"] == 8
    assert [(p["phase"], p["step"], p["pid"], p["exit_code"]) for p in found["processes"]] == [
        ("waiting", None, None, None)
    ] * 2
    assert ", restart 1" in podrun("status").out.splitlines()[0] or "abandoned" in podrun("status").out.splitlines()[0]


def test_status_of_an_abandoned_run_says_what_to_do(podrun: Podrun, make: Make) -> None:
    """It has not ended, and nobody supervises it."""
    run = running(make)
    out = podrun("status").out
    assert "abandoned" in out.splitlines()[0]
    assert f"`podrun attach {run.id}`" in out and f"`podrun stop {run.id}`" in out


def test_status_of_a_large_pod_is_short(podrun: Podrun, make: Make) -> None:
    """Processes in the same state share a row; the odd one has its own."""
    hosts = {f"tpu-{n}": [n] for n in range(256)}
    run = make("20260101-000001-aaaa", hosts=hosts)
    for n in range(256):
        run.event("phase", host=f"tpu-{n}", process=n, phase="compile" if n == 77 else "train")
    out = podrun("status").out
    assert len(out.splitlines()) < 15
    rows = [line.split() for line in out.splitlines()]
    assert ["255", "training", "-", "-", "tpu-[0-76,78-255]"] in rows
    assert ["1", "compiling", "the", "step", "-", "-", "tpu-77"] in rows


def test_status_names_the_runs_that_it_could_mean(podrun: Podrun, make: Make) -> None:
    """A part of an id that means none or several."""
    assert "there are no runs in" in podrun("status").err
    make("20260101-000001-aaaa")
    make("20260101-000002-bbbb")
    wrong, both = podrun("status", "zzz"), podrun("status", "2026")
    assert (wrong.code, both.code) == (2, 2)
    assert "there is no run 'zzz'" in wrong.err and "`podrun ps --all` lists them" in wrong.err
    assert "means 2 runs: 20260101-000002-bbbb, 20260101-000001-aaaa" in both.err


# --- logs -------------------------------------------------------------------------------------------------------------


def test_logs_in_the_order_of_arrival(podrun: Podrun, make: Make) -> None:
    """By the index, to the second; lines stay whole where a mark falls into one."""
    run = make("20260101-000001-aaaa")
    run.log("host-0", b"zero a\nzero b\nzero c\n", "100 0\n102 10\n")
    run.log("host-1", b"one a\none b", "101 0\n103 6\n")
    run.end()
    assert podrun("logs").out.splitlines() == [
        "host-0 | zero a",
        "host-0 | zero b",
        "host-1 | one a",
        "host-0 | zero c",
        "host-1 | one b",
    ]


def test_logs_of_chosen_hosts(podrun: Podrun, make: Make) -> None:
    """One file needs no prefix; a host may have several processes."""
    run = make("20260101-000001-aaaa", hosts={"gpu-0": [0, 1], "gpu-1": [2, 3], "10.0.0.5": [4]})
    for name in ("gpu-0.0", "gpu-0.1", "gpu-1.2", "gpu-1.3", "10.0.0.5"):
        run.log(name, f"I am {name}\n".encode())
    assert podrun("logs", "--host", "10.0.0.5").out == "I am 10.0.0.5\n"
    assert podrun("logs", "--host", "gpu-1.3").out == "I am gpu-1.3\n"
    assert podrun("logs", "--host", "gpu-0").out == "gpu-0.0 | I am gpu-0.0\ngpu-0.1 | I am gpu-0.1\n"
    assert len(podrun("logs", "--host", "gpu-[0-1]").out.splitlines()) == 4
    assert len(podrun("logs", "--host", "gpu-0.0", "--host", "10.0.0.5").out.splitlines()) == 2
    wrong = podrun("logs", "--host", "gpu-[1-2]")
    assert wrong.code == 2
    assert wrong.err == "podrun: --host gpu-[1-2]: gpu-2 is no host of this run; it has gpu-[0-1],10.0.0.5\n"


def test_the_last_lines_of_each(podrun: Podrun, make: Make) -> None:
    """-n counts lines of each process, an unfinished one too."""
    run = make("20260101-000001-aaaa")
    run.log("host-0", b"a\nb\nc\n")
    run.log("host-1", b"d\ne\nf")
    assert podrun("logs", "-n", "2").out.splitlines() == ["host-0 | b", "host-0 | c", "host-1 | e", "host-1 | f"]
    assert podrun("logs", "-n", "0").out == ""
    assert len(podrun("logs", "-n", "99").out.splitlines()) == 6


def test_logs_since_a_time(podrun: Podrun, make: Make) -> None:
    """What arrived after that: whole lines, at most a second's too many, never one too few."""
    run = make("20260101-000001-aaaa")
    now = time.time()
    run.log("host-0", b"old\nnew\nnewer\n", f"{now - 3600:.3f} 0\n{now - 100:.3f} 5\n{now - 50:.3f} 8\n")
    assert podrun("logs", "--since", "2h").out == "host-0 | old\nhost-0 | new\nhost-0 | newer\n"
    assert podrun("logs", "--since", "2m").out == "host-0 | new\nhost-0 | newer\n"  # the mark is inside of its line
    assert podrun("logs", "--since", "1m").out == "host-0 | newer\n"
    assert podrun("logs", "--since", "1m", "-n", "5").out == "host-0 | newer\n"
    assert podrun("logs", "--since", "10s").out == ""
    index_path(run.directory.logs, "host-0").unlink()
    assert "logs have no times" in podrun("logs", "--since", "10s").err


def test_logs_are_told_as_text_and_raw_byte_for_byte(sandbox: Sandbox, make: Make) -> None:
    """What is not text is shown as \\xff; of a progress bar its last state; Windows' ends of lines are none."""
    run = make("20260101-000001-aaaa")
    run.log("host-0", b"\xff\xfe\n 10%\r 50%\r100%\nfrom windows\r\n")
    command = [*sandbox.command, "logs", "--host", "host-0"]
    out = subprocess.run(command, env=sandbox.env, capture_output=True, check=True).stdout
    assert out == b"\\xff\\xfe\n100%\nfrom windows\n"
    raw = subprocess.run([*command, "--raw"], env=sandbox.env, capture_output=True, check=True).stdout
    assert raw == b"\xff\xfe\n 10%\r 50%\r100%\nfrom windows\r\n"


def test_logs_of_a_run_that_printed_nothing(podrun: Podrun, make: Make) -> None:
    """It is said on stderr, so that a pipe gets nothing."""
    run = make("20260101-000001-aaaa")
    done = podrun("logs")
    assert (done.code, done.out) == (0, "")
    assert "nothing was printed" in done.err and f"`podrun status {run.id}`" in done.err


@dataclass
class Following:
    """`podrun logs -f` in another process."""

    process: subprocess.Popen[bytes]
    first: threading.Event

    def end(self) -> tuple[int, list[bytes], str]:
        code = self.process.wait(30)
        self.reader.join(10)
        assert self.process.stderr
        return code, self.lines, self.process.stderr.read().decode()

    def __post_init__(self) -> None:
        self.lines: list[bytes] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line.rstrip(b"\n"))
            self.first.set()


@pytest.fixture
def follow(sandbox: Sandbox) -> Iterator[Callable[..., Following]]:
    started: list[Following] = []

    def start(*args: str) -> Following:
        command = [*sandbox.command, "logs", "-f", *args]
        pipe = subprocess.PIPE
        started.append(
            Following(subprocess.Popen(command, env=sandbox.env, stdout=pipe, stderr=pipe), threading.Event())
        )
        return started[-1]

    yield start
    for following in started:
        following.process.kill()
        following.process.wait()


def test_following_loses_nothing_and_mixes_nothing(make: Make, follow: Callable[..., Following]) -> None:
    """Several hosts, pieces that end anywhere, lines that come with the end of the run."""
    chance = random.Random(1)
    run = make("20260101-000001-aaaa")
    run.log("host-0", b"before\n")
    wanted = {
        name: [f"{name} says {n} {'x' * chance.randrange(90)}".encode() for n in range(400)] for name in run.hosts
    }
    rest = {name: b"\n".join(lines) for name, lines in wanted.items()}  # the last line has no end
    with run.directory.supervise(), Logs(run.directory.logs) as logs:
        following = follow()
        assert following.first.wait(30)
        while any(rest.values()):
            name = chance.choice(list(rest))
            size = chance.randrange(1, 900)
            logs.write(name, rest[name][:size])
            rest[name] = rest[name][size:]
            time.sleep(0.005)
        run.end()
    code, lines, err = following.end()
    assert (code, err) == (0, "podrun: done\n")
    assert lines[0] == b"host-0 | before"
    for name, texts in wanted.items():
        mine = [line for line in lines[1:] if line.startswith(f"{name} | ".encode())]
        assert mine == [f"{name} | ".encode() + text for text in texts]
    assert len(lines) == 801


def test_following_begins_with_the_last_lines(make: Make, follow: Callable[..., Following]) -> None:
    """As many as -n says; the run has ended already."""
    run = make("20260101-000001-aaaa")
    run.log("host-0", b"".join(b"%d\n" % n for n in range(100)))
    run.end(0)
    assert follow("-n", "2").end() == (0, [b"host-0 | 98", b"host-0 | 99"], "podrun: done\n")
    assert len(follow().end()[1]) == 20


def test_ctrl_c_ends_following_quietly(make: Make, follow: Callable[..., Following]) -> None:
    """130, and not a word; the run goes on."""
    run = make("20260101-000001-aaaa")
    run.log("host-0", b"hello\n")
    with run.directory.supervise():
        following = follow()
        assert following.first.wait(30)
        following.process.send_signal(signal.SIGINT)
        assert following.end() == (130, [b"host-0 | hello"], "")


def test_following_notices_that_nobody_supervises_the_run_any_more(
    make: Make, follow: Callable[..., Following]
) -> None:
    """Nothing will come: it says so, and what to do, instead of waiting for ever."""
    run = make("20260101-000001-aaaa")
    run.log("host-0", b"hello\n")
    with run.directory.supervise():
        following = follow()
        assert following.first.wait(30)
    code, lines, err = following.end()
    assert (code, lines) == (69, [b"host-0 | hello"])
    assert "its launcher is gone" in err and f"`podrun attach {run.id}`" in err


def test_the_index_of_a_log_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark a second at most, however much is printed; none while nothing is."""
    clock = [1000.0]
    monkeypatch.setattr("podrun.launcher.rundir.logs.time.time", lambda: clock[0])
    with Logs(tmp_path) as logs:
        for moment in (1000.0, 1000.4, 1000.9, 1001.5, 1009.0, 1009.1):
            clock[0] = moment
            for _ in range(50):
                logs.write("h", b"line\n")
    assert index_path(tmp_path, "h").read_text() == "1000.000 0\n1001.500 750\n1009.000 1000\n"
    file = LogFile("h", "h", log_path(tmp_path, "h"), index_path(tmp_path, "h"))
    assert [since_offset(file, t) for t in (0, 1000.5, 1001.2, 1003, 1009.5, 1011)] == [0, 0, 750, 1000, 1000, 1500]


# --- exec -------------------------------------------------------------------------------------------------------------

HERE = ("--simulate", "--slice", "cpu-3x1")


def live(mark: str) -> list[str]:
    """Command lines of live processes with `mark` in them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in text and int(folder.name) != os.getpid():
            found.append(text)
    return found


def gone(mark: str, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while live(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not live(mark)


def test_exec_shows_equal_outputs_once(podrun: Podrun) -> None:
    """The header names the hosts; arguments arrive as they are."""
    words = ["a  b", "$HOME", "*", "q'uote", 'd"ouble', "back\\slash", "new\nline", "", "-x", "ümläut", "~/x", ";"]
    code = "import sys; print(sys.argv[1:])"
    done = podrun("exec", *HERE, "--", sys.executable, "-c", code, *words)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"--- host-[0-2] (3 hosts)\n{words}\n"


def test_exec_ends_with_the_largest_code(podrun: Podrun, tmp_path: Path) -> None:
    """Hosts that differ are shown apart, and those that failed are named last."""
    once = f"mkdir {tmp_path}/once 2>/dev/null && {{ echo odd; exit 3; }}; echo even"
    done = podrun("exec", *HERE, "--", "sh", "-c", once)
    odd = re.search(r"--- (host-\d): exit code 3\nodd\n", done.out)
    assert done.code == 3 and odd and "(2 hosts)\neven\n" in done.out
    assert done.err == f"podrun: {odd[1]}: exit code 3\n"
    killed = podrun("exec", *HERE, "--json", "--", "sh", "-c", "echo last words; kill -9 $$")
    assert killed.code == killed.json["code"] == 137
    assert killed.json["hosts"]["host-1"] == {"code": 137, "output": "last words\n", "left_out": 0, "error": None}


def test_exec_of_what_is_not_there(podrun: Podrun) -> None:
    """As a shell would say it."""
    done = podrun("exec", *HERE, "--", "no-such-command", "-x")
    assert done.code == 127
    assert "podrun: cannot start no-such-command: No such file or directory" in done.out
    assert "exit code 127" in done.err


def test_exec_leaves_nothing_after_its_timeout(podrun: Podrun) -> None:
    """The command is killed with what it started, also in a session of its own."""
    done = podrun("exec", *HERE, "--timeout", "1", "--", "sh", "-c", "echo begun; setsid sleep 4711.1 & sleep 4711.1")
    assert done.code == 124
    assert "(3 hosts)\nbegun\n" in done.out
    assert done.err == "podrun: host-[0-2]: was killed after 1 s (--timeout)\n"
    assert gone("sleep 4711.1")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_exec_leaves_nothing_when_it_is_ended(sandbox: Sandbox, number: int) -> None:
    """By Ctrl-C, and also when podrun itself is killed and cannot tell anybody."""
    mark = f"sleep 4712.{number}"
    command = [*sandbox.command, "exec", *HERE, "--", "sh", "-c", f"{mark} & {mark}"]
    process = subprocess.Popen(command, env=sandbox.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while sum(text.startswith("sleep") for text in live(mark)) < 6 and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert gone(mark)
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        assert err == (
            "podrun: killing it on host-0, host-1, host-2\npodrun: host-[0-2]: was killed when you interrupted podrun\n"
        )


def test_exec_does_not_wait_for_what_is_left_in_the_background(podrun: Podrun) -> None:
    """A server that a command starts stays, though it holds the command's output."""
    done = podrun("exec", "--simulate", "-s", "cpu-1x1", "--", "sh", "-c", "sleep 4713.1 & echo $!")
    pid = int(done.out.splitlines()[1])
    assert live("sleep 4713.1")
    os.kill(pid, signal.SIGKILL)


def test_exec_keeps_the_ends_of_much_output(podrun: Podrun) -> None:
    """The command is not held up, and it is said how much is missing."""
    code = "import sys; [sys.stdout.write('%09d\\n' % n) for n in range(500000)]"
    found = podrun("exec", "--simulate", "-s", "cpu-1x1", "--json", "--", sys.executable, "-c", code).json
    row = found["hosts"]["host-0"]
    assert row["code"] == 0 and row["left_out"] == 5_000_000 - (1 << 20)
    assert row["output"].startswith("000000000\n") and row["output"].endswith("000499999\n")
    assert f"... {row['left_out']} bytes are left out here ..." in row["output"]


def test_exec_gives_no_input(podrun: Podrun) -> None:
    """A command that asks something gets the end of its input."""
    done = podrun("exec", "--simulate", "-s", "cpu-1x1", "--", "cat")
    assert (done.code, done.out) == (0, "--- host-0: no output\n")


def test_exec_names_hosts_that_it_cannot_reach(podrun: Podrun, tmp_path: Path) -> None:
    """69, and the others have run it: here nobody can be reached."""
    (tmp_path / "known_hosts").touch()
    pod = tmp_path / "pod.yaml"
    pod.write_text("hosts: [127.0.0.1]\nssh: {port: 1, known_hosts: known_hosts}\n")
    done = podrun("exec", "--pod", str(pod), "--", "true")
    assert (done.code, done.out) == (69, "")
    assert done.err.startswith("podrun: 127.0.0.1: ") and "refused" in done.err


def test_exec_on_the_hosts_of_a_run(podrun: Podrun, make: Make) -> None:
    """--run takes the pod from the run's record."""
    make("20260101-000001-aaaa")
    assert podrun("exec", "--run", "aaaa", "--", "echo", "hi").out == "--- host-[0-1] (2 hosts)\nhi\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["exec", "--", "ls"], "no hosts: say which, for example podrun exec --pod pod.yaml"),
        (["exec", *HERE], "no command: write it after `--`"),
        (["exec", *HERE, "ls"], "no command: write it after `--`"),
        (["exec", "--run", "zzzz", "--", "ls"], "there are no runs in"),
        (["exec", "--run", "zzzz", *HERE, "--", "ls"], "a run names its hosts already"),
        (["exec", "--simulate", "--", "ls"], "no slice"),
        (["exec", "--hosts", "a,b", "--timeout", "0", "--", "ls"], "0.0 is not in the range"),
        (["ssh", "x"], "no hosts: say which, for example podrun ssh"),
        (["ssh", *HERE, "host-0"], "processes on this machine: there is nothing to log in to"),
        (["ssh", "--hosts", "tpu-[0-3]", "gpu-1"], "there is no host 'gpu-1'; the pod has tpu-[0-3]"),
        (["logs", "--since", "yesterday"], "--since yesterday: that is no time; write how long ago"),
        (["clean", "--older-than", "7"], "--older-than 7: that is no duration; write for example 90s"),
        (["clean", "zzzz"], "there are no runs in"),
        (["clean", "zzzz", *HERE], "a run names its hosts already"),
    ],
)
def test_mistakes(podrun: Podrun, args: list[str], message: str) -> None:
    """What is wrong, and what to write instead; never a traceback."""
    done = podrun(*args)
    assert done.code == 2
    assert done.err.startswith("podrun: ") and message in done.err
    assert "Traceback" not in done.err


# --- ssh --------------------------------------------------------------------------------------------------------------


def test_ssh_goes_the_way_that_podrun_goes() -> None:
    """User, port, key, jump host and known_hosts of the pod; what an address says goes first."""
    host = Host("tpu-0", "10.0.0.5")
    pod = Pod(parse_slice("cpu-1x1"), (host,), "ssh", "cpu")
    assert ssh_command(pod, host, [], terminal=True) == ["ssh", "--", "10.0.0.5"]
    ssh = Ssh("me", 2222, Path("/k"), "jump.example", Path("/kh"), "accept-new", Path("/cfg"))
    command = " ".join(ssh_command(replace(pod, ssh=ssh), host, [], terminal=True))
    assert command == (
        "ssh -F /cfg -l me -p 2222 -i /k -J jump.example "
        "-o UserKnownHostsFile=/kh -o StrictHostKeyChecking=accept-new -- 10.0.0.5"
    )
    other = Host("tpu-0", "you@[fe80::1]:22")
    assert ssh_command(replace(pod, ssh=ssh), other, [], terminal=True)[3:7] == ["-l", "you", "-p", "22"]
    assert ssh_command(pod, other, [], terminal=True)[-1] == "fe80::1"
    assert ssh_command(pod, host, ["echo", "a  b"], terminal=False) == ["ssh", "--", "10.0.0.5", "exec 'echo' 'a  b'"]
    assert "-t" in ssh_command(pod, host, ["htop"], terminal=True)


def test_the_host_of_ssh(make: Make) -> None:
    """By name, address, a beginning that only one has, or the id of a process; a name goes first."""
    hosts = (Host("tpu-1", "10.0.0.1"), Host("tpu-10", "10.0.0.2"), Host("head", "10.0.0.3"), Host("0", "10.0.0.4"))
    pod = Pod(parse_slice("cpu-4x1"), hosts, "ssh", "cpu")
    found = {text: find_host(pod, text, None).name for text in ("tpu-1", "tpu-10", "h", "10.0.0.3", "0", "1")}
    assert list(found.values()) == ["tpu-1", "tpu-10", "head", "head", "0", "tpu-10"]
    with pytest.raises(UserError, match=r"'tpu' is the beginning of 2 hosts: tpu-\[1,10\]"):
        find_host(pod, "tpu", None)
    with pytest.raises(UserError, match="there is no host '7'"):
        find_host(pod, "7", None)
    run = make("20260101-000001-aaaa", hosts={"tpu-1": [0, 1], "tpu-10": [2, 3], "head": [4, 5], "0": [6, 7]})
    assert find_host(pod, "5", run.directory).name == "head"


def test_ssh_is_openssh(sandbox: Sandbox) -> None:
    """podrun becomes ssh: its terminal, its exit code."""
    fake = sandbox.path / "bin" / "ssh"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$@"\nexit 42\n')
    fake.chmod(0o755)
    env = {**sandbox.env, "PATH": f"{fake.parent}:{os.environ['PATH']}"}
    command = [*sandbox.command, "ssh", "--hosts", "tpu-[0-3]", "2", "--", "ls", "-l"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (42, "-- tpu-2 exec 'ls' '-l'\n")


# --- clean ------------------------------------------------------------------------------------------------------------


def test_clean_removes_old_runs_that_ended(podrun: Podrun, make: Make) -> None:
    """Nothing young, nothing that goes on, nothing whose agents may still live."""
    make("20260101-000001-old0", age=10 * DAY).end()
    make("20260101-000002-fail", age=8 * DAY).end(1, "host-0")
    make("20260101-000003-late", age=2 * DAY).end()
    left = make("20260101-000004-left", age=8 * DAY)
    young = make("20260101-000005-youn", age=2 * HOUR)
    run = make("20260101-000006-runs", age=30 * DAY)
    with run.directory.supervise():
        listed = podrun("clean", "--dry-run")
        assert [line.split("/")[-1][-4:] for line in listed.out.splitlines()] == ["left", "fail", "old0"]
        assert len(podrun("ps", "--all", "--json").json) == 6
        refused = podrun("clean")
        assert refused.code == 2 and "remove 3 runs here" in refused.err and "say --yes" in refused.err
        assert podrun("clean", "--yes").out.endswith("removed 3 runs here\n")
        assert not left.directory.path.exists()
        assert podrun("clean", "--yes").out.startswith("nothing to remove of runs that ended more than 7d ago")
        assert podrun("clean", "--older-than", "0", "--yes").out.endswith("removed 1 run here\n")
        assert [row["run"][-4:] for row in podrun("ps", "--json").json] == ["runs", "youn"]
    assert young.directory.path.exists()


def test_clean_of_one_run(podrun: Podrun, make: Make) -> None:
    """At any age, but not while it goes on."""
    run = make("20260101-000001-aaaa")
    with run.directory.supervise():
        refused = podrun("clean", "aaaa", "--yes")
        assert refused.code == 2 and f"is running; `podrun stop {run.id}` ends it" in refused.err
    assert "only its launcher is gone" in podrun("clean", "aaaa", "--yes").err
    run.end()
    assert podrun("clean", "aaaa", "--yes").code == 0
    assert list(run.directory.path.parent.iterdir()) == []


@pytest.fixture
def sleeper() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: str, **env: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", "import time; time.sleep(600)", *args]
        started.append(subprocess.Popen(command, env={**os.environ, **env}))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_clean_ends_what_a_run_has_left_on_its_hosts(
    podrun: Podrun, make: Make, sleeper: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """Processes and folders of this run alone, and none as long as an agent of it lives."""
    run = make("20260101-000001-aaaa")
    run.end()
    folder = run.directory.path / "hosts" / "host-1.0"
    folder.mkdir(parents=True)
    (folder / "1.out").write_text("never fetched")
    ours = sleeper(PODRUN_RUN_ID=run.id, PODRUN_HOST="host-1")
    others = [
        sleeper(PODRUN_RUN_ID="20260101-000001-bbbb", PODRUN_HOST="host-1"),
        sleeper(PODRUN_RUN_ID=run.id, PODRUN_HOST="host-7"),
        sleeper(PODRUN_HOST="host-1"),
    ]
    agent = sleeper("agent.pyz", "run", run.id)
    time.sleep(0.2)
    looked = podrun("clean", "aaaa", "--dry-run")
    assert "process" not in looked.out and "folder" not in looked.out
    agent.kill()
    agent.wait()
    looked = podrun("clean", "aaaa", "--dry-run")
    assert f"{ours.pid} of run {run.id}" in looked.out and str(folder) in looked.out and ours.poll() is None
    refused = podrun("clean", "aaaa")
    assert (
        "1 run here" in refused.err and "1 folder (13 bytes)" in refused.err and "1 process, by SIGKILL" in refused.err
    )
    done = podrun("clean", "aaaa", "--yes")
    assert done.code == 0 and "removed 1 folder, 1 process on the hosts" in done.out
    assert ours.wait(10) == -signal.SIGKILL
    assert [process.poll() for process in others] == [None] * 3
    assert not run.directory.path.exists()


# --- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["tpu-0", "tpu-1", "tpu-2", "tpu-7", "head"], "tpu-[0-2,7],head"),
        (["n08", "n09", "n10"], "n[08-10]"),
        (["n9", "n10"], "n[9-10]"),
        (["10.0.0.5", "10.0.0.6"], "10.0.0.[5-6]"),
        (["a1.x.org", "a2.x.org", "a2.y.org"], "a[1-2].x.org,a2.y.org"),
        (["h-1-w0", "h-1-w1"], "h-1-w[0-1]"),
        (["fe80::1", "x"], "fe80::1,x"),
        ([], ""),
    ],
)
def test_fold(names: list[str], folded: str) -> None:
    """What people would write; `expand` reads it again."""
    assert fold(names) == folded
    if not any(":" in name for name in names):
        assert [host for entry in split_hosts(folded) for host in expand(entry)] == names


def test_fold_and_expand_agree() -> None:
    """For any names."""
    chance = random.Random(2)
    for _ in range(300):
        names = {f"{chance.choice('ab')}{chance.randrange(12):0{chance.choice([1, 1, 2])}}" for _ in range(6)}
        again = [host for entry in split_hosts(fold(names)) for host in expand(entry)]
        assert sorted(again) == sorted(names)


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("90s", 90), ("10m", 600), ("1h30m", 5400), ("7d", 7 * DAY), ("1.5h", 5400)]
)
def test_durations(text: str, seconds: float) -> None:
    """As people write them."""
    assert parse_duration(text, "--x") == seconds
    assert parse_since(text if text != "0" else "0s", "--x") == pytest.approx(time.time() - seconds, abs=5)


def test_times() -> None:
    """A time of today, a date, or both; what is none is refused."""
    assert time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(parse_since("9:05", "--x"))) == time.strftime(
        "%Y-%m-%d 09:05:00"
    )
    assert time.strftime("%Y-%m-%d %H:%M", time.localtime(parse_since("2026-01-31T10:30", "--x"))) == "2026-01-31 10:30"
    for text in ("", "soon", "10", "2026-13-01", "10x", "-5m"):
        with pytest.raises(UserError, match="--x"):
            parse_since(text, "--x")


def test_numbers_for_people() -> None:
    """Short ones."""
    assert [duration(s) for s in (0, 59.9, 60, 3599, 3600, 86399, 86400)] == [
        "0s", "59s", "1m 00s", "59m 59s", "1h 00m", "23h 59m", "1d 00h",
    ]  # fmt: skip
    assert [size_text(n) for n in (0, 999, 1000, 999_600, 12_345_678)] == [
        "0 bytes",
        "999 bytes",
        "1 kB",
        "1 MB",
        "12.3 MB",
    ]


def test_the_end_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backwards is forwards the other way round, wherever blocks end."""
    monkeypatch.setattr(backwards, "_BLOCK", 7)
    chance = random.Random(3)
    path = tmp_path / "file"
    for _ in range(500):
        data = bytes(chance.choice(b"ab\n") for _ in range(chance.randrange(40)))
        path.write_bytes(data)
        assert list(backwards.lines_backwards(path)) == data.split(b"\n")[:-1][::-1]
        for lines in range(4):
            wanted = b"".join(data.splitlines(True)[-lines:]) if lines else b""
            assert data[backwards.tail_offset(path, lines, len(data)) :] == wanted
        at = chance.randrange(len(data) + 1)
        assert backwards.line_offset(path, at) == data.rfind(b"\n", 0, at) + 1
    assert list(backwards.lines_backwards(tmp_path / "none")) == []

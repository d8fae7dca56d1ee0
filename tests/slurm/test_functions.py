"""`podrun.submit` and `podrun.launch(slurm=...)`: functions and runs from Python as jobs of a real SLURM."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from podrun.launcher.run.policy import QUICK

from ..conftest import make_sandbox
from ..hosts import wait_until
from .cluster import Cluster
from .conftest import LoginNode

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

WORK = """\
import os, sys, time

class Odd(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")

def add(a, b=1):
    return a + b, os.environ["PODRUN_PROCESS_ID"], os.environ["PODRUN_HOST"]

def fail(number):
    if os.environ["PODRUN_PROCESS_ID"] == str(number):
        raise KeyError("boom")
    time.sleep(100)

def odd():
    raise Odd(1, 2)

def leave():
    sys.exit(0)

def lock():
    import threading
    return threading.Lock()

def wait(path):
    open(path, "a").write("begun\\n")
    time.sleep(1000)

def once(path):
    path += os.environ["PODRUN_PROCESS_ID"]
    with open(path, "a") as file:
        file.write("begun\\n")
    if len(open(path).readlines()) == 1:
        time.sleep(1000)
    return "second"
"""
PRELUDE = """\
import json, sys, podrun, work
OPTIONS = dict(slurm="time=10,signal=30", slice="cpu-1x1")
"""


class Python(LoginNode):
    """Python programs on the machine that is no node."""

    def start(self, text: str) -> subprocess.Popen[str]:  # type: ignore[override]
        (self.path / "work.py").write_text(WORK)
        (self.path / "program.py").write_text(PRELUDE + text)
        return subprocess.Popen(
            [*self.cluster.hosts.prefix, sys.executable, "program.py"],
            cwd=self.path,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def python(self, text: str) -> str:
        """Runs a program, and returns what it prints."""
        process = self.start(text)
        output, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        return output


@pytest.fixture
def python(login: LoginNode) -> Python:
    return Python(login.path, login.cluster)


def test_results_and_exceptions(python: Python) -> None:
    """One program submits them all at once, and asks for each."""
    text = """
def mine(x):
    return x * 3

add = podrun.submit(work.add, 2, slurm="time=10,signal=30", slice="cpu-2x1")
try:
    add.result(timeout=0)
except TimeoutError as error:
    print(json.dumps(str(error)))
calls = dict(
    add=add,
    mine=podrun.submit(mine, 5, **OPTIONS),
    fail=podrun.submit(work.fail, 1, slurm="time=10,signal=30", slice="cpu-2x1"),
    odd=podrun.submit(work.odd, **OPTIONS),
    leave=podrun.submit(work.leave, **OPTIONS),
    lock=podrun.submit(work.lock, **OPTIONS),
)
print(json.dumps([calls["add"].results(), calls["mine"].result(), calls["mine"].exception(), calls["mine"].done()]))
for name in ("fail", "odd", "leave", "lock"):
    error = calls[name].exception()
    print(json.dumps([type(error).__name__, str(error), str(error.__cause__)]))
print(json.dumps([call.job_id for call in calls.values()]))
"""
    late, good, failed, odd, left, lock, jobs = map(json.loads, python.python(text).splitlines())
    assert "has not ended after 0 s" in late
    results, mine, error, done = good
    assert [(total, process) for total, process, _ in results] == [(3, "0"), (3, "1")]
    assert len({host for _, _, host in results}) == 2
    assert (mine, error, done) == (15, None, True)
    assert failed[:2] == ["KeyError", "'boom'"]
    assert "In process 1 on h" in failed[2] and 'raise KeyError("boom")' in failed[2], failed[2]
    assert "function_call.py" not in failed[2]
    assert odd[:2] == ["FunctionError", "Odd: 1 and 2"] and "raise Odd(1, 2)" in odd[2]
    assert left[:2] == ["FunctionError", "the function has called sys.exit(0)"]
    assert lock[0] == "FunctionError" and "the result of lock, a lock, cannot be pickled: TypeError" in lock[1]
    assert len({*jobs}) == 6 and all(job.isdecimal() for job in jobs)
    rows = json.loads(python.podrun("ps", "--all", "--json").stdout)
    assert {row["name"] for row in rows} == {"add", "mine", "fail", "odd", "leave", "lock"}
    python.wait_until_gone()


def test_a_call_outlives_its_program(python: Python) -> None:
    """Another process gets the result; cancelled and lost calls say so; a stopped one leaves no process."""
    marks = [python.path / name for name in ("first", "second")]
    text = f"""
calls = [podrun.submit(work.wait, path, **OPTIONS) for path in {[str(mark) for mark in marks]}]
print(json.dumps([call.run_id for call in calls]), flush=True)
sys.stdin.read()
"""
    program = python.start(text)
    assert program.stdout
    runs = json.loads(program.stdout.readline())
    wait_until(lambda: all(mark.exists() for mark in marks), "both calls", 60)
    program.kill()
    program.wait()
    python.cluster.ask("scancel", python.job_of(runs[1]))
    text = f"""
from concurrent.futures import CancelledError
first, second = (podrun.submitted(run) for run in {runs})
print(first.done(), first.cancel(), first.done(), first.cancelled())
try:
    first.result()
except CancelledError as error:
    print("cancelled")
error = second.exception()
print(type(error).__name__, error.code, error)
try:
    podrun.submitted("nothing")
except podrun.LaunchError as error:
    print(error)
"""
    states, cancelled, lost, unknown = python.python(text).splitlines()
    assert states == "False True True True" and cancelled == "cancelled"
    assert lost.startswith("LaunchError ") and "was cancelled" in lost, lost
    assert "there is no run 'nothing'" in unknown
    python.wait_until_gone()


def test_a_call_on_a_node_that_is_set_down_is_made_again(python: Python) -> None:
    """SLURM requeues the job; the future waits for the second call."""
    marks = [python.path / f"mark{process}" for process in range(2)]
    text = f"""
call = podrun.submit(work.once, {str(python.path / "mark")!r}, slurm="time=10,signal=30,exclusive", slice="cpu-2x1")
print(call.run_id, flush=True)
print(call.results())
"""
    program = python.start(text)
    assert program.stdout
    run = program.stdout.readline().strip()
    wait_until(lambda: all(mark.exists() for mark in marks), "the first call", 60)
    lost = list(next(e["hosts"] for e in python.events(run) if e["event"] == "start"))[1]
    python.cluster.ask("scontrol", "update", f"nodename={lost}", "state=down", "reason=fan")
    wait_until(lambda: python.status(run)["state"] == "pending", f"{run} to be back in the queue", 60)
    python.cluster.hosts.run(["scontrol", "update", f"nodename={lost}", "state=resume"], env=python.cluster.env)
    python.hurry(run)
    output, errors = program.communicate(timeout=240)
    assert output == "['second', 'second']\n", errors
    assert [mark.read_text() for mark in marks] == ["begun\n" * 2] * 2
    python.wait_until_gone()


def test_a_call_on_a_node_that_crashes_is_made_again(tmp_path: Path) -> None:
    """podrun notices it before SLURM does, and has the job requeued without the node."""
    cluster = Cluster("SlurmdTimeout=60\n")
    python = Python(make_sandbox(tmp_path).path, cluster)
    try:
        mark = python.path / "mark"
        text = f"""
call = podrun.submit(work.once, {str(mark)!r}, slurm="time=10,signal=30,exclusive", slice="cpu-2x1")
print(call.run_id, flush=True)
print(call.results())
"""
        program = python.start(text)
        assert program.stdout
        run = program.stdout.readline().strip()
        wait_until(lambda: all(Path(f"{mark}{process}").exists() for process in range(2)), "the first call", 60)
        begun = time.monotonic()
        wait_until(lambda: time.monotonic() - begun > QUICK + 3, "a call that lasts", 60)  # a quick one may crash nodes
        lost = list(next(e["hosts"] for e in python.events(run) if e["event"] == "start"))[1]
        cluster.hosts.cut(lost)
        cluster.hosts.kill(lost)
        output, errors = program.communicate(timeout=400)
        assert output == "['second', 'second']\n", errors
        starts = [list(e["hosts"]) for e in python.events(run) if e["event"] == "start"]
        assert len(starts) == 2 and lost not in starts[1]
    finally:
        python.close()
        cluster.close()


SLOW = """\
#!/bin/sh
{sbatch} "$@"
touch {path}/submitted
sleep 2
"""


def test_ctrl_c_in_submit(python: Python) -> None:
    """The job is taken out of the queue, and nothing of the call is left."""
    sbatch = python.path / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(SLOW.format(sbatch=shutil.which("sbatch", path=python.env["PATH"]), path=python.path))
    sbatch.chmod(0o755)
    text = f"""
import os
os.environ["PATH"] = {str(sbatch.parent)!r} + ":" + os.environ["PATH"]
try:
    podrun.submit(work.add, 1, slurm="time=10,hold", slice="cpu-1x1")
except KeyboardInterrupt:
    print("interrupted")
"""
    program = python.start(text)
    wait_until((python.path / "submitted").exists, "the job")
    assert python.cluster.jobs()
    for _ in range(5):  # the first ends the call, the others do not end the cleanup
        program.send_signal(signal.SIGINT)
    output, errors = program.communicate(timeout=60)
    assert (program.returncode, output) == (0, "interrupted\n"), errors
    assert not python.cluster.jobs()
    assert not any((python.path / "home" / "functions").iterdir())


def test_mistakes_leave_nothing(python: Python) -> None:
    text = """
def attempt(what):
    try:
        what()
    except Exception as error:
        print(type(error).__name__, str(error).replace(chr(10), " "))

attempt(lambda: podrun.submit(work.add, 1))
attempt(lambda: podrun.submit(work.add, 1, slurm=""))
attempt(lambda: podrun.submit(work.add, work.lock(), **OPTIONS))
attempt(lambda: podrun.submit(work.add, 1, slurm="partition=nope", slice="cpu-1x1"))
attempt(lambda: podrun.submit(work.add, 1, slurm="time=10,array=1-4", slice="cpu-1x1"))
attempt(lambda: podrun.launch(program=["python", "work.py"], slurm="time=10", simulate=True))
sys.modules["cloudpickle"] = None
attempt(lambda: podrun.submit(lambda: 1, **OPTIONS))
attempt(lambda: podrun.submit(attempt, **OPTIONS))
"""
    lines = python.python(text).splitlines()
    assert [line.partition(" ")[0] for line in lines] == [
        *["ValueError"] * 2,
        "TypeError",
        *["LaunchError"] * 2,
        "ValueError",
        *["TypeError"] * 2,
    ]
    for line, words in zip(
        lines,
        (
            "give one of slurm, hosts='local' and simulate=True",
            "slurm='partition=gpu,time=2:00:00'",
            "add and its arguments cannot be pickled: TypeError",
            "`sinfo --summarize` lists the partitions",
            "--slurm: array",
            "excludes hosts and simulate",
            "pip install cloudpickle",
            "attempt is defined in the program itself",
        ),
        strict=True,
    ):
        assert words in line, line
    assert not any((python.path / "home" / "functions").iterdir())
    assert json.loads(python.podrun("ps", "--all", "--json").stdout) == []


def test_runs_from_python(python: Python) -> None:
    """`launch(slurm=...)` follows a run of a train.yaml, and stops one in the queue."""
    text = f"""
place = {str(python.path / "shared")!r}
run = podrun.launch("small.yaml", slice="cpu-2x1", slurm="time=10,signal=30", workdir=place, overrides={{"steps": 4}})
held = podrun.launch(program=["python", "work.py"], slice="cpu-1x1", slurm="time=10,hold", name="held")
print(run.wait(), run.is_running, [row["step"] for row in run.metrics() if row["kind"] == "train"])
print(held.is_running, held.stop(), held.is_running, held.wait())
"""
    first, second = python.python(text).splitlines()
    assert first == "0 False [1, 2, 3, 4]"
    assert second == "True 143 False 143"
    python.wait_until_gone()

"""End a run in which a process is stuck with exit code 77: it is named, and the stacks of all are in the logs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import Sandbox
from .conftest import Run, kill, processes_of

Start = Callable[..., Run]
SPY = shutil.which("py-spy", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
POD = ("--simulate", "--slice", "cpu-2x1", "small.yaml", "steps=10000000", "launch.stall_timeout=8")


def logs_of(run: Run) -> dict[str, str]:
    """Return the logs of all processes by name."""
    return {path.stem: path.read_text() for path in Path(run.of("start")[-1]["logs"]).glob("*.log")}


def assert_reported(run: Run, sandbox: Sandbox, what: str) -> None:
    assert run.end(timeout=300) == 77, run.stderr
    assert re.match(what, run.last_line), run.last_line
    for name, text in logs_of(run).items():
        assert "most recent call first" in text, name
    assert processes_of(sandbox) == {}


def test_stopped_process(start: Start, sandbox: Sandbox) -> None:
    """SIGSTOP of a worker: it is named, not the one that waits for it, and goes on to print its stacks."""
    run = start(*POD)
    run.wait_for_step(3)
    kill(run.worker(1), signal.SIGSTOP)
    assert_reported(
        run,
        sandbox,
        r"failed: host-1 \(process 1\): no progress for \d+ s in phase train after step \d+: it is stopped "
        r"\(SIGSTOP, or a debugger\) \(limit: .* launch.stall_timeout",
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("data={name: 'faulty:dataset', options: {process: 0, step: 4, action: loop}}",), r"train after step \d: "),
        (
            ("--inject", "hang:process=1@phase=evaluate", "eval.every=3", "launch.stall_timeout=3"),
            r"evaluate after step 3: it has stopped there, while host-0 \(process 0\) has come further in this phase",
        ),
    ],
    ids=["loop", "evaluation"],
)
def test_hang(start: Start, sandbox: Sandbox, options: tuple[str, ...], what: str) -> None:
    """An endless loop, and an evaluation that one process never begins."""
    host = 0 if "loop" in options[0] else 1
    run = start(*POD, *options)
    assert_reported(run, sandbox, rf"failed: host-{host} \(process {host}\): no progress for \d+ s in phase {what}")


@pytest.mark.long
def test_a_lock(start: Start, sandbox: Sandbox) -> None:
    """The logs also have what each thread does below Python, if py-spy is installed."""
    run = start(*POD, "--inject", "hang:process=1@step=4")
    assert_reported(
        run,
        sandbox,
        r"failed: host-1 \(process 1\): no progress for \d+ s in phase train after step 3: it has stopped before step 4, "
        r"to which host-0 \(pro",
    )
    for name, text in logs_of(run).items() if SPY else ():
        _, spied = text.split("Python v", 1)  # the first line of py-spy, after the process and its command
        assert re.search(r"^Thread .*MainThread", spied, re.MULTILINE), name
        assert re.search(r"^ +\S+ \(.*\.so", spied, re.MULTILINE), name


@pytest.mark.long
def test_silent_program(start: Start, sandbox: Sandbox) -> None:
    """A user program is stuck when it prints nothing for as long as it was given, and not before."""
    program = "import time; [print(i, flush=True) or time.sleep(0.5) for i in range(8)]; time.sleep(600)"
    run = start("--simulate", "--slice", "cpu-1x1", "launch.stall_timeout=3", "--", "python", "-c", program)
    assert run.end() == 77, run.stderr
    assert run.last_line.startswith("failed: host-0 (process 0): no progress for"), run.last_line
    assert "7" in logs_of(run)["host-0"].split()
    assert processes_of(sandbox) == {}

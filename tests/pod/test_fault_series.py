"""Random faults while all processes print without end and connections drop: the cause is right, and every line is there.

PODRUN_FAULT_RUNS=40 makes more runs of it, PODRUN_FAULT_SEED=N begins with another seed. A failed test names its seed.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from ..conftest import Sandbox
from .conftest import Run, kill, kill_if_alive, processes_of, relays_of

RUNS = int(os.environ.get("PODRUN_FAULT_RUNS", "6"))
FIRST = int(os.environ.get("PODRUN_FAULT_SEED", "1"))
HOSTS = 2


@dataclass(frozen=True)
class Fault:
    """Something that breaks in one process or its host, and how podrun must put it."""

    name: str
    code: int
    cause: str
    """Pattern of the last line after `failed: `; {p} is the process."""


FAULTS = (
    Fault("kill the worker", 137, r"host-{p} \(process {p}\): was ended by SIGKILL"),
    Fault("kill the agent", 69, r"host-{p}: its agent is gone"),
    Fault("kill the host", 69, r"host-{p}: its agent is gone"),
    Fault("SIGTERM", 75, r"host-{p} \(process {p}\): was asked to stop from outside"),
    Fault("abort", 134, r"host-{p} \(process {p}\): was ended by SIGABRT"),
    Fault("segv", 139, r"host-{p} \(process {p}\): was ended by SIGSEGV"),
    Fault("raise", 1, r"host-{p} \(process {p}\): RuntimeError: the disk of my dreams is broken"),
    Fault("exit7", 7, r"host-{p} \(process {p}\): SystemExit: 7"),
    Fault("exit256", 1, r"host-{p} \(process {p}\): SystemExit: 256"),
    Fault("leave", 1, r"host-{p} \(process {p}\): exited with code 0"),
    Fault("stop the launcher", 69, r"the launcher: was asleep for \d+ s"),
)


def cause(sandbox: Sandbox, run: Run, fault: Fault, process: int) -> None:
    """Make it happen."""
    agent, worker = run.agent(f"host-{process}"), run.worker(process)
    if fault.name == "kill the worker":
        kill(worker)
    elif fault.name == "kill the agent":
        kill(agent)
    elif fault.name == "kill the host":
        mark = f"PODRUN_HOST=host-{process}".encode()
        ours = [p for p in processes_of(sandbox) if mark in _environ(p)]
        for pid in (agent, *ours):  # the agent first, so that it has no time to tell
            kill_if_alive(pid)
    elif fault.name == "SIGTERM":
        kill(worker, signal.SIGTERM)
    elif fault.name == "stop the launcher":
        run.sleep_until_hosts_give_up()
    else:
        order = sandbox.path / "order"
        order.write_text(fault.name)
        order.rename(sandbox.path / f"misbehave-{process}")


def check_lines(sandbox: Sandbox, run: Run) -> int:
    """Every line that a process has written is in its log, once and in order. Returns how many there are."""
    total = 0
    for process in range(HOSTS):
        log = Path(run.of("start")[0]["logs"]) / f"host-{process}.log"
        numbers = [int(n) for n in re.findall(rb"<%d (\d+) x{200}>\n" % process, log.read_bytes())]
        written = int.from_bytes((sandbox.path / f"written-{process}").read_bytes(), "little")
        assert numbers == list(range(len(numbers))), f"lines of process {process} are missing or come twice"
        assert len(numbers) >= written, f"{written - len(numbers)} of {written} lines of process {process} are missing"
        total += len(numbers)
    return total


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(FIRST, FIRST + RUNS))
def test_fault_under_heavy_output(start: Callable[..., Run], sandbox: Sandbox, seed: int) -> None:
    """The true host, process and code come first, no line is lost, and nothing is left."""
    chance = random.Random(seed)
    fault, process = FAULTS[seed % len(FAULTS)], chance.randrange(HOSTS)
    drops = chance.randrange(3)
    print(f"seed {seed}: {fault.name}, process {process}, {drops} dropped connections")
    shutil.copy(Path(__file__).with_name("noisy.py"), sandbox.path)
    data = f"data={{name: 'noisy:dataset', options: {{folder: '{sandbox.path}'}}}}"
    run = start("--simulate", "--slice", f"cpu-{HOSTS}x1", "small.yaml", "steps=10000000", "eval.every=0", data)
    run.wait_for_step(chance.randrange(5, 40))
    for _ in range(drops):
        for pid in chance.sample(connected := sorted(relays_of(sandbox, run, HOSTS)), min(1, len(connected))):
            kill_if_alive(pid)
            print(f"seed {seed}: ended relay {pid}")
        time.sleep(chance.uniform(0.0, 1.5))
    cause(sandbox, run, fault, process)
    assert run.end(timeout=120) == fault.code, run.stderr[-1000:]
    assert re.match("failed: " + fault.cause.format(p=process), run.last_line), run.stderr[-1000:]
    assert processes_of(sandbox) == {}
    lines = check_lines(sandbox, run)
    print(f"seed {seed}: {lines} lines; {run.last_line}")

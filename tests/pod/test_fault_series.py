"""Random faults while all processes print without end and connections drop: the cause is right, and every line is there.

PODRUN_FAULT_RUNS=40 makes more runs of it, PODRUN_FAULT_SEED=N begins with another seed. A failed test names its seed.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import Sandbox
from ..tiers import mostly_long
from .chaos import Chaos
from .chaos_faults import BY_NAME, HOSTS
from .conftest import Run, kill_if_alive, processes_of, relays_of

RUNS = int(os.environ.get("PODRUN_FAULT_RUNS", "9"))
FIRST = int(os.environ.get("PODRUN_FAULT_SEED", "2"))
NAMES = (
    *("stop the launcher", "exception", "kill the host", "kill the worker", "kill the agent", "SIGTERM", "segfault"),
    *("exit 0", "exit 7"),
)
"""Faults of the table, in the order in which the seeds have them."""


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


@pytest.mark.parametrize(
    "seed", mostly_long(range(FIRST, FIRST + RUNS), lambda *_: False, lambda number, _: number == 0)
)
def test_fault_under_heavy_output(start: Callable[..., Run], sandbox: Sandbox, seed: int) -> None:
    """The true host, process and code come first, no line is lost, and nothing is left."""
    chance = random.Random(seed)
    case = Chaos(sandbox, BY_NAME[NAMES[seed % len(NAMES)]], "step", seed, restarts=False)
    case.step = chance.randrange(200, 2000)  # so that a fault that is injected comes among the drops
    fault, drops = case.fault, chance.randrange(3)
    print(f"seed {seed}: {fault.name}, process {case.process}, {drops} dropped connections")
    shutil.copy(Path(__file__).with_name("noisy.py"), sandbox.path)
    data = f"data={{name: 'noisy:dataset', options: {{folder: '{sandbox.path}'}}}}"
    job = ("small.yaml", "steps=10000000", "eval.every=0", data)
    case.run = run = start("--simulate", "--slice", f"cpu-{HOSTS}x1", *job, *case.injected())
    run.wait_for_step(chance.randrange(5, 40) if fault.strike else 1)
    for _ in range(drops):
        for pid in chance.sample(connected := sorted(relays_of(sandbox, run, HOSTS)), min(1, len(connected))):
            kill_if_alive(pid)
            print(f"seed {seed}: ended relay {pid}")
        time.sleep(chance.uniform(0.0, 1.5))
    if fault.strike is not None:
        fault.strike(case)
    assert run.end(timeout=120) == fault.code, run.stderr[-1000:]
    cause = fault.cause.format(p=case.process, host=case.host(case.process))
    assert re.match("failed: " + cause, run.last_line), run.stderr[-1000:]
    assert processes_of(sandbox) == {}
    lines = check_lines(sandbox, run)
    print(f"seed {seed}: {lines} lines; {run.last_line}")

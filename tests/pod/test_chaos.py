"""Faults of each kind: the run ends like an undisturbed one, the cause is right, and nothing is lost or left.

`benchmarks/chaos.py` makes many of every kind in the table. A failed test names its seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from ..conftest import Sandbox, make_sandbox
from ..tiers import mostly_long
from .chaos import Chaos, job_of, undisturbed
from .chaos_faults import BY_NAME, Fault

SEED = int(os.environ.get("PODRUN_FAULT_SEED", "1"))
CASES = (
    ("kill the coordinator", "step", False),
    ("kill the host", "evaluate", True),
    ("stop the launcher", "step", False),
    ("Ctrl-C", "step", False),
    ("exit 0", "step", True),
    ("exit 7", "connect", True),
    ("segfault", "compile", False),
    ("SIGTERM", "save", True),
    ("hang in a lock", "step", True),
    ("link flapping", "step", True),
    ("damaged checkpoint", "step", True),
    ("full disk", "save", False),
    ("connections broken at a restart", "step", True),
    ("launcher asleep at a restart", "step", True),
    ("disk full at a restart", "step", True),
)
"""Fault, phase, and whether podrun restarts the run, or the user gives the command again."""
IN_CI = {
    "exit 0",
    "link flapping",
    "damaged checkpoint",
    "full disk",
    "connections broken at a restart",
    "launcher asleep at a restart",
    "disk full at a restart",
}
"""Faults of which no other test has the like."""


Losses = Callable[[Fault, str], dict[int, float]]


@pytest.fixture(scope="module")
def undisturbed_losses(tmp_path_factory: pytest.TempPathFactory) -> Losses:
    """Return the losses of a fault's job when nothing disturbs it; each job is run once."""
    losses: dict[tuple[str, ...], dict[int, float]] = {}

    def of(fault: Fault, phase: str) -> dict[int, float]:
        job = job_of(fault, phase)
        if job not in losses:
            losses[job] = undisturbed(make_sandbox(tmp_path_factory.mktemp("undisturbed")), phase, fault)
        return losses[job]

    return of


@pytest.mark.parametrize(
    ("name", "phase", "restarts"),
    mostly_long(CASES, lambda *_: False, lambda _, case: case[0] in IN_CI),
    ids=[f"{case[0]}, {case[1]}" for case in CASES],
)
def test_a_run_survives_or_ends_as_it_should(
    sandbox: Sandbox, undisturbed_losses: Losses, name: str, phase: str, restarts: bool
) -> None:
    """Exit code, first cause, losses bit for bit, checkpoints, logs and processes are all right."""
    fault = BY_NAME[name]
    if (fault.mounts or fault.small_home) and os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    result = Chaos(sandbox, fault, phase, SEED, restarts).execute(undisturbed_losses(fault, phase))
    print(result.case, result.last_line)
    assert result.wrong == [], result.case

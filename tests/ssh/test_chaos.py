"""A few faults on hosts reached by SSH, judged like those of tests/pod/test_chaos.py; `benchmarks/chaos.py` makes more."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..conftest import make_sandbox
from ..hosts import Hosts
from ..pod.chaos import undisturbed
from ..pod.chaos_faults import BY_NAME
from ..tiers import mostly_long
from .chaos import SshChaos

CASES = (
    ("power off", "step", True),
    ("connections broken at a restart", "step", True),
    ("spare lost at a restart", "step", True),
)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Return the losses of the job, which is the same in all cases, when nothing disturbs it."""
    name, phase, _ = CASES[0]
    return undisturbed(make_sandbox(tmp_path_factory.mktemp("undisturbed")), phase, BY_NAME[name])


@pytest.mark.parametrize(
    ("name", "phase", "restarts"),
    # Of a host without power tests/ssh/test_lost_hosts.py has a case.
    mostly_long(CASES, quick=lambda number, case: False, ci=lambda number, case: number > 0),
    ids=[case[0] for case in CASES],
)
def test_a_run_survives_or_ends_as_it_should(
    hosts: Hosts, tmp_path: Path, expected: dict[int, float], name: str, phase: str, restarts: bool
) -> None:
    """The losses are those of a simulated pod that nothing disturbs, bit for bit."""
    result = SshChaos(hosts, tmp_path, BY_NAME[name], phase, 1, restarts).execute(expected)
    print(result.case, result.last_line)
    assert result.wrong == [], result.case

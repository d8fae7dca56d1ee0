"""Hosts may have another Python than the launcher: agents run in each from 3.8 on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.attempt.supervisor import Supervisor
from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.plan import make_plan
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.pod import Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.preflight.run_preflight import run_preflight
from podrun.launcher.rundir.logs import Logs, log_path
from podrun.launcher.transport.local import LocalTransport
from podrun.runtime.config import Launch
from podrun.runtime.contract import ExitCode

from ...pythons import other_python
from ...tiers import nightly
from ..attempts import Watching

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=["3.8", "3.10", "3.13", "3.14", *nightly("3.9", "3.11", "3.12")])
def pod(request: pytest.FixtureRequest, tmp_path: Path) -> Pod:
    """Two hosts whose only Python has that version."""
    python = other_python(request.param)
    return replace(simulated_pod(parse_slice("cpu-2x1")), home=str(tmp_path / "home"), python=python)


def test_a_run_from_its_start_to_its_end(pod: Pod, tmp_path: Path) -> None:
    """Both agents start, say all that their process printed, and leave nothing."""
    logs_folder = tmp_path / "logs"
    logs_folder.mkdir()
    program = Program(("sh", "-c", "echo $PODRUN_PROCESS_ID; seq 20000"), Launch())
    plan = make_plan(RunSpec("r-1", pod, program, tmp_path / "work", tmp_path))
    with Logs(logs_folder) as logs:
        outcome = Supervisor(plan, LocalTransport(pod), logs, Watching()).run()
    assert (outcome.code, outcome.failures, outcome.left_behind) == (ExitCode.DONE, [], [])
    numbers = [str(n) for n in range(1, 20001)]
    for n in (0, 1):
        assert log_path(logs_folder, f"host-{n}").read_text().split() == [str(n), *numbers]


def test_facts_of_a_host(pod: Pod, tmp_path: Path) -> None:
    """All that a check asks is answered, and a Python that is too old for podrun's runtime is named."""
    report = run_preflight(LocalTransport(pod), pod, str(tmp_path), lambda *news: None)
    assert report.unreached == {} and report.coordinator and report.shared
    version = report.facts["host-0"]["interpreter"]["version"]
    too_old = [finding for finding in report.findings if "podrun's runtime needs 3.11" in finding.what]
    assert bool(too_old) == (tuple(map(int, version.split(".")[:2])) < (3, 11))

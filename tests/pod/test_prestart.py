"""The workers of a simulated pod import while the launcher still checks the job; of those that do not fit nothing is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.remote.prestart import Prestart

from ..conftest import Sandbox
from ..hosts import wait_until
from ..tiers import mostly_long
from .conftest import Run, processes_of

Start = Callable[..., Run]

ONE = ("--simulate", "--slice", "cpu-1x1", "small.yaml")


def stood_by(run: Run) -> list[bool]:
    """Return for each worker that has started whether it had imported before."""
    return ["standby" in e for e in run.of("host") if e["phase"] == "started"]


def test_the_first_workers_import_ahead(start: Start, sandbox: Sandbox) -> None:
    run = start(*ONE, "steps=1")
    assert run.end() == 0, run.stderr
    assert stood_by(run) == [True]
    assert processes_of(sandbox) == {}


@pytest.mark.parametrize(
    "job",
    mostly_long(
        ("launch.env.COLOUR=blue", "launch.process_per=device"), lambda *_: False, lambda number, _: number == 0
    ),
)
def test_a_worker_that_needs_another_environment_is_started_as_usual(start: Start, sandbox: Sandbox, job: str) -> None:
    run = start("--simulate", "--slice", "cpu-1x2", "small.yaml", "steps=1", job)
    assert run.end() == 0, run.stderr
    assert not any(stood_by(run))
    assert processes_of(sandbox) == {}


def test_a_mistake_in_the_job_leaves_nothing(sandbox: Sandbox) -> None:
    done = sandbox.podrun(*ONE, "stepps=1")
    assert (done.returncode, "stepps" in done.stderr) == (2, True)
    assert processes_of(sandbox) == {}


@pytest.mark.long
def test_a_broken_import_is_reported_as_ever(start: Start, sandbox: Sandbox) -> None:
    """It happens before there is anybody to report it to."""
    (sandbox.path / "optax.py").write_text("print('half of it')\nraise ImportError('no optax today')\n")
    run = start(*ONE)
    assert run.end() != 0
    assert "no optax today" in run.of("end")[0]["message"]
    assert processes_of(sandbox) == {}


def test_what_is_not_taken_over_ends(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODRUN_HOME", str(sandbox.path / "home"))
    ahead = Prestart(simulated_pod(parse_slice("cpu-2x1")), "20260101-000000-abcd")
    wait_until(
        lambda: sum("--prestart" in command for command in processes_of(sandbox).values()) == 2, "two workers import"
    )
    ahead.close()
    assert {pid: command for pid, command in processes_of(sandbox).items() if "pytest" not in command} == {}
    assert not list(Path(sandbox.path / "home").glob("hosts/**/agent.sock"))

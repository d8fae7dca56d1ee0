"""A run that loses a host goes on without it, and its losses are those of a run that nothing has disturbed."""

from __future__ import annotations

import contextlib
import queue
import shutil
from pathlib import Path
from typing import Any

import pytest

from ..conftest import make_sandbox
from ..pod.conftest import Run
from ..pod.programs import FAULTY
from .pod import PodSandbox
from .processes import wait_until_gone

STEPS = 40
JOB = ("small.yaml", f"steps={STEPS}", "checkpoint.every=2", "launch.max_restarts=1")


class Paced:
    """Make as many steps from the start as are permitted."""

    def __init__(self, pod: PodSandbox, expected: dict[int, float]) -> None:
        shutil.copy(FAULTY, pod.path)
        self._file = pod.path / "shared" / "permitted"
        self._file.parent.mkdir(exist_ok=True)
        self.permit(1000)
        self.data = f"data={{name: 'faulty:held', options: {{file: '{self._file}'}}}}"
        self._expected = expected
        self._pod = pod

    def permit(self, steps: int) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(str(steps))
        new.replace(self._file)

    def check(self) -> None:
        losses = self._pod.losses("shared/small")
        assert sorted(losses) == list(range(1, STEPS + 1))
        assert losses == pytest.approx(self._expected, rel=1e-5)


def undisturbed(path: Path, *job: str) -> dict[int, float]:
    """Return the losses of the job on one device."""
    sandbox = make_sandbox(path)
    done = sandbox.podrun("--simulate", "--slice=cpu-1x1", *JOB, *job)
    assert done.returncode == 0, done.stderr
    return sandbox.losses("runs/small")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Return the losses of the job when nothing disturbs it."""
    return undisturbed(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture
def job(pod: PodSandbox, expected: dict[int, float]) -> Paced:
    return Paced(pod, expected)


def note(run: Run, text: str) -> dict[str, Any]:
    return run.wait_for(lambda e: e["event"] == "note" and text in str(e["message"]), 240)


def started(run: Run) -> list[dict[str, list[int]]]:
    """The hosts and processes that each attempt has started, each once."""
    attempts: list[dict[str, list[int]]] = []
    for event in run.events:
        if event["event"] == "start":
            attempts.append({})
        elif event["event"] == "host" and event["phase"] == "started":
            attempts[-1].setdefault(event["host"], []).append(event["process"])
    return attempts


@pytest.mark.long
def test_a_run_shrinks_and_grows_again(pod: PodSandbox, tmp_path_factory: pytest.TempPathFactory) -> None:
    """From 3 hosts to 2, which do not divide the batch of 9, and back to 3 at a checkpoint."""
    odd = "batch_size=9"
    job = Paced(pod, undisturbed(tmp_path_factory.mktemp("undisturbed"), odd))
    job.permit(5)
    run = pod.run(pod.write_pod(["h0", "h1", "h2"], min_hosts=2), *JOB, odd, job.data)
    run.wait_for(lambda e: e["event"] == "checkpoint")
    pod.hosts.kill("h2")
    assert note(run, "the run goes on")["message"] == "the run goes on without h2: 2 of 3 hosts"
    run.wait_for_step(5)
    pod.hosts.start("h2")
    note(run, "h2: back")
    for steps in range(6, 30):  # a stop needs steps to be agreed on, and must find the run at work
        job.permit(steps)
        with contextlib.suppress(queue.Empty):
            run.wait_for(lambda e: e["event"] == "start", 0.5)
            break
    else:
        run.wait_for(lambda e: e["event"] == "start", 240)
    job.permit(1000)
    assert run.end(240) == 0, run.stderr
    assert started(run) == [
        {"h0": [0], "h1": [1], "h2": [2]},
        {"h0": [0], "h1": [1]},
        {"h0": [0], "h1": [1], "h2": [2]},
    ]
    lost, resized = run.of("restart")
    assert lost["message"].startswith("h2: ")
    assert (lost["ending"], resized["ending"]) == ("lost", "resized")
    job.check()


@pytest.mark.long
def test_a_spare_replaces_a_host(pod: PodSandbox, job: Paced) -> None:
    """The lost one cannot be reached to the end; it ends its processes by itself."""
    job.permit(5)
    run = pod.run(pod.write_pod(["h0", "h1"], spares=["h2"]), *JOB, job.data)
    run.wait_for(lambda e: e["event"] == "checkpoint")
    pod.hosts.cut("h1")
    assert note(run, "the run goes on")["message"] == "the run goes on without h1 and with h2: 2 of 2 hosts"
    job.permit(1000)
    assert run.end(240) == 0, run.stderr
    (lost,) = run.of("restart")
    assert lost["message"].startswith("h1: ")
    assert [attempt.keys() for attempt in started(run)] == [{"h0", "h1"}, {"h0", "h2"}]
    job.check()
    wait_until_gone(pod.hosts, ["h0", "h1", "h2"], 60)


@pytest.mark.long
def test_hosts_that_are_not_ready_at_the_start_are_replaced(pod: PodSandbox, job: Paced) -> None:
    """One is off, and the first spare cannot be prepared."""
    pod.hosts.kill("h1")
    setup = ['test "$(hostname)" != h2']
    run = pod.run(pod.write_pod(["h0", "h1"], spares=["h2", "h3"], setup=setup), *JOB, job.data)
    assert run.end(240) == 0, run.stderr
    assert started(run)[-1] == {"h0": [0], "h3": [1]}
    assert [event["ending"] for event in run.of("restart")] == ["unfit", "unfit"]
    job.check()

"""A lost host is the first cause, whatever the others say when they lose it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import pytest

from ..hosts import Hosts
from ..pod.conftest import Run
from ..pod.programs import FAULTY
from .pod import PodSandbox
from .processes import wait_until_gone

NAMES = ["h0", "h1"]


@pytest.fixture
def training(make_hosts: Callable[..., Hosts], pod: PodSandbox) -> Iterator[Callable[[], tuple[PodSandbox, Run]]]:
    """Starts a training on two hosts of its own and waits for its first steps."""
    sandbox = PodSandbox(pod.path, make_hosts(2))
    shutil.copy(FAULTY, pod.path)

    def start() -> tuple[PodSandbox, Run]:
        option = sandbox.write_pod(NAMES)
        data = "data={name: 'faulty:paced', options: {seconds: 0.1}}"
        run = sandbox.run(option, "small.yaml", data, "steps=1000000", "eval.every=0", "checkpoint.every=1000000")
        run.wait_for_step(5)
        return sandbox, run

    yield start
    sandbox.close()


@pytest.mark.long
def test_a_host_dies_and_its_sockets_are_reset(training: Callable[[], tuple[PodSandbox, Run]]) -> None:
    """The other process says at once that it lost a peer; it is the dead host, the coordinator's, that is named."""
    sandbox, run = training()
    sandbox.hosts.kill("h0")
    assert run.end(90) == 69, run.stderr
    assert run.last_line.startswith("failed: h0: has not answered for"), run.stderr
    assert "could not confirm that nothing is left on h0" in run.stderr
    wait_until_gone(sandbox.hosts, ["h1"], 12)  # less than the lease


@pytest.mark.long
def test_a_host_that_restarts_is_said_to_have_restarted(training: Callable[[], tuple[PodSandbox, Run]]) -> None:
    """Its agent was neither killed by somebody, nor did the host run out of memory."""
    sandbox, run = training()
    sandbox.hosts.restart("h1")
    assert run.end(90) == 69, run.stderr
    assert run.last_line.startswith("failed: h1: its agent is gone (the host was restarted)"), run.stderr


@pytest.mark.long
def test_only_the_way_to_a_host_is_cut(training: Callable[[], tuple[PodSandbox, Run]]) -> None:
    """Its agent hears nothing and ends its worker, and all save and stop; nobody else has asked them to."""
    sandbox, run = training()
    sandbox.hosts.block("h1", 22, "10.77.0.1")
    assert run.end(120) == 69, run.stderr
    assert run.last_line.startswith("failed: h1: "), run.stderr
    assert {e["code"] for e in run.of("exit")} <= {75, 76, -9}  # -9: its save took longer than launch.stop_grace
    sandbox.hosts.restore()
    wait_until_gone(sandbox.hosts, NAMES, 90)

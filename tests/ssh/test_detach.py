"""`--detach` comes back when nothing can be wrong with the pod any more, and not before."""

from __future__ import annotations

import json
from typing import Any

import pytest

from .pod import PodSandbox, fake_package
from .processes import wait_until_gone

NAMES = ["h0", "h1"]


def events(pod: PodSandbox) -> list[dict[str, Any]]:
    """Return what is on record of the only run."""
    (directory,) = (pod.path / "home" / "runs").iterdir()
    return [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]


def assert_refused(pod: PodSandbox, option: str, reason: str) -> None:
    """The user sees why in the terminal in which the run was started; nothing goes on."""
    done = pod.podrun(option, "--detach", "small.yaml", "steps=2")
    assert done.returncode in (2, 69), done.stdout + done.stderr
    assert reason in done.stderr
    assert "goes on in the background" not in done.stdout + done.stderr
    assert events(pod)[-1]["event"] == "end"
    wait_until_gone(pod.hosts, NAMES)


def test_packages_that_differ(pod: PodSandbox) -> None:
    fake_package(pod.hosts.home_of("h1") / "other-jax", "jax", "0.10.9")
    option = pod.write_pod(NAMES, env={"PYTHONPATH": f"{pod.hosts.home_inside()}/other-jax"})
    assert_refused(pod, option, "h1: jax 0.10.9, but jax ")


def test_a_setup_command_that_fails(pod: PodSandbox) -> None:
    assert_refused(pod, pod.write_pod(NAMES, setup=["test $(uname -n) = h0"]), "h1: ")


@pytest.mark.long
def test_a_run_that_is_fine(pod: PodSandbox) -> None:
    """Once the command is back every process has agreed with the others; the run goes on and ends well."""
    done = pod.podrun(pod.write_pod(NAMES), "--detach", "small.yaml", "steps=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "goes on in the background" in done.stdout
    agreed = {e["process"] for e in events(pod) if e["event"] == "phase" and e["phase"] not in ("connect", "setup")}
    assert agreed == {0, 1}
    attached = pod.podrun("attach")
    assert attached.returncode == 0, attached.stdout + attached.stderr
    assert sorted(pod.losses("shared/small")) == [1, 2]

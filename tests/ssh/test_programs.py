"""Programs of users on real hosts: they join and fail there as on a simulated pod."""

from __future__ import annotations

import pytest

from .pod import PodSandbox
from .results import log_of, newest


@pytest.mark.long
def test_a_program_that_knows_nothing_of_podrun(pod: PodSandbox) -> None:
    """A bare `jax.distributed.initialize()` joins all hosts; the collectives of CPUs find each other."""
    option = pod.write_pod(["h0", "h1"], slice="cpu-2x2")
    done = pod.podrun(option, "--", "python", pod.add("bare.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    for process, host in enumerate(("h0", "h1")):
        assert f"sum 4 devices 4 process {process}" in log_of(newest(pod), host)


@pytest.mark.long
def test_its_exception_is_the_cause(pod: PodSandbox) -> None:
    """While the other host waits for it in a collective."""
    option = pod.write_pod(["h0", "h1"], slice="cpu-2x2")
    done = pod.podrun(option, "--", "python", pod.add("bare.py"), "fail")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == "podrun: failed: h1 (process 1): RuntimeError: one of us (bare.py:12) [exit code 1]", done.stderr


@pytest.mark.long
def test_an_address_that_every_host_has(pod: PodSandbox) -> None:
    """A program written for one machine would wait for five minutes and not say for what."""
    (pod.path / "local.py").write_text(
        "import jax, os\n"
        "jax.distributed.initialize('localhost:10000', 2, int(os.environ['PROCESS_ID']), initialization_timeout=5)\n"
    )
    option = pod.write_pod(["h0", "h1"], slice="cpu-2x2")
    done = pod.podrun(option, "--", "python", "local.py")
    assert done.returncode != 0
    told = "was called with the coordinator localhost:10000, which other hosts cannot reach"
    assert (done.stdout + done.stderr).count(told) == 1, done.stdout + done.stderr

"""Several users of one host, each with an account of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ..hosts import COLLEAGUE, COLLEAGUE_ID, NO_SHELL, USER, USER_ID
from ..pod.conftest import Run
from .pod import PodSandbox
from .processes import COUNT, wait_for_start

PYTHON = "/usr/bin/python3"  # other users may not be able to read the one that runs the tests
TAKE_ADDRESS = """
import socket, sys

sock = socket.socket(socket.AF_UNIX)
sock.bind("\\0podrun-host")
if sys.argv[1] == "listening":
    sock.listen()
print("bound", flush=True)
sys.stdin.read()
"""


def option_of(pod: PodSandbox, user: str) -> str:
    """Return the option of a pod file that logs in to h0 as `user`."""
    ssh = {"user": user, "key": str(pod.hosts.key), "known_hosts": str(pod.hosts.known_hosts)}
    return pod.write_pod(["h0"], ssh=ssh, python=PYTHON, workdir="/tmp")


@contextmanager
def counting(pod: PodSandbox, user: str) -> Iterator[Run]:
    """Run a job of `user` on h0, and end it at the end."""
    run = pod.run(option_of(pod, user), "--", "python3", pod.add(COUNT), str(pod.enough))
    wait_for_start(run, 1)
    try:
        yield run
        assert run.process.poll() is None
    finally:
        run.process.terminate()
        assert run.end() == 143, run.stderr


def test_an_account_that_may_run_nothing(pod: PodSandbox) -> None:
    """The words of its shell are shown, by a run and by a check."""
    option = option_of(pod, NO_SHELL)
    words = "its login shell ended with exit code 1 and did not start podrun's agent: "
    words += "This account is currently not available."
    run = pod.podrun(option, "--", "true")
    assert run.returncode == 69, run.stdout + run.stderr
    assert f"failed: h0: {words}" in run.stderr
    assert "`user:` in a pod file for --pod" in run.stderr
    check = pod.podrun("check", option)
    assert check.returncode == 69, check.stdout + check.stderr
    assert f"error: h0: {words}" in " ".join(check.stdout.split())


@pytest.mark.long  # a refusal waits 15 s for a run that is just ending
def test_a_run_of_root_has_the_host_for_all(pod: PodSandbox) -> None:
    """An ordinary user is refused with its run, its name and its uid."""
    with counting(pod, "root") as first:
        done = pod.podrun(option_of(pod, USER), "--", "true")
        assert done.returncode == 69, done.stdout + done.stderr
        run = first.of("start")[0]["run_id"]
        assert f"the host is taken by run {run} of root (uid 0, agent pid " in done.stderr


@pytest.mark.long
def test_runs_of_two_ordinary_users(pod: PodSandbox) -> None:
    """A user's second run is refused with the first; another user's is started, and both users hear of each other."""
    with counting(pod, USER) as first:
        claim = f"run {first.of('start')[0]['run_id']} of {USER} (uid {USER_ID}, agent pid "
        refused = pod.podrun(option_of(pod, USER), "--", "true")
        assert refused.returncode == 69, refused.stdout + refused.stderr
        assert f"the host is taken by {claim}" in refused.stderr
        done = pod.podrun(option_of(pod, COLLEAGUE), "--", "id", "-u")
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"warning: h0: {claim}" in done.stdout
        assert "claims this host" in done.stdout
        assert str(COLLEAGUE_ID) in done.stdout
        check = pod.podrun("check", option_of(pod, COLLEAGUE))  # which misses JAX for this Python
        assert f"warning: h0: {claim}" in " ".join(check.stdout.split())


@pytest.mark.parametrize("how", ["listening", "deaf"])
def test_a_user_who_takes_the_address_keeps_nobody_out(pod: PodSandbox, how: str) -> None:
    """Neither another ordinary user nor root, who are told who it is."""
    script = pod.hosts.home_of("h0", USER) / "take_address.py"
    script.write_text(TAKE_ADDRESS)
    command = pod.hosts.command_on(
        "h0", [PYTHON, str(pod.hosts.home_inside(USER) / script.name), how, "20260101-000000-fake"], user=USER
    )
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as taker:
        assert taker.stdin is not None and taker.stdout is not None
        assert taker.stdout.readline() == b"bound\n"
        try:
            for user in (COLLEAGUE, "root"):
                done = pod.podrun(option_of(pod, user), "--", "true")
                assert done.returncode == 0, done.stdout + done.stderr
                assert f" of {USER} (uid {USER_ID}" in done.stdout
                assert "claims this host" in done.stdout
        finally:
            taker.stdin.close()

"""A restart while a host is off."""

from __future__ import annotations

import signal

import pytest

from .pod import PodSandbox
from .processes import COUNT, wait_for_start, wait_until_gone


def waits(event: dict[str, object]) -> bool:
    return event["event"] == "note" and "waits for h1" in str(event["message"])


@pytest.mark.long
def test_ctrl_c_ends_the_wait_for_a_host(pod: PodSandbox) -> None:
    option = pod.write_pod(["h0", "h1"])
    run = pod.run(option, "launch.max_restarts=1", "--", "python3", pod.add(COUNT), str(pod.enough))
    wait_for_start(run, 2)
    pod.hosts.kill("h1")
    run.wait_for(waits)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 128 + signal.SIGINT
    pod.hosts.start("h1")
    wait_until_gone(pod.hosts, ["h0", "h1"], 90)


LATE_MOUNT = "f=tries-$(uname -n); echo >> $f; test $(wc -l < $f) -ne 2"  # the second of all preparations fails


@pytest.mark.long
def test_a_host_that_has_not_mounted_everything_yet_is_prepared_again(pod: PodSandbox) -> None:
    """The restart waits for it; its sshd answers before its file systems are there: a failed preparation ends no run."""
    option = pod.write_pod(["h0", "h1"], setup=[LATE_MOUNT])
    run = pod.run(option, "launch.max_restarts=1", "--", "python3", pod.add(COUNT), str(pod.enough))
    wait_for_start(run, 2)
    pod.hosts.kill("h1")
    assert "up to 10 min; Ctrl-C ends the run" in run.wait_for(waits)["message"]
    pod.enough.touch()
    pod.hosts.start("h1")
    note = run.wait_for(lambda event: event["event"] == "note" and "cannot restart yet: h" in str(event["message"]))
    assert "podrun prepares again, up to 10 min; Ctrl-C ends the run" in note["message"]
    assert run.end() == 0, run.stderr
    assert [event["attempt"] for event in run.of("start")] == [0, 1]

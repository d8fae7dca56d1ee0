"""A held pod of real hosts: agents wait there with warm interpreters, and end with the hold."""

from __future__ import annotations

import os
import re
import signal

from ..hosts import Hosts, wait_until
from .pod import PodSandbox

JOB = ("small.yaml", "steps=1", "schedule.name=mine:flat")


def podruns(hosts: Hosts) -> list[str]:
    """The processes of podrun on the hosts."""
    commands = [process.args for name in hosts.names for process in hosts.processes(name)]
    return [command for command in commands if "podrun" in command and "sshd" not in command]


def test_runs_on_held_hosts(hosts: Hosts, pod: PodSandbox) -> None:
    option = pod.write_pod(hosts.names[:2])
    done = pod.podrun("hold", option)
    assert done.returncode == 0, done.stderr
    for colour in ("red", "blue"):
        text = f"def flat(options, peak, steps):\n    print('{colour} code')\n    return lambda step: peak\n"
        (pod.path / "mine.py").write_text(text)
        run = pod.run(option, *JOB, "--workdir", colour)
        assert run.end() == 0, run.stderr
        notes = [e["message"] for e in run.of("note")]
        assert any("this pod is held since" in note for note in notes)
        assert ["standby" in e for e in run.of("host") if e["phase"] == "started"] == [True, True], notes
        logs = pod.path / "home" / "runs" / str(run.of("start")[0]["run_id"]) / "logs"
        assert all(f"{colour} code" in log.read_text() for log in logs.glob("*.log"))
        wait_until(lambda: "all hosts are ready" in pod.podrun("hold", "--list").stdout, "hosts are ready", 120)
    assert pod.podrun("release", option).returncode == 0
    wait_until(lambda: podruns(hosts) == [], "nothing is left on the hosts")


def test_a_host_that_is_cut_off_ends_its_agent(hosts: Hosts, pod: PodSandbox) -> None:
    option = pod.write_pod(hosts.names[:2])
    assert pod.podrun("hold", option).returncode == 0
    name = hosts.names[0]
    hosts.cut(name)
    wait_until(lambda: not [p for p in hosts.processes(name) if "--hold" in p.args], "the agent has ended", 60)
    hosts.restore()
    wait_until(lambda: "all hosts are ready" in pod.podrun("hold", "--list").stdout, "hosts are ready", 120)
    record = next((pod.path / "home" / "holds").glob("*.json")).read_text()
    found = re.search(r'"pid": (\d+)', record)
    assert found
    os.kill(int(found[1]), signal.SIGKILL)
    wait_until(lambda: podruns(hosts) == [], "nothing is left on the hosts", 60)
    assert pod.podrun("release", option).stdout.startswith("released")


def test_an_unreachable_host_is_named_and_nothing_is_held(hosts: Hosts, pod: PodSandbox) -> None:
    option = pod.write_pod(hosts.names[:2])
    hosts.cut(hosts.names[1])
    done = pod.podrun("hold", option)
    assert (done.returncode, hosts.names[1] in done.stderr) == (69, True), done.stderr
    assert podruns(hosts) == []
    assert list((pod.path / "home" / "holds").iterdir()) == []

"""exec, ssh and clean on real hosts: what is started there ends when nobody wants it any more."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time

import pytest

from ..hosts import Hosts, wait_until
from .pod import PodSandbox

NAMES = ["h0", "h1", "h2", "h3"]


@pytest.fixture
def where(pod: PodSandbox) -> str:
    """The option that names the pod file of all four hosts."""
    return pod.write_pod(NAMES)


def live(hosts: Hosts, mark: str) -> dict[str, int]:
    """Return how many processes with `mark` in their command line each host has."""
    return {name: sum(p.args.startswith(mark) for p in hosts.processes(name)) for name in NAMES}


def start(pod: PodSandbox, mark: str, where: str) -> subprocess.Popen[str]:
    """`podrun exec` of something that goes on, in two sessions; it runs on all hosts when this returns."""
    script = f"setsid {mark} & echo begun; {mark}"
    command = [*pod.command, "exec", where, "--", "sh", "-c", script]
    process = subprocess.Popen(
        command, cwd=pod.path, env=pod.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_until(lambda: live(pod.hosts, mark) == dict.fromkeys(NAMES, 2), "all to start", 120)
    return process


def none_is_left(pod: PodSandbox, mark: str) -> None:
    wait_until(lambda: live(pod.hosts, mark) == dict.fromkeys(NAMES, 0), "all to end", 60)
    wait_until(lambda: not any(".pyz execute" in p.args for n in NAMES for p in pod.hosts.processes(n)), "the agents")


def test_equal_outputs_are_shown_once(pod: PodSandbox, where: str) -> None:
    """The odd host is seen at a glance, and its exit code is podrun's."""
    script = 'if [ "$(hostname)" = h2 ]; then echo odd; exit 5; else echo even; fi'
    done = pod.podrun("exec", where, "--", "sh", "-c", script)
    assert done.stdout == "--- h[0-1,3] (3 hosts)\neven\n--- h2: exit code 5\nodd\n"
    assert (done.returncode, done.stderr) == (5, "podrun: h2: exit code 5\n")
    found = json.loads(pod.podrun("exec", where, "--hosts", "h1,h3", "--json", "--", "hostname").stdout)
    assert {host: row["output"] for host, row in found["hosts"].items()} == {"h1": "h1\n", "h3": "h3\n"}


def test_arguments_arrive_unchanged(pod: PodSandbox, where: str) -> None:
    """No shell sees them, and no `ps` on the way; the pod's environment is there, its secrets are not."""
    words = [
        "a  b",
        "$HOME",
        "`id`",
        "*",
        "q'uote",
        'd"ouble',
        "back\\slash",
        "new\nline",
        "",
        "-x",
        "ümläut",
        "!",
        "~/x",
    ]
    code = "import os, sys; print(sys.argv[1:], os.environ['GREETING'], os.environ.get('MY_SECRET'))"
    where = pod.write_pod(NAMES, env={"GREETING": "hi there"}, secrets=["MY_SECRET"])
    done = pod.podrun("exec", where, "--", "python3", "-c", code, *words)
    assert done.stdout == f"--- h[0-3] (4 hosts)\n{words} hi there None\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_when_the_launcher_ends(pod: PodSandbox, where: str, number: int) -> None:
    """Killed it cannot tell anybody; the hosts notice."""
    mark = f"sleep 4721.{number}"
    process = start(pod, mark, where)
    process.send_signal(number)
    out, _ = process.communicate(timeout=120)
    none_is_left(pod, mark)
    if number == signal.SIGINT:
        assert (process.returncode, out) == (130, "--- h[0-3] (4 hosts)\nbegun\n")


def test_nothing_is_left_after_the_timeout(pod: PodSandbox, where: str) -> None:
    """Nothing is left, as podrun says."""
    done = pod.podrun("exec", where, "--timeout", "1", "--", "sh", "-c", "setsid sleep 4722.1 & sleep 4722.1")
    assert live(pod.hosts, "sleep 4722.1") == dict.fromkeys(NAMES, 0)
    assert (done.returncode, done.stderr) == (124, "podrun: h[0-3]: was killed after 1 s (--timeout)\n")


def test_a_host_that_cannot_be_reached(pod: PodSandbox, where: str) -> None:
    """It is named, with the reason; the others have done their part."""
    pod.hosts.block("h1", 22, how="REJECT")
    done = pod.podrun("exec", where, "--", "echo", "hi")
    assert (done.returncode, done.stdout) == (69, "--- h[0,2-3] (3 hosts)\nhi\n")
    assert done.stderr.startswith("podrun: h1: ") and "refused" in done.stderr


def test_a_connection_that_breaks(pod: PodSandbox, where: str) -> None:
    """The command ends with it, and the host is named."""
    mark = "sleep 4723.1"
    process = start(pod, mark, where)
    pod.hosts.kill_sessions("h2")
    wait_until(lambda: live(pod.hosts, mark)["h2"] == 0, "its end on h2", 60)
    assert live(pod.hosts, mark) == {"h0": 2, "h1": 2, "h2": 0, "h3": 2}
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert "podrun: h2: the connection was lost before the command ended\n" in err
    none_is_left(pod, mark)


def test_ssh_logs_in_as_podrun_does(pod: PodSandbox, where: str) -> None:
    """With the pod file's user, key and known_hosts; the command's exit code is podrun's."""
    done = pod.podrun("ssh", where, "2", "--", "sh", "-c", "hostname; exit 7")
    assert (done.returncode, done.stdout) == (7, "h2\n"), done.stderr


@pytest.mark.long
def test_clean_leaves_the_living_alone(pod: PodSandbox, where: str) -> None:
    """Left-overs of runs without an agent go; a run that goes on keeps all that it has."""
    run = pod.run(where, "--", "sleep", "4724.1")
    run.wait_for(lambda e: e["event"] == "host" and e["phase"] == "started" and e["process"] == 3)
    left = subprocess.Popen(
        pod.hosts.command_on("h1", ["env", "PODRUN_RUN_ID=20260101-000001-gone", "PODRUN_HOST=h1", "sleep", "4724.2"])
    )
    folder = pod.hosts.home_of("h2") / ".podrun" / "runs" / "20260101-000001-gone" / "hosts" / "h2.0"
    folder.mkdir(parents=True)
    (folder / "2.out").write_text("never fetched")
    young = pod.podrun("clean", where, "--dry-run").stdout
    assert "of run 20260101-000001-gone" in young and "h2.0" not in young
    listed = pod.podrun("clean", where, "--dry-run", "--older-than", "0").stdout.splitlines()
    # What other tests have left on these hosts is listed as well.
    rows = [line.split()[:2] for line in listed if "20260101-000001-gone" in line]
    assert rows == [["h2", "folder"], ["h1", "process"]]
    done = pod.podrun("clean", where, "--older-than", "0", "--yes")
    assert done.returncode == 0 and re.search(r"removed \d+ folders?, 1 process", done.stdout)
    assert left.wait(40) in (-9, 137)
    assert not folder.parents[1].exists()
    time.sleep(0.5)
    assert live(pod.hosts, "sleep 4724.1") == dict.fromkeys(NAMES, 1)
    run.process.send_signal(signal.SIGTERM)
    run.end()

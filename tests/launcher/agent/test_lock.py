"""The host lock beside other users: none of them can take it away, all of them are named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may act as several users")
OTHER = 65534

PROGRAM = """
import json, os, socket, subprocess, sys, time
from podrun.launcher.agent.host.lock import HostLock, claimed_by_others, current_holder

ADDRESS = "\\0podrun-host"
home, elsewhere = sys.argv[1:3]

def as_other(action):
    # Runs `action` in a process of another user, which then stays. Returns when it has run.
    ours, theirs = os.pipe()
    if os.fork() == 0:
        os.close(ours)
        os.setgid(65534)
        os.setuid(65534)
        kept = action()
        os.write(theirs, b"x")
        time.sleep(60)
        os._exit(0)
    os.close(theirs)
    os.read(ours, 1)

def bind(listen=None, fill=0):
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(ADDRESS)
    if listen is not None:
        sock.listen(listen)
    clients = [socket.socket(socket.AF_UNIX) for _ in range(fill)]
    for client in clients:
        client.setblocking(False)
        client.connect_ex(ADDRESS)
    return sock, clients

def take(run, where=home):
    # As another agent of this user.
    code = "import sys; from podrun.launcher.agent.host.lock import HostLock; print(HostLock(sys.argv[1]).take(sys.argv[2]))"
    done = subprocess.run([sys.executable, "-c", code, where, run], capture_output=True, text=True, check=True)
    return done.stdout.strip()

def facts():
    lock = HostLock(home)
    before = claimed_by_others(), current_holder(home)
    answer = {"claim": before[0], "before": before[1], "taken": lock.take("r-1"), "again": lock.take("r-1")}
    answer.update(holder=current_holder(home), same=take("r-1"), other=take("r-2"), elsewhere=take("r-2", elsewhere))
    lock.release()
    answer["after"] = take("r-2")
    return answer
"""


def run(code: str, *args: str) -> dict[str, str | None]:
    """In a network namespace, with processes, of its own."""
    alone = ["unshare", "--net", "--pid", "--mount-proc", "--fork", "--kill-child"]
    if subprocess.run([*alone, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here")
    command = [*alone, sys.executable, "-c", PROGRAM + code, *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    answer: dict[str, str | None] = json.loads(done.stdout)
    return answer


@pytest.mark.parametrize("how", ["", "listen=0", "listen=8", "listen=0, fill=4"])
def test_another_user_takes_the_address(tmp_path: Path, how: str) -> None:
    """Listening, or deaf, or too busy to answer: named with its uid, and in nobody's way."""
    facts = run(f"as_other(lambda: bind({how})); print(json.dumps(facts()))", str(tmp_path), f"{tmp_path}/elsewhere")
    assert facts["claim"] and f"of nobody (uid {OTHER}" in facts["claim"]
    assert ("pid" in facts["claim"]) == (how in ("listen=0", "listen=8"))
    assert (facts["before"], facts["taken"], facts["again"], facts["same"]) == (None, None, None, "None")
    assert facts["other"] == facts["holder"]
    assert facts["other"] and facts["other"].startswith("run r-1 of root (uid 0, agent pid ")
    assert facts["after"] == "None"


def test_runs_of_one_user_with_different_homes(tmp_path: Path) -> None:
    """The file of one is not that of the other; the address is."""
    facts = run("print(json.dumps(facts()))", str(tmp_path), f"{tmp_path}/elsewhere")
    assert facts["claim"] is None
    assert facts["elsewhere"] and "of root (uid 0, agent pid " in facts["elsewhere"]
    assert facts["elsewhere"] != "None" and facts["after"] == "None"


def test_a_run_of_root() -> None:
    """Root is no ordinary user: its run has the host for all."""
    code = "lock = HostLock(home); lock.take('r-0'); os.setgid(65534); os.setuid(65534); "
    code += "print(json.dumps({'theirs': HostLock(elsewhere).take('r-2'), 'claim': claimed_by_others()}))"
    with tempfile.TemporaryDirectory() as folder:  # another user may not look into those of pytest
        os.chmod(folder, 0o755)
        theirs = Path(folder, "theirs")
        theirs.mkdir()
        os.chown(theirs, OTHER, OTHER)
        facts = run(code, f"{folder}/mine", str(theirs))
    assert facts["theirs"] and "of root (uid 0, agent pid" in facts["theirs"]
    assert facts["claim"] is None


def test_names_of_sockets_with_ends_of_lines(tmp_path: Path) -> None:
    """Anybody may bind one: it is shown as several lines, and ends no agent."""
    code = "kept = [socket.socket(socket.AF_UNIX) for _ in range(3)]\n"
    code += "for sock, name in zip(kept, ('\\0\\n\\n \\n', '\\0a\\n', '\\0b\\n\\nc')): sock.bind(name)\n"
    facts = run(code + "print(json.dumps(facts()))", str(tmp_path), f"{tmp_path}/elsewhere")
    assert (facts["claim"], facts["before"], facts["taken"], facts["after"]) == (None, None, None, "None")
    assert facts["other"] and facts["other"].startswith("run r-1 of root (uid 0, agent pid ")


def test_what_cannot_be_found_out_ends_no_agent(tmp_path: Path) -> None:
    """Whatever asking about other users' sockets raises."""
    code = "from podrun.launcher.agent.host import lock\nlock.owner_of = lambda _: [][0]\n"
    facts = run(code + "print(json.dumps(facts()))", str(tmp_path), f"{tmp_path}/elsewhere")
    assert (facts["claim"], facts["taken"], facts["after"]) == (None, None, "None")


def test_those_who_ask_are_answered_some_at_a_time(tmp_path: Path) -> None:
    """Whoever asks without end keeps the agent from nothing else."""
    code = """
lock = HostLock(home)
lock.take("r-1")
lock._socket.listen(200)
clients = [socket.socket(socket.AF_UNIX) for _ in range(150)]
for client in clients:
    client.connect(ADDRESS)
    client.setblocking(False)

def answered():
    count = 0
    for client in clients:
        try:
            count += client.recv(1) == b""
        except BlockingIOError:
            pass
    return count

counts = []
for _ in range(3):
    lock.drain_connections()
    counts.append(answered())
print(json.dumps({"counts": counts}))
"""
    assert run(code, str(tmp_path), f"{tmp_path}/elsewhere") == {"counts": [64, 128, 150]}

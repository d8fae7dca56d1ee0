"""Processes end with their agent: its descendants, its namespace, and what forks while it is killed."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from .marked import Marked, line, wait_until

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a PID namespace")
BOMB = """
adopt_orphans()
end = time.monotonic() + 20

def hop():
    # Never the same process for long, and its parent is always gone.
    while time.monotonic() < end:
        if os.fork():
            os._exit(0)
        os.setsid()
        time.sleep(0.01)
    os._exit(0)

def tree(depth):
    for _ in range(2 * bool(depth)):
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            tree(depth - 1)
            hop() if depth == 1 else time.sleep(max(0, end - time.monotonic()))
            os._exit(0)

def reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

tree(4)
while len(descendants()) < 8 and time.monotonic() < end:
    time.sleep(0.01)
before = len(descendants())
left = kill_descendants(reap)
print(json.dumps([before, left, descendants()]), flush=True)
time.sleep(30)
"""


def test_processes_that_fork_while_they_are_killed(marked: Marked) -> None:
    """Sessions of their own, orphans, signals ignored, sixteen that fork all the time: none is left."""
    agent = marked.start(BOMB)
    before, left, after = json.loads(line(agent))
    assert before >= 8
    assert (left, after) == ([], [])
    assert marked.alive() == {agent.pid}


def test_a_process_that_was_not_seen(marked: Marked) -> None:
    """Processes that fork and end while /proc is read are not seen there, nor are their children; the kernel knows them."""
    code = """
import podrun.launcher.agent.base.processes as p
child = subprocess.Popen(["sleep", "60"])
blind, real = [1, 1, 1], p.descendants
p.descendants = lambda *spare: [] if blind and blind.pop() else real()
print(p.kill_descendants(child.poll), child.returncode, real(), len(blind), flush=True)
"""
    assert line(marked.start(code)) == "[] -9 [] 0"


@pytest.mark.long
def test_what_does_not_die_is_told(marked: Marked) -> None:
    """After a time it must be stuck in the kernel: nobody waits for it for ever."""
    code = "import podrun.launcher.agent.base.processes as p; p.STUCK = 0.3\n"
    code += "calls = []; print(p.kill_until_none(lambda: [2 ** 22 + 1], lambda: calls.append(1)), len(calls) > 3)"
    assert line(marked.start(code)) == "[4194305] True"


def test_descendants_are_alive_and_below(marked: Marked) -> None:
    """Grandchildren too; neither the process itself, nor zombies, nor its parent's other children."""
    code = """
child = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE)
grandchild = int(child.stdout.readline())
zombie = os.fork()
if not zombie:
    os._exit(0)
os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
print(json.dumps([sorted(descendants()), sorted([child.pid, grandchild])]), flush=True)
time.sleep(60)
"""
    marked.start("time.sleep(60)")
    found, expected = json.loads(line(marked.start(code)))
    assert found == expected


DAEMON = """
isolated = enter_pid_namespace() > 0 if sys.argv[1] == "namespace" else False
worker = os.fork()
if worker == 0:
    os.setsid()
    die_with_parent()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            print(isolated, flush=True)
            time.sleep(60)
        os._exit(0)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


@needs_root
def test_nothing_survives_an_agent_in_a_namespace(marked: Marked) -> None:
    """SIGKILL of the agent ends the worker, and a daemon of the worker's that has left it long ago."""
    agent = marked.start(DAEMON, "namespace")
    if line(agent) == "False":
        pytest.skip("no PID namespaces here")
    assert len(marked.alive()) >= 4  # agent, first process of the namespace, worker, daemon
    agent.kill()
    assert wait_until(lambda: not marked.alive())


FIRST = """
signal.alarm(60)
fds = os.pipe()
if not enter_pid_namespace():
    print("no namespace")
    sys.exit()
(first,) = descendants()
while os.getsid(first) != first or len(os.listdir("/proc/%d/fd" % first)) > 3:
    time.sleep(0.01)
if os.fork() == 0:
    if os.fork() == 0:
        os._exit(0)  # an orphan, which only the first process can reap
    os._exit(0)
os.wait()
while len(descendants()) > 1 or len(list(p._children_listed(first))):
    time.sleep(0.01)
print(first, flush=True)
time.sleep(60)
"""


@needs_root
def test_the_first_process_of_a_namespace(marked: Marked) -> None:
    """It has none of the agent's files open, reaps what is orphaned, and ends with the agent, whatever signals it gets."""
    agent = marked.start("import podrun.launcher.agent.base.processes as p\n" + FIRST)
    printed = line(agent)
    if printed == "no namespace":
        pytest.skip("no PID namespaces here")
    first = int(printed)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(first, number)
    assert marked.alive() == {agent.pid, first}
    agent.kill()
    assert wait_until(lambda: not marked.alive())


def test_the_trial_of_a_namespace_is_made_once(marked: Marked) -> None:
    """A copy of the process knows its outcome."""
    code = """
import podrun.launcher.agent.base.processes as p
before = p.namespaces_work()
p.libc = None
if os.fork() == 0:
    print(p.namespaces_work() == before, flush=True)
    os._exit(0)
os.wait()
"""
    assert line(marked.start(code)) == "True"


@needs_root
def test_the_files_of_an_agent_are_not_kept_open_in_its_namespace(marked: Marked) -> None:
    """A connection that the agent closes ends, although the first process of the namespace is a copy of the agent."""
    code = """
import select
read, write = os.pipe()
isolated = enter_pid_namespace() > 0
os.close(write)
print(isolated, bool(select.select([read], [], [], 30)[0]), flush=True)
"""
    told = line(marked.start(code))
    if told.startswith("False"):
        pytest.skip("no PID namespaces here")
    assert told == "True True"


def test_without_a_namespace_the_worker_dies(marked: Marked) -> None:
    """The daemon stays, which is what a namespace and `sweep` are for."""
    agent = marked.start(DAEMON, "plain")
    assert line(agent) == "False"
    assert wait_until(lambda: len(marked.alive()) == 3)
    agent.kill()
    assert wait_until(lambda: len(marked.alive()) == 1)
    time.sleep(0.2)
    assert len(marked.alive()) == 1


def test_nobody_else_enters_a_namespace(marked: Marked) -> None:
    """Without root it is not tried, and nothing is left of the trial."""
    code = "os.geteuid = lambda: 1000\nprint(enter_pid_namespace(), descendants())"
    assert line(marked.start(code)) == "0 []"


PROC = """
if not enter_pid_namespace():
    sys.exit()
agent = os.getpid()
seen, seen_in = os.pipe()
for own in (False, True):
    if os.fork() == 0:
        before = parent()
        mounted = mount_own_proc() if own else None
        pids = sorted(all_pids())
        facts = [os.getpid() in pids, os.getpid(), agent in pids, before == agent, mounted, len(pids)]
        os.write(seen_in, json.dumps(facts).encode() + b"\\n")
        os._exit(0)
    facts = os.read(seen, 1000)
    print(facts.decode().strip(), flush=True)
print(json.dumps(os.getpid() in all_pids()), flush=True)
"""


@needs_root
def test_a_proc_that_shows_the_own_namespace(marked: Marked) -> None:
    """A child reads about itself, not about somebody else with the same number; outside nothing changes."""
    process = marked.start(PROC)
    first = line(process)
    if not first:
        pytest.skip("no PID namespaces here")
    is_there, pid, sees_agent, knows_parent, _, _ = json.loads(first)
    assert pid < 10
    assert sees_agent and knows_parent
    is_there, pid, sees_agent, knows_parent, mounted, count = json.loads(line(process))
    assert mounted and is_there and knows_parent
    assert not sees_agent
    assert pid < 10 and count <= 3
    assert line(process) == "true"


SPARED = """
first = enter_pid_namespace()
spared = subprocess.Popen(["sleep", "60"])
second = enter_pid_namespace()
ended = subprocess.Popen(["sh", "-c", "sleep 60 & wait"])
left = kill_descendants(reap, {first, spared.pid} - {0})
print(left == [], sorted(descendants()) == sorted({first, spared.pid} - {0}), first != second or first == 0, flush=True)
third = enter_pid_namespace()
print(subprocess.run(["true"]).returncode, kill_descendants(reap), descendants(), flush=True)
"""


def test_children_that_are_spared_live_on(marked: Marked) -> None:
    """Each namespace of children ends without the other, and a new one can follow."""
    agent = marked.start(SPARED)
    assert line(agent) == "True True True"
    assert line(agent) == "0 [] []"

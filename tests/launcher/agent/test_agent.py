"""What the agent does on a host: processes that end with it, the port, the lock, the environment and copy of the code."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent import port as port_module
from podrun.launcher.agent.login_folder import expand_process
from podrun.launcher.agent.port import RefusedError, deafen, probe, reserve_port
from podrun.launcher.agent.project_copy import STAMP, copy_code, remove_code
from podrun.launcher.agent.sweep import processes_of
from podrun.launcher.agent.worker import Worker, worker_env

IMPORTS = "import json, os, signal, subprocess, sys, time\nfrom podrun.launcher.agent.processes import *\n"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a PID namespace")


def wait_until(true: Callable[[], object], seconds: float = 15.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Marked:
    """Processes that carry a mark of the test's own in their environment."""

    def __init__(self) -> None:
        self.name = f"PODRUN_TEST_{uuid.uuid4().hex}"
        self._started: list[subprocess.Popen[str]] = []

    def start(self, code: str, *args: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Python code with the agent's functions imported."""
        self._started.append(
            subprocess.Popen(
                [*before, sys.executable, "-c", IMPORTS + code, *args],
                env={**os.environ, self.name: "1"},
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return self._started[-1]

    def alive(self) -> set[int]:
        found = set()
        for folder in Path("/proc").iterdir():
            try:
                marked = folder.name.isdigit() and f"{self.name}=1".encode() in (folder / "environ").read_bytes()
                if marked and (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                    found.add(int(folder.name))
            except OSError:
                continue
        return found

    def end(self) -> None:
        while left := self.alive():
            for pid in left:
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    pass
        for process in self._started:
            process.wait(10)
            assert process.stdout is not None
            process.stdout.close()


@pytest.fixture
def marked() -> Iterator[Marked]:
    processes = Marked()
    yield processes
    processes.end()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# --- processes ------------------------------------------------------------------------------------------------------

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
time.sleep(0.3)
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
    """Who forks, and ends, while /proc is read is not in it, nor is its child: the kernel knows that there is one."""
    code = """
import podrun.launcher.agent.processes as p
child = subprocess.Popen(["sleep", "60"])
blind, real = [1, 1, 1], p.descendants
p.descendants = lambda: [] if blind and blind.pop() else real()
print(p.kill_descendants(child.poll), child.returncode, real(), len(blind), flush=True)
"""
    assert line(marked.start(code)) == "[] -9 [] 0"


def test_what_does_not_die_is_told(marked: Marked) -> None:
    """After a time it must be stuck in the kernel: nobody waits for it for ever."""
    code = "import podrun.launcher.agent.processes as p; p.STUCK = 0.3\n"
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
time.sleep(0.2)
print(json.dumps([sorted(descendants()), sorted([child.pid, grandchild])]), flush=True)
time.sleep(60)
"""
    marked.start("time.sleep(60)")
    found, expected = json.loads(line(marked.start(code)))
    assert found == expected


DAEMON = """
isolated = enter_pid_namespace() if sys.argv[1] == "namespace" else False
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
    assert line(marked.start(code)) == "False []"


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


# --- sweep ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sleeper() -> Iterator[Callable[..., int]]:
    """Starts processes with variables of a run."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*args: str, **env: str) -> int:
        command = [sys.executable, "-c", "import time; print(flush=True); time.sleep(60)", *args]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE))
        output = started[-1].stdout
        assert output is not None
        output.readline()
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def test_a_sweep_ends_what_has_the_runs_marks(sleeper: Callable[..., int]) -> None:
    """Both in its environment: a command line or a part of a name is no mark, nor is another host's or run's."""
    run = f"r-{uuid.uuid4().hex}"
    ours = {sleeper(PODRUN_RUN_ID=run, PODRUN_HOST="host-1", OTHER="x") for _ in range(2)}
    others = {
        sleeper(PODRUN_RUN_ID=run, PODRUN_HOST="host-10"),
        sleeper(PODRUN_RUN_ID=run),
        sleeper(PODRUN_RUN_ID=f"{run}0", PODRUN_HOST="host-1"),
        sleeper(X=f"PODRUN_RUN_ID={run}", Y="PODRUN_HOST=host-1"),
        sleeper(f"PODRUN_RUN_ID={run}", "PODRUN_HOST=host-1"),
    }
    assert set(processes_of(run, "host-1")) == ours
    code = f"from podrun.launcher.agent.sweep import sweep; sweep({run!r}, 'host-1')"
    env = {**os.environ, "PODRUN_RUN_ID": run, "PODRUN_HOST": "host-1"}  # it does not end itself
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    answer = json.loads(done.stdout)
    assert (set(answer["found"]), answer["left"]) == (ours, [])
    assert processes_of(run, "host-1") == []
    assert {
        pid for pid in others if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    } == others


# --- port -----------------------------------------------------------------------------------------------------------


def number(sock: socket.socket) -> int:
    return int(sock.getsockname()[1])


def two_free_ports() -> int:
    """The first of two neighbours that nobody has."""
    for first in range(21000, 32000, 7):
        try:
            with socket.socket() as one, socket.socket() as two:
                one.bind(("", first))
                two.bind(("", first + 1))
        except OSError:
            continue
        return first
    pytest.skip("no free ports")


def sharing(port: int, family: int = socket.AF_INET) -> socket.socket:
    """As gRPC binds the coordinator's port."""
    sock = socket.socket(family)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("", port))
    sock.listen(64)
    return sock


def test_a_port_of_the_range_is_reserved() -> None:
    """Each is found, and none beside it."""
    first = two_free_ports()
    with reserve_port([first, first + 1]) as one, reserve_port([first, first + 1]) as two:
        assert {number(one), number(two)} == {first, first + 1}
        with pytest.raises(RefusedError, match=rf"^no port of \[{first}, {first + 1}\] is free .*`ports` in the pod"):
            reserve_port([first, first + 1])
    with reserve_port([first, first]) as again:
        assert number(again) == first


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("listens", [False, True])
def test_a_port_that_somebody_has_is_not_reserved(shared: bool, listens: bool) -> None:
    """Whether or not they would share it, and whether or not they listen: connections would go to them."""
    first = two_free_ports()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, int(shared))
        other.bind(("", first))
        if listens:
            other.listen()
        with pytest.raises(RefusedError):
            reserve_port([first, first])
        with reserve_port([first, first + 1]) as found:
            assert number(found) == first + 1


def test_a_reserved_port_can_be_tried() -> None:
    """Until the workers start it listens; nobody else gets it."""
    with reserve_port(None) as held:
        port = number(held)
        assert probe(f"127.0.0.1:{port}") is None
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", port))


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_coordinator_gets_the_port_and_all_connections(family: int) -> None:
    """Deaf, it is still held, refuses connections, and does not take one from the coordinator that shares it."""
    with deafen(reserve_port(None)) as held:
        port = number(held)
        assert probe(f"127.0.0.1:{port}") == "Connection refused"
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("", port))
        try:
            coordinator = sharing(port, family)
        except OSError:
            if family == socket.AF_INET6 and not socket.has_dualstack_ipv6():
                pytest.skip("no IPv6 here")
            raise
        with coordinator:
            coordinator.settimeout(5)
            for _ in range(50):
                with socket.create_connection(("127.0.0.1", port), 5):
                    coordinator.accept()[0].close()
        assert probe(f"127.0.0.1:{port}") == "Connection refused"


def test_an_address_that_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason: no such name, no answer, or nobody there."""
    monkeypatch.setattr(port_module, "PROBE_TIMEOUT", 0.2)
    assert probe("no-such-host.invalid:80")
    with socket.socket() as full:  # a queue that is full drops what comes, as a firewall does
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", number(full)))
        assert probe(f"127.0.0.1:{number(full)}") == "no answer within 0.2 s"
        for sock in waiting:
            sock.close()


# --- lock -----------------------------------------------------------------------------------------------------------

LOCK = """
from podrun.launcher.agent.lock import HostLock
home = sys.argv[1]
TAKE = "import sys, time; from podrun.launcher.agent.lock import HostLock; lock = HostLock(sys.argv[1]);"
TAKE += "print(lock.take(sys.argv[-1]), lock.take(sys.argv[-1]), sep='|', flush=True);"

def start(run, then=""):
    return subprocess.Popen([sys.executable, "-c", TAKE + then, home, run], stdout=subprocess.PIPE, text=True)

def told(run):
    return start(run).communicate()[0].strip().split("|")

holder = start("r-1", "[(lock.answer(), time.sleep(0.02)) for _ in range(3000)]")
facts = {"holder": holder.pid, "taken": holder.stdout.readline().strip().split("|")}
facts["other"] = told("r-2")
facts["same"] = told("r-1")
lock = HostLock(home)
facts["many"] = len([1 for _ in range(150) if time.sleep(0.005) or "r-1" not in lock.take("r-2")])
holder.kill()
holder.wait()
facts["after"] = told("r-2")
print(json.dumps(facts))
"""


def test_one_run_at_a_time_has_a_host(marked: Marked, tmp_path: Path) -> None:
    """Another is told who has it; agents of the same run may share a machine; death lets go of it.

    In a network namespace of its own: the lock is one per machine, and other runs may go on here.
    """
    own = ("unshare", "--net") if os.geteuid() == 0 else ("unshare", "--user", "--map-root-user", "--net")
    if subprocess.run([*own, "true"], capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    facts = json.loads(line(marked.start(LOCK, str(tmp_path), before=own)) or "null")
    assert facts["taken"] == ["None", "None"]
    assert all(text.startswith("run r-1 of ") for text in facts["other"])
    assert facts["other"][0].endswith(f"agent pid {facts['holder']})")
    assert facts["same"] == ["None", "None"]
    assert facts["many"] == 0
    assert facts["after"] == ["None", "None"]


# --- workers --------------------------------------------------------------------------------------------------------


def worker_spec(**changes: Any) -> dict[str, Any]:
    spec = {"process": 0, "argv": ["true"], "env": {}, "path": {}, "threads": None, "cwd": ".", "output": "0.out"}
    env = {"PODRUN_WORKDIR": "~/w", **changes.pop("env", {})}
    return {**spec, "events": "0.events", "env": env, **changes}


@pytest.mark.parametrize(
    ("threads", "cores", "own", "there", "expected"),
    [
        (None, 4, {}, None, None),
        (None, 4, {}, "3", "3"),
        (8, 4, {}, None, "8"),
        (2, 4, {}, None, "4"),
        (2, None, {}, None, "2"),
        (8, 4, {}, "3", "8"),
        (8, 4, {"NPROC": "5"}, "3", "5"),
    ],
)
def test_threads_of_a_worker_on_cpu(
    threads: int | None,
    cores: int | None,
    own: dict[str, str],
    there: str | None,
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread per device at least, or a collective waits for ever; one per core; the user's own number wins."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.delenv("NPROC", raising=False)
    if there:
        monkeypatch.setenv("NPROC", there)
    assert worker_env(worker_spec(threads=threads, env=own), {}).get("NPROC") == expected


def test_environment_of_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The login's, the plan's over it, then what became known last; folders go before those that are there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    monkeypatch.setenv("A", "login")
    monkeypatch.setenv("B", "login")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    path = {"PATH": ["~/.podrun/envs/1/bin"], "PYTHONPATH": ["~/.podrun/podruns/2", "/x"]}
    spec = worker_spec(env={"B": "plan", "C": "plan", "PODRUN_DIR": "~/d"}, path=path)
    env = worker_env(expand_process(spec), {"C": "last"})
    assert (env["A"], env["B"], env["C"]) == ("login", "plan", "last")
    assert env["PATH"] == "/home/me/.podrun/envs/1/bin:/bin:/usr/bin"
    assert env["PYTHONPATH"] == "/home/me/.podrun/podruns/2:/x"
    assert (env["PODRUN_DIR"], env["PODRUN_WORKDIR"]) == (str(tmp_path), "/home/me/w")
    assert "NPROC" not in env or env["NPROC"] == os.environ["NPROC"]
    env = worker_env(expand_process(worker_spec(env={"PYTHONPATH": "/plan"}, path=path)), {})
    assert env["PYTHONPATH"] == "/home/me/.podrun/podruns/2:/x:/plan"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"argv": ["no-such-program"]}, "no program 'no-such-program' in the PATH"),
        ({"argv": ["/etc/passwd"]}, "Permission denied"),
        ({"cwd": "no/such/folder"}, "no/such/folder"),
    ],
)
def test_a_worker_that_cannot_be_started(
    change: dict[str, Any], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason comes back at once, and the child is gone."""
    monkeypatch.chdir(tmp_path)
    worker = Worker(worker_spec(**change))
    worker.start({}, isolated=False)
    assert worker.pid is not None and os.WEXITSTATUS(os.waitpid(worker.pid, 0)[1]) == 127
    assert worker.error is not None and words in worker.error


def test_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session of its own, no input, what it prints in its file in order, and signals as at a login."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    code = "import os, sys, signal; print(os.getcwd(), os.environ['X'], os.getsid(0) == os.getpid(), sys.stdin.read());"
    code += "print(signal.getsignal(signal.SIGPIPE), file=sys.stderr)"
    argv = [sys.executable, "-u", "-c", code, "it's", ""]
    worker = Worker(worker_spec(argv=argv, cwd="sub", env={"X": "1"}))
    worker.start({"X": "2"}, isolated=False)
    assert worker.error is None and worker.pid is not None
    assert os.waitpid(worker.pid, 0)[1] == 0
    lines = (tmp_path / "0.out").read_text().splitlines()
    assert lines == [f"{tmp_path}/sub 2 True ", "1"]  # 1: Python's own SIG_IGN for SIGPIPE


def pythons() -> list[str]:
    """This Python, the system's, and other versions that are beside this one."""
    others = [path for path in Path(sys.base_prefix).parent.glob("3.*/bin/python3") if path.exists()]
    return [sys.executable, *(str(path) for path in (Path("/usr/bin/python3"), *sorted(others)) if path.exists())]


@pytest.mark.parametrize("python", pythons())
def test_a_worker_in_a_virtual_environment_below_the_login_folder(
    python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python finds its packages by the name it was called with: it must not be called `~/venv/bin/python`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    if subprocess.run([python, "-m", "venv", "--without-pip", "venv"], capture_output=True).returncode:
        pytest.skip(f"{python} makes no virtual environments")
    argv = ["~/venv/bin/python", "-c", "import sys; print(sys.prefix); print(sys.argv[1])", "~/x"]
    worker = Worker(expand_process(worker_spec(argv=argv)))
    worker.start({}, isolated=False)
    assert worker.error is None and worker.pid is not None
    assert os.waitpid(worker.pid, 0)[1] == 0
    assert (tmp_path / "0.out").read_text().splitlines() == [str(tmp_path / "venv"), "~/x"]


# --- the run's copy of the code -------------------------------------------------------------------------------------


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    for name in ("train.py", "pkg/deep/a.py", "data/ä.txt"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (folder / "to_file").symlink_to("train.py")
    (folder / "to_folder").symlink_to("pkg/deep")
    (folder / "pkg" / "to_nothing").symlink_to("gone")
    for path in folder.rglob("*"):
        os.utime(path, (STAMP, STAMP), follow_symlinks=False)
    return folder


def test_a_copy_is_removed_without_a_trace(tmp_path: Path, bundle: Path) -> None:
    """Links to folders, caches and empty folders included; the bundle and what links lead to stay."""
    before = sorted(bundle.rglob("*"))
    target = tmp_path / "run" / "code"
    copy_code(str(bundle), str(target))
    assert (target / "to_folder" / "a.py").read_text() == "pkg/deep/a.py"
    (target / "pkg" / "__pycache__").mkdir()
    (target / "pkg" / "__pycache__" / "a.pyc").write_bytes(b"x")
    (target / "empty" / "too").mkdir(parents=True)
    assert remove_code(str(target)) is None
    assert not target.exists()
    assert sorted(bundle.rglob("*")) == before


def test_what_a_program_wrote_stays(tmp_path: Path, bundle: Path) -> None:
    """New and changed files, and links; nothing else."""
    target = tmp_path / "code"
    copy_code(str(bundle), str(target))
    (target / "data" / "result.txt").write_text("new")
    (target / "train.py").write_text("changed")
    (target / "pkg" / "link").symlink_to("/tmp")
    assert remove_code(str(target)) == str(target)
    left = sorted(str(path.relative_to(target)) for path in target.rglob("*"))
    assert left == ["data", "data/result.txt", "pkg", "pkg/link", "train.py"]


def test_a_copy_replaces_what_an_earlier_try_left(tmp_path: Path, bundle: Path) -> None:
    target = tmp_path / "code"
    copy_code(str(bundle), str(target))
    (target / "stale.py").write_text("x")
    copy_code(str(bundle), str(target))
    assert not (target / "stale.py").exists()

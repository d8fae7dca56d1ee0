"""Single turns of an agent: files, marks, the host's lock, and the order of its outbox."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.base.processes import enter_pid_namespace, namespaces_work
from podrun.launcher.agent.host.lock import HostLock, current_holder
from podrun.launcher.agent.host.notice import Notice
from podrun.launcher.agent.host.port import RefusedError
from podrun.launcher.agent.run import serve, workers
from podrun.launcher.agent.run.outbox import REST, Outbox
from podrun.launcher.agent.run.prewarmed import PrewarmedWorkers
from podrun.launcher.agent.run.serve import Agent

PROCESS = {"process": 0, "argv": ["true"], "env": {}, "path": {}, "threads": None, "cwd": "."}
PROCESS |= {"output": "0.out", "events": "0.events", "beat": "0.beat", "profile": "0.profile"}


def _loop(path: str) -> None:
    os.symlink(path, path)


DAMAGES = (os.mkdir, _loop, os.mkfifo)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    """An agent in a folder of its own, that has not begun to serve."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workers, "enter_pid_namespace", lambda: 0)
    used = tmp_path / "bundle"
    used.mkdir(mode=0o700)
    spec = {"run": "r-1", "home": str(tmp_path), "dir": str(tmp_path), "lease": 60.0, "grace": 5.0, "code": None}
    spec |= {"files": {"config.json": "secret"}, "uses": [str(used)], "exclusive": False, "coordinator": False}
    spec |= {"measures": False, "is_program": False, "ports": None, "internal": None, "processes": [PROCESS]}
    with socket.socket() as listener:
        yield Agent(spec, listener, HostLock(str(tmp_path)), PrewarmedWorkers(), Notice())


def test_files_of_a_run_are_for_nobody_else(agent: Agent) -> None:
    """Whatever the umask; a folder of bundles that others could have changed is refused."""
    before = os.umask(0)
    try:
        agent.prepare()
    finally:
        os.umask(before)
    assert Path("config.json").read_text() == "secret"
    assert os.stat("config.json").st_mode & 0o777 == 0o600
    os.chmod(agent.spec["uses"][0], 0o777)
    with pytest.raises(RefusedError, match="others could have changed it"):
        agent.prepare()


def test_folders_in_use_are_marked_again_and_again(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a long run's code is pruned under it; every five minutes is often enough."""
    (folder,) = agent.spec["uses"]
    times = [10_000.0]
    monkeypatch.setattr(serve.time, "monotonic", lambda: times[0])

    def is_marked() -> bool:
        os.utime(folder, (1.0, 1.0))
        agent.hold_host()
        return os.stat(folder).st_mtime > 1.0

    assert is_marked() and not is_marked()
    times[0] += 299.0
    assert not is_marked()
    times[0] += 2.0
    assert is_marked()


def other_agent(home: Path, run: str) -> str:
    """Return what another agent is told that takes the host."""
    code = "import sys; from podrun.launcher.agent.host.lock import HostLock; print(HostLock(sys.argv[1]).take(sys.argv[2]))"
    return subprocess.run([sys.executable, "-c", code, str(home), run], capture_output=True, text=True).stdout.strip()


def test_a_host_is_released_when_its_workers_have_ended(agent: Agent, tmp_path: Path) -> None:
    """Only the last output remains to be fetched then, which may take long."""
    agent.spec["exclusive"] = True
    assert agent.claim.lock.take("r-1") is None
    agent.ready = True
    agent.hold_host()
    assert other_agent(tmp_path, "r-2").startswith("run r-1")
    agent.workers.started = True  # and no worker runs
    agent.hold_host()
    assert other_agent(tmp_path, "r-2") == "None"
    assert current_holder(str(tmp_path)) is None


def test_a_lock_that_is_released_can_be_taken_again(tmp_path: Path) -> None:
    """By the same process, or by another one."""
    lock = HostLock(str(tmp_path))
    lock.release()
    for run in ("r-1", "r-2"):
        assert lock.take(run) is None
        assert other_agent(tmp_path, "r-3").startswith(f"run {run}")
        lock.release()
        lock.release()
        assert other_agent(tmp_path, "r-3") == "None"


class Listening:
    """Connection that has attached with these offsets, and takes everything."""

    unsent = b""
    open = True
    next = 0

    def __init__(self, **offsets: int) -> None:
        self.offsets = {name.replace("_", "."): size for name, size in offsets.items()}
        self.sent: list[Any] = []

    def send(self, frame: dict[str, Any]) -> None:
        self.sent.append(frame["type"] if frame["type"] != "output" else frame["stream"])


def test_an_exit_comes_after_the_last_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event may hold the reason; and the end of the agent comes after all output, or does not wait for much of it."""
    monkeypatch.chdir(tmp_path)
    outbox = Outbox([PROCESS])
    for name in ("0.events", "0.out"):
        Path(name).write_text("x" * 10)
    outbox.report({"type": "exit", "process": 0})
    outbox.report({"type": "stopped", "reason": "x"})
    connection: Any = Listening(**{"0_events": 0, "0_out": 0})
    outbox.send(connection)
    assert connection.sent == ["0.events", "exit", "0.out", "stopped"]
    outbox.skips_output = True
    connection = Listening(**{"0_events": 0, "0_out": 0})
    outbox.send(connection)
    assert connection.sent == ["0.events", "exit", "0.out", "stopped"]
    Path("0.out").write_text("x" * (REST + 1))
    connection = Listening(**{"0_events": 0, "0_out": 0})
    outbox.send(connection)
    assert connection.sent[:3] == ["0.events", "exit", "stopped"]


@pytest.mark.parametrize("damage", DAMAGES)
def test_an_exit_is_told_although_the_events_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[str], None]
) -> None:
    """Their stream has ended, which is said once, and the agent's end waits for it no more."""
    monkeypatch.chdir(tmp_path)
    outbox = Outbox([PROCESS])
    damage("0.events")
    Path("0.out").write_text("x" * 10)
    outbox.report({"type": "exit", "process": 0})
    outbox.report({"type": "stopped", "reason": "x"})
    connection: Any = Listening(**{"0_events": 0, "0_out": 0})
    outbox.send(connection)
    outbox.send(connection)
    assert connection.sent.count("unreadable") == 1
    assert [kind for kind in connection.sent if kind != "unreadable"] == ["exit", "0.out", "stopped"]
    assert outbox.history[2]["stream"] == "0.events" and outbox.history[2]["error"]
    assert outbox.has_all("0.out", 10) and not outbox.has_all("0.events", 0)


def test_a_file_that_cannot_be_read_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is there, but reading it fails; a lack of open files is soon over, and ends nothing."""
    monkeypatch.chdir(tmp_path)
    outbox = Outbox([PROCESS])
    Path("0.events").write_text("x" * 10)
    outbox.report({"type": "exit", "process": 0})
    connection: Any = Listening(**{"0_events": 0, "0_out": 0})
    errors = iter([errno.EMFILE, errno.EIO])

    def fail(*args: Any) -> None:
        number = next(errors)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("podrun.launcher.agent.run.outbox.open_stream", fail)
    with pytest.raises(OSError, match="Too many"):
        outbox.send(connection)
    outbox.send(connection)
    assert connection.sent == ["exit", "unreadable"]


def test_nothing_is_sent_before_the_launcher_has_attached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent does not know yet what is on record there."""
    monkeypatch.chdir(tmp_path)
    outbox = Outbox([PROCESS])
    outbox.report({"type": "hello", "why": "x" * 20_000})
    connection: Any = Listening()
    connection.offsets = None
    outbox.send(connection)
    assert connection.sent == [] and len(outbox.history[0]["why"]) == 8192


@pytest.mark.skipif(not namespaces_work(), reason="only root can make PID namespaces")
def test_workers_start_although_the_first_process_of_their_namespace_was_killed(agent: Agent) -> None:
    """The kernel says of such a namespace that there is no memory; they get a new one."""

    def start() -> None:
        agent.spec["processes"][0].update(argv=["sh", "-c", "exit 5"], cwd=".")
        first = enter_pid_namespace()
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        agent.workers.isolated = True
        workers.enter_pid_namespace = enter_pid_namespace
        list(agent.workers.start({}))
        (worker,) = agent.workers.each
        assert worker.error is None and worker.pid is not None, worker.error
        assert os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1]) == 5

    pid = os.fork()  # the namespace of a process's children cannot be left again
    if pid == 0:
        code = 1
        try:
            start()
            code = 0
        except BaseException as error:
            print(error, file=sys.stderr)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_stop_may_be_hurried_by_a_later_one(agent: Agent) -> None:
    """The moment of the kill moves with each; the reason stays the first."""
    agent.stop(100.0, "first")
    first = agent.ending.kill_at
    agent.stop(0.0, "second")
    assert agent.ending.reason == "first" and first is not None and agent.ending.kill_at is not None
    assert agent.ending.kill_at < first


@pytest.mark.parametrize(("lease", "seconds"), [(10.0, 1.0), (60.0, 3.0), (102.4, 5.0), (86400.0, 5.0)])
def test_an_agent_under_a_long_lease_sleeps_longer(agent: Agent, lease: float, seconds: float) -> None:
    """A thousand agents that wait for each other on two cores must not keep them busy by that; a stop's end is not missed."""
    agent.spec["lease"] = lease
    assert agent.timeout() == seconds
    agent.ending.kill_at = time.monotonic() + 0.01
    assert agent.timeout() <= 0.01

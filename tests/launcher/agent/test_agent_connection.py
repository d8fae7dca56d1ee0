"""An agent outlives its connections, whatever they do, and says everything once."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.host.lock import HostLock
from podrun.launcher.agent.host.notice import Notice
from podrun.launcher.agent.main import MARK
from podrun.launcher.agent.prepare import project_copy
from podrun.launcher.agent.run import serve
from podrun.launcher.agent.run.prewarmed import PrewarmedWorkers
from podrun.launcher.plan.agent_file import agent_file

from ...pythons import other_python

Frame = dict[str, Any]


START = "import sys; sys.path.insert(0, sys.argv[1]); from podrun_agent.main import main; main(sys.argv[2:])"


class Agent:
    """A real agent with one process, spoken to without a launcher."""

    def __init__(
        self, folder: Path, argv: list[str], python: str = sys.executable, grace: float = 1.0, lease: float = 60.0
    ) -> None:
        self.folder = folder / "run"
        file = folder / f"{agent_file()[0]}"
        file.write_bytes(agent_file()[1])
        process = {
            "process": 0,
            "argv": argv,
            "env": {"PODRUN_WORKDIR": str(folder)},
            "path": {},
            "threads": None,
            "cwd": ".",
            "output": "0.out",
            "events": "0.events",
            "beat": "0.beat",
            "profile": "0.profile",
        }
        spec = {
            "type": "spec",
            "run": "test",
            "attempt": 0,
            "dir": str(self.folder),
            "lease": lease,
            "grace": grace,
            "files": {},
            "code": None,
            "uses": [],
            "exclusive": False,
            "measures": False,
            "devices": "cpu",
            "coordinator": False,
            "is_program": False,
            "ports": None,
            "internal": None,
            "home": str(folder),
            "processes": [process],
        }
        self.relay = subprocess.Popen(
            [python, "-I", "-S", "-c", START, str(file), "run", "test"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.relay.stdin is not None and self.relay.stdout is not None
        attach = {"type": "attach", "next": 0, "offsets": {}}
        self.relay.stdin.write(b"".join(json.dumps(frame).encode() + b"\n" for frame in (spec, attach)))
        self.relay.stdin.flush()
        assert self.relay.stdout.readline() == MARK
        self.pid = int(json.loads(self.relay.stdout.readline())["pid"])
        self.relay.kill()  # from now on the test's own connections are the only ones
        self.relay.wait()
        self.output = bytearray()  # a test takes tens of megabytes in small pieces
        self.frames: list[Frame] = []

    def connect(self, *frames: Frame) -> socket.socket:
        """A connection like a launcher's that has all that came so far."""
        sock = socket.socket(socket.AF_UNIX)
        with open_folder(self.folder) as fd:  # the path may be longer than an address can be
            sock.connect(f"/proc/self/fd/{fd}/agent.sock")
        attach = {"type": "attach", "next": len(self.frames), "offsets": {"0.out": len(self.output)}}
        send(sock, attach, *frames)
        sock.settimeout(30)
        return sock

    def read(self, sock: socket.socket, enough: Callable[[], bool]) -> None:
        """Takes whole frames until `enough`, or the connection's end."""
        rest = b""
        while not enough() and (data := sock.recv(65536)):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                frame = json.loads(line)
                if frame["type"] == "output":
                    assert frame["offset"] == len(self.output)
                    self.output += frame["data"].encode("utf-8", "surrogateescape")
                elif frame["type"] != "pong":
                    self.frames.append(frame)

    def has(self, kind: str) -> bool:
        return any(f["type"] == kind for f in self.frames)

    def gone(self) -> bool:
        try:
            return "Z" in Path(f"/proc/{self.pid}/stat").read_text().split()
        except FileNotFoundError:
            return True

    def wait(self) -> None:
        deadline = time.monotonic() + 30
        while not self.gone():
            assert time.monotonic() < deadline, "the agent does not end"
            time.sleep(0.02)

    def end(self) -> None:
        if not self.gone():
            os.kill(self.pid, signal.SIGKILL)


@contextmanager
def open_folder(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def send(sock: socket.socket, *frames: Frame) -> None:
    sock.sendall(b"".join(json.dumps(frame).encode() + b"\n" for frame in frames))


@pytest.fixture(params=["this Python", "3.8"])
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Agent]]:
    """Start agents in this Python, and in the oldest that a host may have."""
    python = sys.executable if request.param == "this Python" else other_python(request.param)
    agents: list[Agent] = []

    def starter(*argv: str, **options: float) -> Agent:
        agents.append(Agent(tmp_path, list(argv), python, **options))
        return agents[-1]

    yield starter
    for agent in agents:
        agent.end()


GO = {"type": "go", "env": {}}


def test_connections_that_break_while_output_is_sent(start: Callable[..., Agent]) -> None:
    """Forty times a connection is closed with output on its way: the agent goes on, and no line is missing or comes twice."""
    lines = 200_000
    agent = start(sys.executable, "-c", f"for i in range({lines}): print(i, 'x' * 60)")
    sock = agent.connect(GO)
    for _ in range(40):
        size = len(agent.output)
        agent.read(sock, lambda size=size: len(agent.output) > size)  # type: ignore[misc]
        sock.close()  # with data unread: the next send of the agent's fails
        sock = agent.connect()
    agent.read(sock, lambda: agent.has("exit") and agent.output.endswith(b"%d %s\n" % (lines - 1, b"x" * 60)))
    assert agent.output == b"".join(b"%d %s\n" % (i, b"x" * 60) for i in range(lines))
    send(sock, {"type": "stop", "grace": 0})
    agent.read(sock, lambda: agent.has("stopped"))
    assert [f["n"] for f in agent.frames] == list(range(len(agent.frames)))


@pytest.mark.parametrize(
    "malformed",
    [b"no JSON\n", b"[1]\n", b'{"type": "stop"}\n', b'{"type": "attach", "next": 0, "offsets": 3}\n', b"\xff\xfe\n"],
)
def test_what_is_no_frame_ends_its_connection_only(start: Callable[..., Agent], malformed: bytes) -> None:
    """The launcher may attach again, and the process has not noticed."""
    agent = start("sh", "-c", "echo one; sleep 60")
    sock = agent.connect(GO)
    agent.read(sock, lambda: agent.output == b"one\n" and agent.has("started"))
    sock.sendall(malformed)
    agent.read(sock, lambda: False)  # to its end
    sock = agent.connect({"type": "stop", "grace": 30})
    agent.read(sock, lambda: agent.has("stopped"))
    (ended,) = [f for f in agent.frames if f["type"] == "exit"]
    assert (ended["code"], ended["asked"]) == (-signal.SIGTERM, True)


def test_no_file_to_be_opened_for_a_while(start: Callable[..., Agent]) -> None:
    """An agent that may open no more files serves on when it may again."""
    agent = start("sh", "-c", "while sleep 0.05; do echo more; done")
    sock = agent.connect(GO)
    agent.read(sock, lambda: b"more\n" in agent.output)
    sock.close()
    in_use = len(os.listdir(f"/proc/{agent.pid}/fd"))
    soft, hard = 3, 4096
    subprocess.run(["prlimit", f"--nofile={soft}:{hard}", "--pid", str(agent.pid)], check=True)
    sock = agent.connect()
    time.sleep(0.3)  # some turns in which neither a connection nor a file can be opened
    assert in_use > soft
    subprocess.run(["prlimit", f"--nofile={hard}:{hard}", "--pid", str(agent.pid)], check=True)
    size = len(agent.output)
    agent.read(sock, lambda: len(agent.output) > size)
    assert len(agent.output) > size


def test_output_that_nobody_fetched_stays(start: Callable[..., Agent]) -> None:
    """Output that the launcher says it has may go; the rest of it stays on the host, and the launcher is told how much."""
    agent = start("sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x")
    sock = agent.connect(GO)
    agent.read(sock, lambda: agent.has("exit") and len(agent.output) > 100_000)
    had = len(agent.output)
    sock.close()
    sock = agent.connect({"type": "stop", "grace": 0, "hurry": True})
    agent.read(sock, lambda: agent.has("stopped"))
    assert agent.frames[-1]["missing"] > 0
    send(sock, {"type": "close", "offsets": {"0.out": had}})
    agent.wait()
    assert [p.name for p in agent.folder.iterdir()] == ["0.out"]


def test_lease_that_ends_during_a_stop(start: Callable[..., Agent]) -> None:
    """Once gone, a launcher that asked for a long grace is waited for no longer than one that asked for nothing."""
    agent = start("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done", grace=0.5, lease=1.0)
    sock = agent.connect(GO)
    agent.read(sock, lambda: agent.output == b"ready\n")
    send(sock, {"type": "stop", "grace": 600})
    sock.close()
    agent.wait()


def test_close_that_comes_early(start: Callable[..., Agent]) -> None:
    """The launcher says that it waits no longer while a process still runs: the agent ends when that has ended."""
    agent = start("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    sock = agent.connect(GO)
    agent.read(sock, lambda: agent.output == b"ready\n")
    send(sock, {"type": "stop", "grace": 0.5}, {"type": "close", "offsets": {"0.out": len(agent.output)}})
    sock.close()
    agent.wait()
    assert not agent.folder.exists()


def test_code_that_cannot_be_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The launcher waits for the word that all has ended, which names the folder that stays."""

    def fail(folder: str) -> None:
        raise OSError(errno.EBUSY, "busy")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(project_copy, "remove_code", fail)
    spec = {"processes": [], "home": str(tmp_path), "code": "bundle", "lease": 60.0}
    agent = serve.Agent(spec, socket.socket(), HostLock(str(tmp_path)), PrewarmedWorkers(), Notice())
    assert agent.remove_code() == str(tmp_path / "code")
    agent.listener.close()

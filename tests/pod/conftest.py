"""Runs of podrun that a test watches and disturbs while they go on."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Sandbox
from ..hosts import wait_until

Event = dict[str, Any]


class Run:
    """A running podrun and its events so far."""

    def __init__(self, sandbox: Sandbox, *args: str) -> None:
        self.sandbox = sandbox
        self.process = sandbox.start(*args)
        self.events: list[Event] = []
        self.stderr = ""
        self._news: queue.Queue[Event | None] = queue.Queue()
        self._threads = [threading.Thread(target=f, daemon=True) for f in (self._read_events, self._read_stderr)]
        for thread in self._threads:
            thread.start()

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self._news.put(json.loads(line))
            except ValueError:
                self._news.put({"event": "no event", "line": line})
        self._news.put(None)

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        self.stderr = self.process.stderr.read()

    def wait_for(self, wanted: Callable[[Event], bool], timeout: float = 240) -> Event:
        """The next event that is wanted. Fails if podrun ends first."""
        deadline = time.monotonic() + timeout
        while True:
            event = self._next(max(0.1, deadline - time.monotonic()))
            assert event is not None, f"podrun ended; stderr:\n{self.stderr}\nevents: {self.events[-5:]}"
            if wanted(event):
                return event

    def reaches(self, wanted: Callable[[Event], bool], timeout: float) -> bool:
        """Return whether an event that is wanted comes, before podrun ends."""
        deadline = time.monotonic() + timeout
        while (event := self._next(max(0.1, deadline - time.monotonic()))) is not None:
            if wanted(event):
                return True
        self._news.put(None)  # for `end`
        return False

    def _next(self, timeout: float) -> Event | None:
        """Wait for the next event, and record it; None at the end of the output."""
        event = self._news.get(timeout=timeout)
        if event is not None:
            assert event["event"] != "no event", f"no event: {event['line']!r}; before it: {self.events[-3:]}"
            self.events.append(event)
        return event

    def wait_for_step(self, step: int) -> Event:
        return self.wait_for(lambda e: e["event"] == "step" and e["step"] >= step)

    def end(self, timeout: float = 240) -> int:
        """Waits for podrun's end; returns its exit code."""
        code = self.process.wait(timeout)
        for thread in self._threads:
            thread.join(timeout=60)
        while self._next(timeout=60) is not None:
            pass
        return code

    def of(self, kind: str) -> list[Event]:
        return [e for e in self.events if e["event"] == kind]

    @property
    def last_line(self) -> str:
        return str(self.of("end")[-1]["message"])

    def worker(self, process: int) -> int:
        """The pid of a worker that has been started."""
        return next(int(e["pid"]) for e in self.of("host") if e["phase"] == "started" and e["process"] == process)

    def agent(self, host: str) -> int:
        return next(int(e["pid"]) for e in self.of("host") if e["phase"] == "hello" and e["host"] == host)

    def sleep_until_hosts_give_up(self) -> None:
        """Stop podrun until no agent and no process of its run is left, which they decide by themselves."""
        hosts = [e for e in self.of("host") if e["phase"] in ("hello", "started")]
        kill(self.process.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: not any(is_alive(int(e["pid"])) for e in hosts), "the hosts to give up", 120)
        finally:
            kill(self.process.pid, signal.SIGCONT)


def processes_of(sandbox: Sandbox) -> dict[int, str]:
    """Every live process that was started from this sandbox's podrun: pid -> command."""
    mark = f"PODRUN_HOME={sandbox.path / 'home'}".encode()
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            ours = folder.name.isdigit() and mark in (folder / "environ").read_bytes().split(b"\0")
            if ours and (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def relays_of(sandbox: Sandbox, run: Run, hosts: int) -> set[int]:
    """The processes between the launcher and its agents; a child of an agent is the first process of its PID namespace."""
    agents = {run.agent(f"host-{host}") for host in range(hosts)}
    relays = {pid for pid, command in processes_of(sandbox).items() if re.search(r" (run|attach) \S+ ?$", command)}
    return {pid for pid in relays - agents if parent(pid) not in agents}


def parent(pid: int) -> int:
    """Return the pid of a process's parent, 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    os.kill(pid, number)


def kill_if_alive(pid: int) -> None:
    try:
        kill(pid)
    except ProcessLookupError:
        pass


def end_processes(sandbox: Sandbox) -> None:
    """Kill whatever is left of the sandbox's runs."""
    for pid in processes_of(sandbox):
        kill_if_alive(pid)


@pytest.fixture
def start(sandbox: Sandbox) -> Iterator[Callable[..., Run]]:
    """Starts podrun; whatever is left of it after the test is ended by pid."""
    shutil.copy(Path(__file__).with_name("faulty.py"), sandbox.path / "faulty.py")
    runs: list[Run] = []

    def starter(*args: str) -> Run:
        runs.append(Run(sandbox, *args))
        return runs[-1]

    yield starter
    end_processes(sandbox)
    for run in runs:
        try:
            run.process.wait(60)
        except subprocess.TimeoutExpired:
            run.process.kill()


def peak(pid: int) -> int:
    """Bytes of memory that a process has had at most; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM")), 0)


def kill_everything(sandbox: Sandbox) -> None:
    """SIGKILL to launcher, relays, agents and workers, until none is left."""
    while found := processes_of(sandbox):
        for pid in found:
            try:
                kill(pid)
            except ProcessLookupError:
                pass

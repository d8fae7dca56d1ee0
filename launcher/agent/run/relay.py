"""Relay frames between the launcher's connection and the agent's socket; a dropped connection ends only the relay."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, List, Optional, Tuple, Union

from ..base.connection import CHUNK
from ..base.disk import cannot_write
from ..base.login_folder import expand_spec
from ..base.places import SOCKET
from ..base.private import UnsafeError
from ..base.processes import namespaces_work
from ..base.protocol import NO_AGENT, NOT_STARTED, Malformed, parse
from ..base.run_folder import LOG, open_folder, use_log
from ..base.shown_command import show_run
from ..base.stdin import read_line
from ..base.to_agent import FIRST, SPEC, WAITING
from .prepare_first import prepare_first
from .prestart import PrestartedAgent

if TYPE_CHECKING:
    from ..base.to_agent import Environ, First, Ping, Spec


def run() -> None:
    """Start the agent for the spec on stdin, and relay to it. The host is prepared before, if the launcher asks for that."""
    from . import attempts  # noqa: F401  (import the agent's modules while the spec is still on its way)

    namespaces_work()  # likewise: the agent gets the answer that it remembers
    line, rest = read_line(0)
    prestarted: Optional[PrestartedAgent] = None
    try:
        frame: First = parse(line, FIRST)
        if frame["type"] == "prepare":
            prepare_first(frame, rest)
            line, rest = read_line(0)
            given: Spec = parse(line, SPEC)
        elif frame["type"] == "prestart":
            prestarted = PrestartedAgent(frame)
            given, rest = await_spec(prestarted, rest, frame.get("lease"))
        else:
            given = frame
        spec = expand_spec(given)
        child = prestarted.start(spec) if prestarted else start(spec)
    except Malformed as why:
        sys.exit("%s: malformed spec: %s" % (NOT_STARTED, why))
    except UnsafeError as error:
        sys.exit("%s: %s" % (NOT_STARTED, error))
    except OSError as error:
        sys.exit("%s: %s" % (NOT_STARTED, cannot_write(error, spec["dir"])))
    finally:
        if prestarted:
            prestarted.close()
    relay(spec["dir"], rest, child)
    os.waitpid(child, 0)


def await_spec(agent: PrestartedAgent, data: bytes, lease: Optional[float]) -> Tuple[Spec, bytes]:
    """Wait for the spec on stdin, and meanwhile pass on what the agent says. Exits if stdin or the agent ends.

    Args:
        agent: the agent that waits.
        data: bytes that have been read from stdin.
        lease: seconds of silence on stdin after which this process exits; None: no limit.

    Returns:
        The spec, and the bytes that follow it.
    """
    heard = time.monotonic()
    sources: List[Any] = [0, agent.sock]
    while True:
        while b"\n" not in data:
            left = None if lease is None else max(0.0, heard + lease - time.monotonic())
            ready = select.select(sources, [], [], left)[0]
            if agent.sock in ready:
                say(agent.read_line())
            elif 0 in ready:
                chunk = os.read(0, CHUNK)
                if not chunk:
                    sys.exit(0)  # the launcher needs no agent here any more
                data, heard = data + chunk, time.monotonic()
            elif not ready and lease is not None:
                sys.exit("no word from the launcher for %g s" % lease)
        line, _, data = data.partition(b"\n")
        frame: Union[Ping, Environ, Spec] = parse(line, WAITING)
        if frame["type"] == "spec":
            show_run(frame["run"])
            return frame, data
        if frame["type"] == "environ":
            agent.environ = frame["env"]


def start(spec: Spec) -> int:
    """Make the run folder and its socket, then fork the agent. Returns its pid."""
    listener, log = open_folder(spec)
    pid = os.fork()
    if pid:
        listener.close()
        os.close(log)
        return pid
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    use_log(log)
    from .attempts import become_agent

    become_agent(spec, listener)


def say(line: bytes) -> None:
    """Send a line to the launcher. Exits if it is gone."""
    try:
        os.write(1, line)
    except OSError:
        sys.exit(0)


def relay(directory: str, first: bytes, child: int = 0) -> None:
    """Copy stdin to the agent, and the agent's frames to stdout, until either side ends.

    Args:
        directory: folder of the agent.
        first: bytes to send to the agent before stdin.
        child: pid of the agent if it is a child of this process. It gets each SIGTERM that this process gets; 0: no
            child.
    """
    # SIGTERM is meant for the agent, which lets the workers save. SLURM may send it only to the first process of a step,
    # this one, which must live on to relay the agent's last frames.
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number) if child else None)
    agent = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(directory)
        agent.connect(SOCKET)
    except OSError:
        log_line = last_log_line(directory)
        sys.exit("%s: %s" % (NO_AGENT, log_line) if log_line else NO_AGENT)
    # A thread per direction: frames of a launcher that reads output slowly must still arrive, or the lease would expire.
    threading.Thread(target=copy_to_agent, args=(first, agent), daemon=True).start()
    try:
        while True:
            data = agent.recv(CHUNK)
            if not data:
                return
            while data:
                data = data[os.write(1, data) :]
    except OSError:
        return  # either side is gone


def copy_to_agent(data: bytes, agent: socket.socket) -> None:
    """Copy `data` and then stdin to the agent. The end of stdin ends the relay."""
    try:
        agent.sendall(data)
        while True:
            data = os.read(0, CHUNK)
            if not data:
                break
            agent.sendall(data)
        agent.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the agent is gone; the other thread ends the relay


def last_log_line(directory: str) -> str:
    """Return the last line of the agent's log, which may say why it ended; empty without a log."""
    try:
        with open(os.path.join(directory, LOG), encoding="utf-8", errors="replace") as file:
            return (file.read().strip().splitlines() or [""])[-1]
    except OSError:
        return ""

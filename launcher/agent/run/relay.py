"""Relay between the launcher's connection and the agent's socket, so that a dropped connection does not end the agent."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Optional

from ..base.connection import CHUNK
from ..base.disk import cannot_write
from ..base.login_folder import expand_spec
from ..base.private import UnsafeError
from ..base.protocol import GONE, UNBEGUN, Malformed, parse
from ..base.run_folder import LOG, SOCKET, open_folder, use_log
from ..base.stdin import read_line
from ..base.to_agent import FIRST, SPEC
from .prestart import Ahead, become_agent

if TYPE_CHECKING:
    from ..base.to_agent import First, Spec


def run() -> None:
    """Read the spec, start the agent, and relay to it."""
    from . import attempts  # noqa: F401  (what the agent needs; the spec often comes later, while nothing else is to be done)

    line, rest = read_line(0)
    begun: Optional[Ahead] = None
    try:
        frame: First = parse(line, FIRST)
        if frame["type"] == "ahead":
            begun = Ahead(frame)
            line, rest = read_line(0, rest)
            given: Spec = parse(line, SPEC)
        else:
            given = frame
        spec = expand_spec(given)
        child = begun.go_on(spec) if begun else start(spec)
    except Malformed as why:
        sys.exit("%s: malformed spec: %s" % (UNBEGUN, why))
    except UnsafeError as error:
        sys.exit("%s: %s" % (UNBEGUN, error))
    except OSError as error:
        sys.exit("%s: %s" % (UNBEGUN, cannot_write(error, spec["dir"])))
    finally:
        if begun:
            begun.close()
    relay(spec["dir"], rest, child)
    os.waitpid(child, 0)


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
    become_agent(spec, listener)


def relay(directory: str, first: bytes, child: int = 0) -> None:
    """Copy stdin to the agent, and the agent's frames to stdout, until either side ends.

    `child`: pid of the agent, if it is a child of this process; it gets the SIGTERM that this process gets.
    """
    # It is meant for the agent, which lets the workers save: of a step of SLURM's only the first process may get it, and
    # that one must carry the rest.
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(child, number) if child else None)
    agent = socket.socket(socket.AF_UNIX)
    try:
        os.chdir(directory)
        agent.connect(SOCKET)
    except OSError:
        log_line = last_log_line(directory)
        sys.exit("%s: %s" % (GONE, log_line) if log_line else GONE)
    # A thread per direction: a launcher that is slow to take output must still be heard, or the lease would expire.
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
    """Copy stdin to the agent, and end the relay at its end."""
    try:
        agent.sendall(data)
        while True:
            data = os.read(0, CHUNK)
            if not data:
                break
            agent.sendall(data)
        agent.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # the agent is gone, which the other thread sees


def last_log_line(directory: str) -> str:
    """Return the last line of the agent's log, which may say why it ended; empty if there is none."""
    try:
        with open(os.path.join(directory, LOG), encoding="utf-8", errors="replace") as file:
            return (file.read().strip().splitlines() or [""])[-1]
    except OSError:
        return ""

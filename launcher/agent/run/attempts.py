"""Serve the attempts of a run, one after another, over one connection: an agent outlives a failed attempt."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, NoReturn, Optional

from ..base.connection import Connection
from ..base.processes import kill_descendants, reap
from ..base.run_folder import open_folder, use_log
from ..host.lock import HostLock
from ..host.notice import Notice
from .prewarmed import PrewarmedWorkers
from .run_memory import end_memory
from .serve import Agent

if TYPE_CHECKING:
    from ..base.to_agent import Spec


def become_agent(spec: Spec, listener: socket.socket, prewarmed: Optional[PrewarmedWorkers] = None) -> NoReturn:
    """Serve the run and exit. Stdout and stderr of this process are the agent's log."""
    code = 1
    try:
        serve_attempts(spec, listener, prewarmed or PrewarmedWorkers())
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def serve_attempts(spec: Spec, listener: socket.socket, prewarmed: PrewarmedWorkers) -> None:
    """Serve the attempt of `spec`, then each further attempt that the launcher sends. Returns when no process is left."""
    lock, notice = HostLock(spec["home"]), Notice()
    connection: Optional[Connection] = None
    next_spec: Optional[Spec] = spec
    try:
        while next_spec is not None:
            agent = Agent(next_spec, listener, lock, prewarmed, notice, connection)
            agent.serve()
            listener.close()
            connection, next_spec = agent.connection, agent.next_spec
            if next_spec is not None:
                listener, log = open_folder(next_spec)
                use_log(log)
    finally:
        kill_descendants(reap)
        end_memory(spec)
        sys.stdout.flush()

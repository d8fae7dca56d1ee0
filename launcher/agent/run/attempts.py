"""Serve the attempts of a run, one after another, over one connection: an agent outlives a failed attempt."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING, Optional

from ..base.connection import Connection
from ..base.processes import kill_descendants, reap
from ..base.run_folder import open_folder, use_log
from ..host.lock import HostLock
from ..host.notice import Notice
from .prewarmed import PrewarmedWorkers
from .serve import Agent

if TYPE_CHECKING:
    from ..base.to_agent import Spec


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
        sys.stdout.flush()

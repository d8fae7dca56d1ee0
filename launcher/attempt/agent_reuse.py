"""Keep the agents of a failed attempt for the next one, with their connections and their prewarmed workers."""

from __future__ import annotations

import threading

from ..plan.plan import LEASE, HostPlan, LaunchPlan
from ..pod.fan_out import fan_out
from ..remote.session import SILENCE, OnFrame, Session
from .heartbeat import Heartbeat


class ReusableAgents:
    """Sessions of the agents that wait for the next attempt. Pings keep these agents alive."""

    def __init__(self) -> None:
        self.wanted = False
        """True if another attempt may follow the one in progress."""
        self._sessions: dict[str, Session] = {}
        self._heartbeat: Heartbeat | None = None
        self._lock = threading.Lock()

    def keep(self, session: Session) -> bool:
        """Keep an agent that has confirmed that none of its attempt's processes are left. Called from several threads.

        Returns False if the agent cannot be kept. The caller must then end it.
        """
        if not session.keep():
            return False
        with self._lock:
            self._sessions[session.host] = session
            self._heartbeat = self._heartbeat or Heartbeat(self._all, LEASE)
        return True

    def session(self, plan: HostPlan, on_frame: OnFrame) -> Session | None:
        """Take the kept agent of a host for the attempt of `plan`; return its session, or None if no agent was kept."""
        with self._lock:
            session = self._sessions.pop(plan.host.name, None)
        if session is not None and not session.reuse(plan, on_frame):
            session.close()
            return None
        return session

    def has_all_of(self, plan: LaunchPlan) -> bool:
        """Return whether an agent of every host is kept. If so, all hosts answer and are still prepared."""
        with self._lock:
            waiting = [self._sessions.get(h.host.name) for h in plan.hosts]
            return all(s is not None and s.is_open and s.liveness.silence < SILENCE for s in waiting)

    def dismiss(self) -> None:
        """End the agents that are still kept."""
        if self._heartbeat is not None:
            self._heartbeat.stop()
            self._heartbeat = None
        sessions = self._all()
        self._sessions.clear()
        fan_out(Session.close, sessions)

    def _all(self) -> list[Session]:
        with self._lock:
            return list(self._sessions.values())

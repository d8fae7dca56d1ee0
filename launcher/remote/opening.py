"""Start the agents of a pod in background threads, so that the caller can handle other events meanwhile."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

from .session import Session


class Opening:
    """Opens sessions, at most `window` at once, and reports the result of each."""

    def __init__(self, sessions: Sequence[Session], window: int, tell: Callable[[str, Exception | None], None]) -> None:
        """Start to open the sessions. Calls `tell(host, error)` from other threads; `error` is None on success."""
        self._waiting = deque(sessions)
        self._tell = tell
        for number in range(min(window, len(sessions))):
            threading.Thread(target=self._work, name=f"open-{number}", daemon=True).start()

    def cancel(self) -> list[str]:
        """Open no more sessions. Returns the hosts whose agents will not be started."""
        hosts = []
        while self._waiting:
            try:
                hosts.append(self._waiting.popleft().host)
            except IndexError:
                break  # a thread took the last one
        return hosts

    def _work(self) -> None:
        while self._waiting:
            try:
                session = self._waiting.popleft()
            except IndexError:
                return
            error: Exception | None = None
            try:
                session.open()
            except Exception as reason:
                error = reason
            self._tell(session.host, error)

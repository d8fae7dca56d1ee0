"""Watch for the return of lost hosts while a run continues with fewer; stop it at a checkpoint to use them again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

from podrun.runtime.events import EventKind

from ..pod.pod import Host
from ..preflight.base import name_hosts
from ..rundir.events import Event

EVERY = 20.0  # seconds between two tries


class RejoinWatch:
    """An observer of an attempt without some hosts. It stops the attempt when hosts are back with which it has more.

    It stops the attempt just after a checkpoint, so that no work is lost. A run that saves no checkpoints is not
    stopped.
    """

    def __init__(
        self,
        missing: Sequence[Host],
        away: Callable[[Sequence[Host]], dict[str, str] | None],
        note: Callable[[str], None],
        stop: Callable[[], None],
        has_use: Callable[[Collection[str]], bool],
        every: float = EVERY,
    ) -> None:
        """Start watching.

        Args:
            missing: the hosts to wait for.
            away: returns the hosts that are unreachable, by name with the reason; None when it was asked to end.
            note: prints a message to the user.
            stop: asks the attempt to stop.
            has_use: returns True if the next attempt has more hosts with these, by name.
            every: seconds between two tries.
        """
        self._missing = missing
        self._away = away
        self._note = note
        self._stop = stop
        self._has_use = has_use
        self._every = every
        self._ended = threading.Event()
        self._back: list[str] = []
        self.has_stopped = False
        """True after the attempt was asked to stop."""
        self.thread = threading.Thread(target=self._look, name="rejoin", daemon=True)
        self.thread.start()

    def event(self, event: Event) -> None:
        if event["event"] == EventKind.CHECKPOINT and self._back and not self.has_stopped:
            self.has_stopped = True
            self._note(
                f"{name_hosts(self._back)}: back; the run stops at this checkpoint to go on with all that answer"
            )
            self._stop()

    def close(self) -> None:
        self._ended.set()

    def _look(self) -> None:
        while not self._ended.wait(self._every):
            away = self._away(self._missing)
            if away is None:
                return
            back = [host.name for host in self._missing if host.name not in away]
            if not self._has_use(back):
                back = []
            if new := set(back) - set(self._back):
                self._note(f"{name_hosts(sorted(new))}: back; the run takes it back at its next checkpoint")
            self._back = back

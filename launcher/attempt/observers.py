"""Pass the events of a run to its observers, one after the other."""

from __future__ import annotations

from typing import Protocol

from ..rundir.events import Event


class Observer(Protocol):
    """Receiver of all events."""

    def event(self, event: Event) -> None: ...


class Observers:
    """Several observers. Each event reaches them in the order of the list."""

    def __init__(self, *observers: Observer | None) -> None:
        self._observers = [observer for observer in observers if observer is not None]

    def event(self, event: Event) -> None:
        for observer in self._observers:
            observer.event(event)

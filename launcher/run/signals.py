"""Collect Ctrl-C, SIGTERM and SIGHUP, and forward them to the current receiver."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that ask podrun to stop."""


@contextmanager
def one_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first Ctrl-C only, so that a second one does not interrupt the cleanup.

    Changes nothing where the caller handles Ctrl-C itself, or outside the main thread.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler or current_thread() is not main_thread():
        yield
        return

    def interrupt(number: int, _: object) -> None:
        signal.signal(number, lambda *_: None)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Hand a Ctrl-C over to its handler at the end, and not before. Changes nothing outside the main thread."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or current_thread() is not main_thread():
        yield
        return
    received: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: received.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(signal.SIGINT, None)


def unless_interrupted(question: Callable[[], T | None]) -> T | None:
    """Return the answer; None after Ctrl-C, which ends only the question, however often it is pressed meanwhile."""
    try:
        with one_interrupt():
            return question()
    except KeyboardInterrupt:
        return None


class Signals:
    """Collects the signals that arrive while it is open, and forwards them."""

    def __init__(self, *more: int, on_early_interrupt: Callable[[], None] | None = None) -> None:
        """Start without a receiver.

        Args:
            more: further signals to collect.
            on_early_interrupt: called on Ctrl-C while there is no receiver, to show the user that it was noticed.
        """
        self._numbers = (*NUMBERS, *more)
        self._on_early_interrupt = on_early_interrupt
        self.received: list[int] = []
        self._receiver: Callable[[int], None] | None = None
        self._before: dict[int, Any] = {}

    @contextmanager
    def to(self, receiver: Callable[[int], None]) -> Iterator[None]:
        """Forward every signal to `receiver` inside the `with` block, including earlier ones."""
        self._receiver = receiver
        for number in self.received:
            receiver(number)
        try:
            yield
        finally:
            self._receiver = None

    def note(self, number: int) -> None:
        """Treat signal `number` as received although this process did not get it. Thread-safe."""
        self.received.append(number)
        if self._receiver:
            self._receiver(number)

    def _handle(self, number: int, _: object) -> None:
        if self._receiver is None and self._on_early_interrupt and number == signal.SIGINT:
            self._on_early_interrupt()
        self.note(number)

    def __enter__(self) -> Signals:
        self._before = {number: signal.signal(number, self._handle) for number in self._numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

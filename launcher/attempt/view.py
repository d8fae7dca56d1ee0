"""Forward events to the console and to the record."""

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial

from podrun.runtime.events import EventKind

from ..pod.masking import Mask
from ..rundir.echo import Echo, echoed_log
from ..rundir.events import Event, StartEvent
from ..rundir.runs import Recorder
from ..view.console import Console

_LOOK = 0.05  # seconds between two reads of a program's output
_BACKLOG = 10_000  # pending events; beyond that the console gets no steps, which are still recorded
_IMPATIENT = 2.0  # seconds for the console to show the rest once the user wants to stop


class View:
    """Shows events on the console and records them.

    A lost terminal counts as SIGHUP, a broken pipe as SIGPIPE. The console has a thread of its own, so that hosts and
    signals never wait for a slow one.
    """

    def __init__(
        self,
        console: Console,
        recorder: Recorder,
        is_impatient: Callable[[], bool] = lambda: False,
        on_unread: Callable[[int], None] = signal.raise_signal,
        mask: Mask | None = None,
    ) -> None:
        """Start the console's thread.

        Args:
            console: the console.
            recorder: the recorder.
            is_impatient: returns True once the user wants to stop.
            on_unread: called when nobody reads the console any more, with the signal that this counts as.
            mask: hides secrets in the texts that are shown and recorded.
        """
        self.mask = mask or Mask(())
        """Hides secrets. May be replaced by one that hides more."""
        self._console: Console | None = console
        self._recorder = recorder
        self._recording = threading.Lock()  # hosts are prepared by several threads
        self._is_impatient = is_impatient
        self._on_unread = on_unread
        self._actions: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._echo: Echo | None = None
        self._leaving = False
        self._closed = False
        self._broken: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="console", daemon=True)
        self._thread.start()

    def event(self, event: Event) -> None:
        if event["event"] != EventKind.START:  # it is podrun's own, and has paths
            event = self.mask.fields(event)
        with self._recording:
            self._recorder.event(event)
        if event["event"] == EventKind.START:
            log = echoed_log(event)
            self._actions.put(partial(self._start, event, Echo(log) if log else None))
        elif event["event"] != EventKind.STEP or self._actions.qsize() < _BACKLOG:
            self._actions.put(partial(self._show, lambda console: console.event(event)))
        if event["event"] == EventKind.END:
            self._drain()

    def say(self, text: str) -> None:
        """Print the text, and return when it is shown."""
        text = self.mask.text(text)
        self._actions.put(partial(self._show, lambda console: console.say(text)))
        self._drain()

    def stop(self) -> None:
        """End the view of an attempt. Returns when all output is shown, or when the user interrupts the wait."""
        self._actions.put(self._finish)
        self._drain()

    def close(self) -> None:
        """End the console's thread without waiting for a stuck console. Shows nothing more."""
        self._actions.put(self._end)

    @property
    def stuck(self) -> bool:
        """Return True if the user wants to stop and the console accepts nothing any more."""
        return self._leaving

    def print_directly(self, write: Callable[[], None]) -> None:
        """Call `write`, which prints without the console's thread. If the console is stuck, wait only a moment."""
        if not self.stuck:
            write()
            return
        thread = threading.Thread(target=write, name="last words", daemon=True)
        thread.start()
        thread.join(_IMPATIENT)

    def _drain(self) -> None:
        """Wait until the console has shown everything, or the user does not want to wait."""
        shown = threading.Event()
        self._actions.put(shown.set)
        while not self._leaving and not shown.wait(0.1):
            self._leaving = self._is_impatient() and not shown.wait(2 * _IMPATIENT)
        if self._broken is not None:
            raise self._broken

    # --- in the console's thread ---

    def _run(self) -> None:
        while not self._closed:
            try:
                action = self._next_action()
                if action is not None:
                    action()
            except Exception as error:  # re-raised in the thread that waits for the console
                self._broken, self._console = error, None

    def _next_action(self) -> Callable[[], None] | None:
        """Return the next action of the console's thread. Events go before output, so that a stop is confirmed at once."""
        try:
            return self._actions.get_nowait()
        except queue.Empty:
            pass
        if self._show_output():
            return None
        try:
            return self._actions.get(timeout=_LOOK if self._echo else None)
        except queue.Empty:
            return None

    def _start(self, event: StartEvent, echo: Echo | None) -> None:
        if self._console is not None and self._console.piece:
            self._echo = echo
        self._show(lambda console: console.event(event))

    def _show_output(self, at_end: bool = False) -> bool:
        """Show a piece of the output. Return False if there is none."""
        if self._echo is None or self._console is None:
            return False
        text = self._echo.skip() if self._console.is_terminal else None
        text = text or self._echo.next(self._console.piece, at_end)
        if text is None:
            return False
        masked = self.mask.text(text)
        self._show(lambda console: console.output(masked))
        return True

    def _finish(self) -> None:
        """Show the rest of the output; if the user wants to stop, only its end. The log has all of it."""
        while self._show_output(at_end=True):
            if self._is_impatient() and self._echo is not None and (text := self._echo.skip(behind=1 << 16)):
                self._show(lambda console, text=text: console.output(text))  # type: ignore[misc]
        self._end_echo()
        self._show(lambda console: console.stop())

    def _end(self) -> None:
        self._end_echo()
        self._closed = True

    def _end_echo(self) -> None:
        if self._echo is not None:
            self._echo.close()
            self._echo = None

    def _show(self, action: Callable[[Console], None]) -> None:
        if self._console is None:
            return
        try:
            action(self._console)
        except OSError as error:
            self._console = None
            # Python's buffered output would fail again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            self._on_unread(signal.SIGPIPE if isinstance(error, BrokenPipeError) else signal.SIGHUP)

"""Send the changes of a page to every browser that shows it. One thread per page polls, only while browsers are connected."""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol, TypedDict

from ..report.encode import PageData

POLL_SECONDS = 0.5  # seconds between two polls of a page's source
KEEPALIVE_SECONDS = 2.0  # seconds without messages after which the connection to a browser is tested
_PAGE_SECONDS = 1.0  # seconds for which a rendered page is reused; its browsers then receive the messages since
_MAX_MESSAGES = 256  # messages kept; a browser that missed more reloads the page


class Message(TypedDict, total=False):
    """Changes of a page, in the form that `live.js` reads."""

    parts: dict[str, str]
    """HTML of the parts that have changed."""
    order: list[str]
    """Keys of all parts."""
    data: PageData
    """Charts that replace those with the same key."""
    points: PageData
    """Points to append to the curves of charts."""
    marks: list[tuple[float, str]]
    """Marks to add to the charts whose axis is the step."""
    made: str
    state: str
    removed: str
    """Message that the run's folder was removed; empty if it was not."""
    notice: str


class Source(Protocol):
    """Content of a page that changes. Only one thread at a time calls its methods."""

    name: str

    def poll(self) -> Message:
        """Return the changes since the last call; empty if there are none."""

    def html(self, number: int) -> str:
        """Return the whole page after message `number`. Called after `poll`."""


class Feed:
    """Numbered messages of one source, for any number of browsers."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._turn = threading.Lock()  # held while the source is in use
        self._changed = threading.Condition()  # guards the fields below
        self._messages: deque[bytes] = deque(maxlen=_MAX_MESSAGES)
        self._number = 0
        """Number of the last message."""
        self._browsers = 0
        self._is_looking = False
        self._page = (-1, 0.0, b"")
        """Number, time and content of the page that was rendered last."""

    def page(self) -> bytes:
        """Return the whole page."""
        with self._turn:
            self._look()
            number, made, _ = self._page
            if number < 0 or (number != self._number and time.monotonic() > made + _PAGE_SECONDS):
                html = self._source.html(self._number).encode()
                self._page = (self._number, time.monotonic(), html)
            return self._page[2]

    def messages(self, after: int, is_connected: Callable[[], bool]) -> Iterator[bytes]:
        """Yield the messages after number `after` as server-sent events, until the browser disconnects."""
        self._join()
        try:
            while True:
                rows, after = self._next(after)
                yield b"".join(rows)
                if not rows and not is_connected():
                    return
        finally:
            with self._changed:
                self._browsers -= 1
                self._changed.notify_all()

    def tell(self, message: Message) -> None:
        """Send a message to all browsers, in addition to the source's messages."""
        with self._changed:
            self._number += 1
            data = json.dumps(message, allow_nan=False, separators=(",", ":"))
            self._messages.append(f"id: {self._number}\ndata: {data}\n\n".encode())
            self._changed.notify_all()

    def _next(self, after: int) -> tuple[list[bytes], int]:
        """Wait a few seconds for messages after number `after`; return them and the number of the last one."""
        with self._changed:
            self._changed.wait_for(lambda: self._number != after, timeout=KEEPALIVE_SECONDS)
            missing = self._number - after
            if 0 <= missing <= len(self._messages):
                return list(self._messages)[len(self._messages) - missing :], self._number
            return [f'id: {self._number}\ndata: {{"reload":true}}\n\n'.encode()], self._number

    def _join(self) -> None:
        with self._changed:
            self._browsers += 1
            if not self._is_looking:
                self._is_looking = True
                threading.Thread(target=self._keep_looking, name=f"watch {self._source.name}", daemon=True).start()

    def _keep_looking(self) -> None:
        while True:
            try:
                with self._turn:
                    self._look()
            except OSError:  # such as a file that is being removed; the next call reports it
                pass
            except Exception as error:  # tell the browser, which would otherwise look live
                traceback.print_exc()
                name, what = self._source.name, traceback.format_exception_only(error)[-1].strip()
                self.tell({"notice": f"{name} cannot be shown any further: {what}; `podrun watch` has printed where"})
                with self._changed:
                    self._is_looking = False  # the next browser starts polling again
                return
            with self._changed:
                self._changed.wait_for(lambda: not self._browsers, timeout=POLL_SECONDS)
                if not self._browsers:
                    self._is_looking = False
                    return

    def _look(self) -> None:
        if message := self._source.poll():
            self.tell(message)

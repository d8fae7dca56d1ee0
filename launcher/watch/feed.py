"""Send what changes on a page to every browser that shows it. One thread looks, and only while somebody watches."""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

LOOK = 0.5  # seconds between two looks at what a page shows
BEAT = 2.0  # seconds after which a browser that there is nothing for is checked for being there
_FRESH = 1.0  # seconds for which a page that was made serves other browsers as well; they get the news of that time
_KEPT = 256  # messages: a browser that was away for longer gets the whole page

Message = dict[str, Any]
"""Changes of a page, as `live.js` takes them."""


class Source(Protocol):
    """Contents of a page that change. Its methods are called by one thread at a time."""

    name: str

    def look(self) -> Message:
        """Return what has changed since the last look; empty if nothing has."""

    def html(self, number: int) -> str:
        """Return the whole page, which is at message `number`. Called after a look."""


class Feed:
    """Messages of one source, by number, for any number of browsers."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._turn = threading.Lock()  # held while the source is used
        self._news = threading.Condition()  # guards the fields below
        self._messages: deque[bytes] = deque(maxlen=_KEPT)
        self._number = 0
        """Number of the last message."""
        self._browsers = 0
        self._is_looking = False
        self._page = (-1, 0.0, b"")
        """Number and time of the last page that was made."""

    def page(self) -> bytes:
        """Return the whole page."""
        with self._turn:
            self._look()
            number, made, _ = self._page
            if number < 0 or (number != self._number and time.monotonic() > made + _FRESH):
                html = self._source.html(self._number).encode()
                self._page = (self._number, time.monotonic(), html)
            return self._page[2]

    def messages(self, after: int, is_connected: Callable[[], bool]) -> Iterator[bytes]:
        """Yield the messages after a number, in the format of server-sent events, until the browser is gone."""
        self._join()
        try:
            while True:
                rows, after = self._next(after)
                yield b"".join(rows)
                if not rows and not is_connected():
                    return
        finally:
            with self._news:
                self._browsers -= 1
                self._news.notify_all()

    def tell(self, message: Message) -> None:
        """Send a message that is not from the source."""
        with self._news:
            self._number += 1
            data = json.dumps(message, allow_nan=False, separators=(",", ":"))
            self._messages.append(f"id: {self._number}\ndata: {data}\n\n".encode())
            self._news.notify_all()

    def _next(self, after: int) -> tuple[list[bytes], int]:
        """Wait for messages after a number, and return them with the number of the last. None may come for a while."""
        with self._news:
            self._news.wait_for(lambda: self._number != after, timeout=BEAT)
            missing = self._number - after
            if 0 <= missing <= len(self._messages):
                return list(self._messages)[len(self._messages) - missing :], self._number
            return [f'id: {self._number}\ndata: {{"reload":true}}\n\n'.encode()], self._number

    def _join(self) -> None:
        with self._news:
            self._browsers += 1
            if not self._is_looking:
                self._is_looking = True
                threading.Thread(target=self._keep_looking, name=f"watch {self._source.name}", daemon=True).start()

    def _keep_looking(self) -> None:
        while True:
            try:
                with self._turn:
                    self._look()
            except OSError:  # such as a file that is being removed: the next look says so
                pass
            except Exception as error:  # whoever has the page open must not take it for one that goes on
                traceback.print_exc()
                name, what = self._source.name, traceback.format_exception_only(error)[-1].strip()
                self.tell({"notice": f"{name} cannot be shown any further: {what}; `podrun watch` has printed where"})
                with self._news:
                    self._is_looking = False  # the next browser tries again
                return
            with self._news:
                self._news.wait_for(lambda: not self._browsers, timeout=LOOK)
                if not self._browsers:
                    self._is_looking = False
                    return

    def _look(self) -> None:
        if message := self._source.look():
            self.tell(message)

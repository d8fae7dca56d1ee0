"""Send metrics to a user's experiment tracker in a separate thread, so that training never waits for it."""

from __future__ import annotations

import os
import queue
import secrets
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from .. import plugins
from ..worker.workdir import open_file, replace_text

if TYPE_CHECKING:
    from ..config import SavedConfig

Ending = Literal["done", "stopped", "failed"]
"""How a training ended; a stopped one may go on later."""

_METHODS = {"start": ("config", "run"), "log": ("step", "metrics"), "end": ("status",)}
"""The methods that are called, with the names of their arguments."""
_KEPT = 10_000
"""Most records that wait for the tracker; beyond that, new records are dropped."""
_AGAIN = 30.0  # seconds until a start that failed is tried again
_LAST = 20.0  # seconds that the end of the training waits for the tracker
_HURRY = 2.0  # the same if it was stopped or failed: the machine may go away
_KEY = "log.tracker"


class TrackedRun(NamedTuple):
    """The run whose metrics a tracker gets."""

    id: str
    """Eight hexadecimal digits that name the workdir: the same after each restart."""
    name: str
    """Name of the workdir's folder."""
    workdir: str
    step: int
    """Step from which training continues. Records of later steps may be repeated."""


class TrackerThread:
    """Give metrics to an object with the methods `start`, `log` and `end`, which may fail or take long.

    Args:
        code: the object, or its name, `package.module:attribute`, which is called without arguments to make it.
        workdir: folder of the results.
        step: step that training goes on from.
        note: reports an error to the user; called once for each kind of error.
        config: the job as JSON.

    Raises:
        UserError: there is no such object, or it lacks a method.
    """

    def __init__(self, code: Any, workdir: Path, step: int, note: Callable[[str], None], config: SavedConfig) -> None:
        name = code if isinstance(code, str) else f"{type(code).__module__}:{type(code).__qualname__}"
        self._name, self._note, self._config = name, note, config
        self._code = plugins.call(code, _KEY) if isinstance(code, str) else code
        for method, words in _METHODS.items():
            if getattr(self._code, method, None) is None:
                called = ", ".join(f"{method}({', '.join(words)})" for method, words in _METHODS.items())
                plugins.refuse(name, _KEY, f"returns {plugins.short(self._code)} without `{method}`, expected {called}")
            plugins.check_call(getattr(self._code, method), name, _KEY, words, part=method)
        self._run = TrackedRun(_id(workdir), workdir.name, str(workdir), step)
        self._waiting: queue.Queue[tuple[int, dict[str, float]] | None] = queue.Queue()
        self._told: set[str] = set()
        self._left_out = 0
        self._ending: Ending = "done"
        self._closed = threading.Event()
        # A daemon: a tracker that never answers does not keep the process from ending.
        self._thread = threading.Thread(target=self._serve, name=_KEY, daemon=True)
        self._thread.start()

    def put(self, step: int, metrics: dict[str, float]) -> None:
        """Give the tracker a record, without waiting."""
        if self._waiting.qsize() < _KEPT:
            self._waiting.put((step, metrics))
        else:
            self._left_out += 1
            self._tell("slow", f"is too slow: {_KEPT} records wait for it, and further ones are left out")

    def close(self, status: Ending) -> None:
        """Wait a limited time until the tracker has all records."""
        self._ending = status
        self._waiting.put(None)
        self._closed.set()
        limit = _LAST if status == "done" else _HURRY
        self._thread.join(limit)
        left = self._left_out + max(0, self._waiting.qsize() - 1)  # the last is the end
        if self._thread.is_alive():
            self._tell("end", f"has not ended within {limit:.0f} s, and lacks up to {left} records")
        elif left:
            self._tell("end", f"lacks {left} records")

    def _serve(self) -> None:
        while not self._call("start", self._config, self._run):
            if self._closed.wait(_AGAIN):
                return
        while (record := self._waiting.get()) is not None:
            if not self._call("log", *record):
                self._left_out += 1
        self._call("end", self._ending)

    def _call(self, method: str, *arguments: Any) -> bool:
        """Call a method of the tracker; return whether it succeeded. An error is reported once."""
        try:
            getattr(self._code, method)(*arguments)
        except BaseException as error:  # also SystemExit: it is not for this thread to end the training
            words = str(error).partition("\n")[0][:200]
            self._tell(method, f"failed in `{method}`: {type(error).__name__}{f': {words}' if words else ''}")
            return False
        return True

    def _tell(self, topic: str, text: str) -> None:
        if topic not in self._told:
            self._told.add(topic)
            goes_on = "" if self._closed.is_set() else "training goes on, and "
            self._note(f"{_KEY} {self._name} {text}; {goes_on}metrics.jsonl has all metrics")


def _id(workdir: Path) -> str:
    """Return the id of a workdir; the first call creates it."""
    file = workdir / "tracker-id"
    if not os.path.lexists(file):
        replace_text(file, secrets.token_hex(4))
    with open(open_file(file, os.O_RDONLY), encoding="utf-8") as opened:
        return opened.read().strip()

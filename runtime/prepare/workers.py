"""Distribute units over several processes. The first error ends all processes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypedDict, final

from ..data.saved_tokenizer import Saved


class ChatFields(TypedDict):
    """The fields of a `ChatTemplate`."""

    origin: str
    templates: dict[str, str]
    tokens: dict[str, str]


class Job(TypedDict):
    """The first line for each process: how documents become ids, and where they are written."""

    folder: str
    saved: Saved | None
    """The tokenizer; None: only find the characters."""
    eos: int | None
    dtype: str
    strict: bool
    column: str | None
    template: str | None
    chat: ChatFields | None
    """None for text."""
    pairs: bool
    """Documents are pairs of conversations."""
    now: str | None
    """The time that chat templates write, ISO 8601; None for text."""


class PieceFields(TypedDict):
    """The fields of a `Piece`."""

    source: int
    start: int
    end: int
    size: int
    first: int | None


class InputFields(TypedDict):
    """The fields of an `Input`."""

    piece: PieceFields
    name: str
    path: str
    kind: str
    compression: str
    size: int
    version: str | None


class Order(TypedDict):
    """A unit for a process to work on: the name of its shard, and its pieces."""

    name: str
    inputs: list[InputFields]


@final
class Progress(TypedDict):
    """The progress of a process in its unit."""

    read: int
    """Bytes."""
    tokens: int
    """Tokens written."""


@final
class Done(TypedDict):
    """A unit is complete."""

    written: int
    """Tokens of its shard; 0 if only characters were looked for."""
    code_points: list[int]
    """The characters of its documents, if only they were looked for."""


@final
class BadSource(TypedDict):
    """Report of a worker: a file cannot be read."""

    error: Literal["read"]
    text: str


@final
class BadLine(TypedDict):
    """A line is bad, and the option --strict accepts none."""

    error: Literal["strict"]
    piece: int
    number: int
    """Line or row, from the beginning of the piece."""
    text: str


@final
class NotWritten(TypedDict):
    """The folder cannot be written."""

    error: Literal["write"]
    errno: int | None
    text: str


@final
class Failed(TypedDict):
    """Any other exception, whose traceback the process has written."""

    error: Literal["failed"]
    text: str


@final
class Ended(TypedDict):
    """The process has ended without an answer."""

    error: Literal["ended"]
    text: str
    code: int


Failure = BadSource | BadLine | NotWritten | Failed | Ended
Answer = Done | BadSource | BadLine | NotWritten | Failed
"""What a process says at the end of a unit."""
Message = Progress | Done | BadSource | BadLine | NotWritten | Failed
"""A line from a process. The members are listed again because mypy does not narrow a union within a union."""


class WorkerError(Exception):
    """A unit failed.

    Args:
        unit: its number.
        failure: the reason.
    """

    def __init__(self, unit: int, failure: Failure) -> None:
        super().__init__(failure["text"])
        self.unit = unit
        self.failure = failure


def work_on(
    units: Iterable[tuple[int, Order]],
    job: Job,
    workers: int,
    on_report: Callable[[int, int, int], None],
    on_done: Callable[[int, Done], None],
) -> None:
    """Give each unit to a process, and return when all units are done. Then, or after an error, all processes have ended.

    Args:
        units: number and order of each.
        job: the first line for each process.
        workers: number of processes.
        on_report: gets (unit, bytes read, tokens written), in any thread, one at a time.
        on_done: gets (unit, result of the unit), likewise.

    Raises:
        WorkerError: a unit failed, the first one.
    """
    remaining, lock = iter(units), threading.Lock()
    processes: list[subprocess.Popen[str]] = []
    failures: list[Exception] = []

    def next_unit() -> tuple[int, Order] | None:
        with lock:
            return None if failures else next(remaining, None)

    def drive() -> None:
        try:
            with lock:
                if failures:
                    return
                process = subprocess.Popen(
                    [sys.executable, "-m", f"{__package__}.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    encoding="utf-8",
                )
                processes.append(process)
            assert process.stdin and process.stdout
            number = -1
            try:
                _tell(process, job)
                while (unit := next_unit()) is not None:
                    number = unit[0]
                    _tell(process, unit[1])
                    answer = _answer(process, lambda read, tokens: locked(on_report, unit[0], read, tokens))
                    if "error" in answer:
                        raise WorkerError(number, answer)
                    locked(on_done, number, answer)
            except BrokenPipeError:
                raise WorkerError(number, _ended(process)) from None
        except Exception as error:
            with lock:
                failures.append(error)
                for other in processes:
                    other.kill()

    def locked(call: Callable[..., None], *arguments: Any) -> None:
        with lock:
            call(*arguments)

    with ThreadPoolExecutor(workers) as pool:
        for _ in range(workers):
            pool.submit(drive)
    for process in processes:
        with contextlib.suppress(BrokenPipeError):
            process.communicate()
    if failures:
        raise failures[0]


def _tell(process: subprocess.Popen[str], message: Job | Order) -> None:
    assert process.stdin
    process.stdin.write(f"{json.dumps(message)}\n")
    process.stdin.flush()


def _answer(process: subprocess.Popen[str], on_report: Callable[[int, int], None]) -> Answer | Ended:
    assert process.stdout
    for line in process.stdout:
        message: Message = json.loads(line)
        if "read" in message:
            on_report(message["read"], message["tokens"])
        else:
            return message
    return _ended(process)


def _ended(process: subprocess.Popen[str]) -> Ended:
    return {"error": "ended", "code": process.wait(), "text": ""}

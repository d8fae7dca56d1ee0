"""Have units worked on by several processes. The first error ends them all."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypedDict

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
    pairs: bool
    """Documents are pairs of conversations."""
    """None for text."""
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
    """A unit to work on: the name of its shard, and its pieces."""

    name: str
    inputs: list[InputFields]


class WorkerError(Exception):
    """A unit failed.

    Args:
        unit: its number.
        answer: the process's answer, with `error` and `text`.
    """

    def __init__(self, unit: int, answer: Mapping[str, Any]) -> None:
        super().__init__(answer["text"])
        self.unit = unit
        self.answer = answer


def work_on(
    units: Iterable[tuple[int, Order]],
    job: Job,
    workers: int,
    on_report: Callable[[int, int, int], None],
    on_answer: Callable[[int, Mapping[str, Any]], None],
) -> None:
    """Give each unit to a process, and return when all are done. No process is left then, or after an error.

    Args:
        units: number and order of each.
        job: the first line for each process.
        workers: number of processes.
        on_report: gets (unit, bytes read, tokens written), in any thread, one at a time.
        on_answer: gets (unit, answer), likewise.

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
                    locked(on_answer, number, answer)
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


def _answer(process: subprocess.Popen[str], on_report: Callable[[int, int], None]) -> Mapping[str, Any]:
    assert process.stdout
    for line in process.stdout:
        answer: Mapping[str, Any] = json.loads(line)
        if "read" not in answer:
            return answer
        on_report(answer["read"], answer["tokens"])
    return _ended(process)


def _ended(process: subprocess.Popen[str]) -> Mapping[str, Any]:
    return {"error": "ended", "code": process.wait(), "text": ""}

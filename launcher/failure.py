"""PURE: what became of N processes -> the one failure that the others followed from."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from podrun.runtime.contract import ErrorKind, Event, ExitCode

_SIGNAL_HINTS: dict[int, str] = {
    signal.SIGKILL: " (out of memory, or killed by somebody)",
    signal.SIGSEGV: " (a crash in native code)",
    signal.SIGABRT: " (native code gave up; JAX does so when another process is gone)",
}


@dataclass(frozen=True)
class Failure:
    """How one process, or its host, failed."""

    host: str
    process: int | None
    what: str
    """One line: `ValueError: boom in step 5`."""
    code: int
    """Exit code that podrun ends with if this is the first cause."""
    consequence: bool = False
    """It says that another process went away, or may well have followed from that."""
    details: str = ""
    """A traceback, or a message of several lines."""

    @property
    def who(self) -> str:
        return self.host if self.process is None else f"{self.host} (process {self.process})"

    def __str__(self) -> str:
        return f"{self.who}: {self.what}"


def first_cause(failures: Sequence[Failure]) -> Failure:
    """The failure that the others followed from; `failures` in the order in which they were seen, at least one."""
    return next((f for f in failures if not f.consequence), failures[0])


def from_error(host: str, process: int, error: Event) -> Failure:
    """A failure that the worker itself explained."""
    kind = ErrorKind(error["kind"])
    message = str(error["message"])
    lines = message.strip().splitlines() or [kind.value]
    at = f" in step {error['step']}" if error.get("step") is not None else ""
    details = message if kind is ErrorKind.CONFIG else str(error.get("traceback", ""))
    if kind is ErrorKind.NOT_FINITE:
        at = ""  # its message names the step
    if kind is ErrorKind.PEER_LOST:
        return Failure(host, process, f"lost another process{at}: {lines[0]}", kind.exit_code, True, details)
    code = int(error.get("code") or kind.exit_code)
    return Failure(host, process, f"{lines[0]}{at}", code, details=details)


def from_exit(
    host: str, process: int, code: int, step: int | None, phase: str | None, is_program: bool = False
) -> Failure:
    """A process that ended without a word; `code` is negative for a signal. The user's own program reports no phases."""
    when = "" if is_program and phase is None else _when(step, phase)
    if code == ExitCode.PREEMPTED and not is_program:
        return Failure(host, process, f"was asked to stop from outside{when}, and saved first", code)
    if code == ExitCode.DONE:
        return Failure(host, process, f"exited with code 0{when}, before training was done", ExitCode.FAILED)
    if code >= 0:
        lost = code == ExitCode.PEER_LOST and not is_program
        return Failure(host, process, f"exited with code {code}{when}", code, consequence=lost)
    number = -code
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    hint = _SIGNAL_HINTS.get(number, "")
    # JAX's coordination service aborts the survivors: SIGABRT is a first cause only if nothing else failed.
    return Failure(host, process, f"was ended by {name}{when}{hint}", 128 + number, number == signal.SIGABRT)


def _when(step: int | None, phase: str | None) -> str:
    return f" after step {step}" if step is not None else f" during {phase}" if phase else " before it said anything"

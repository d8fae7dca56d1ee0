"""Failures at times that a test chooses: a clock that it moves."""

from __future__ import annotations

from dataclasses import dataclass

from podrun.launcher.attempt.cause import Failure, from_error, from_exit
from podrun.runtime.contract import ErrorKind, EventKind, ExitCode, Phase


@dataclass
class Time:
    """A machine's clock, which a test moves."""

    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


def error(process: int, kind: ErrorKind, message: str) -> Failure:
    event = {"event": EventKind.ERROR, "kind": kind.value, "message": message, "traceback": "", "step": 5}
    return from_error(f"host-{process}", process, event)


LOST = error(0, ErrorKind.PEER_LOST, "reset by peer")


RAISED = error(1, ErrorKind.EXCEPTION, "ValueError: boom")


SAVED = from_exit("host-0", 0, ExitCode.PREEMPTED, 4, Phase.SAVE)

"""PURE: find the first cause among the failures of N processes and their hosts."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Sequence
from enum import Enum, auto
from typing import NamedTuple

from podrun.runtime.contract import ErrorKind, ExitCode, failure_code
from podrun.runtime.events import ErrorEvent

from ..agent.base.from_agent import Exit
from ..agent.base.protocol import PREEMPTED, UNHEARD

LAUNCHER = "the launcher"
"""Used in place of a host's name if the launcher's own machine is the cause."""

_EXPLAINED = (ErrorKind.CONFIG, ErrorKind.UNAVAILABLE, ErrorKind.WRONG_HOST, ErrorKind.DIVERGED)
"""Kinds of errors whose message says all."""
_SIGNAL_HINTS: dict[int, str] = {
    signal.SIGSEGV: " (a crash in native code)",
}
# Last output of a process after the loss of a peer, from JAX's coordination service, gloo, and torch's store and NCCL.
_PEER_IS_GONE = re.compile(
    rb"JAX distributed service detected fatal errors|coordination service|CoordinationService"
    rb"|gloo[^\n]*(?:failed|error|closed|reset|timed? ?out)|(?:reset|closed) by peer"
    rb"|Did the remote server shutdown|NCCL[^\n]*(?:remote|aborted|timed? ?out)",
    re.IGNORECASE,
)


class FailureKind(Enum):
    """Possible origin of a failure."""

    CAUSE = auto()
    """This failure may be the first cause."""
    UNHEARD = auto()
    """The agent heard nothing from the launcher: the link to the host is cut, or the launcher was suspended."""
    EXITED = auto()
    """Exit code or exception of a user program. It may have any reason, even the loss of another process."""
    ABORTED = auto()
    """SIGABRT: the program crashed, or JAX ended the process after the loss of another process."""
    ASKED = auto()
    """Preemption: a process was sent SIGTERM, and JAX made all processes save and stop."""
    PEER_LOST = auto()
    """The process lost the connection to another process."""
    SILENT = auto()
    """The host does not answer."""
    WRONG = auto()
    """The process holds or computes other values than the majority of those that must agree with it."""


class Failure(NamedTuple):
    """Failure of one process, or of its host."""

    host: str
    process: int | None
    what: str
    """One-line description: `ValueError: boom in step 5`."""
    code: int
    """Exit code that podrun ends with if this is the first cause."""
    kind: FailureKind = FailureKind.CAUSE
    details: str = ""
    """A traceback, or a message of several lines."""
    late: bool = False
    """True if the process failed after it was asked to stop, so this failure cannot be why the run ended."""
    dropped: bool = False
    """True if only the connection was lost while the host was prepared, so a new connection may succeed."""
    rebooted: bool = False
    """True if the host was restarted."""

    @property
    def consequence(self) -> bool:
        """Return True if another failure may be the reason of this one, so it is worth waiting a moment for that one."""
        return self.late or self.kind in (FailureKind.ABORTED, FailureKind.ASKED, FailureKind.PEER_LOST)

    @property
    def who(self) -> str:
        return self.host if self.process is None else f"{self.host} (process {self.process})"

    def __str__(self) -> str:
        return f"{self.who}: {self.what}"


class Evidence(NamedTuple):
    """Facts about an attempt once everything has been stopped."""

    failures: Sequence[Failure]
    """Failures in the order in which they were seen, at least one."""
    hosts: int = 0
    """Number of hosts in the pod."""
    signalled: Sequence[tuple[str, int | None]] = ()
    """Processes (host, number) that were sent SIGTERM themselves, the earliest first."""
    peer_loss_reporters: Collection[tuple[str, int | None]] = ()
    """Processes whose last output is JAX's report of a lost peer."""
    slept: float = 0.0
    """Seconds for which the launcher was stopped, or its machine suspended, shortly before."""


def first_cause(evidence: Evidence) -> Failure:
    """Return the failure from which the others followed.

    A failure with a reason of its own, such as an exception or a host that has stopped answering, comes before one that
    only follows from the end of another process. Among equal ones, the failure that was seen first is returned.
    """
    rank = _Ranks(evidence)
    first = min(evidence.failures, key=rank)
    if first.kind is FailureKind.UNHEARD and evidence.slept:
        what = f"was asleep for {evidence.slept:.0f} s (stopped, or its machine suspended), so the hosts ended the run"
        return Failure(LAUNCHER, None, what, ExitCode.UNAVAILABLE, FailureKind.UNHEARD)
    if first.kind is FailureKind.ASKED and first.process is not None and evidence.signalled:
        host, process = evidence.signalled[0]  # its own end may say nothing: another one has saved for all
        return first._replace(host=host, process=process)
    silent = len(rank.silent)
    if first.kind is FailureKind.SILENT and silent == evidence.hosts > 1:
        what = f"heard nothing from any of the {silent} hosts: its own network is down, or theirs ({first.what})"
        return Failure(LAUNCHER, None, what, ExitCode.UNAVAILABLE)
    return first


class _Ranks:
    """Ranks the failures of an attempt. What a rank takes from all of them is computed once."""

    def __init__(self, evidence: Evidence) -> None:
        self._slept = bool(evidence.slept)
        self._order: dict[tuple[str, int | None], int] = {}
        for who in evidence.signalled:
            self._order.setdefault(who, len(self._order))
        self._reporters = frozenset(evidence.peer_loss_reporters)
        kinds = {failed.kind for failed in evidence.failures}
        self._has_unheard = FailureKind.UNHEARD in kinds
        self._has_exited = FailureKind.EXITED in kinds
        self.silent = {failed.host for failed in evidence.failures if failed.kind is FailureKind.SILENT}
        """Hosts that do not answer."""

    def __call__(self, failed: Failure) -> tuple[int, int]:
        """Return two numbers by which failures are sorted: the lowest is the most likely first cause.

        The second number is the order in which processes received SIGTERM.
        """
        who = (failed.host, failed.process)
        if failed.kind is FailureKind.SILENT:
            return (2 if failed.late else 0), 0
        if failed.late:
            return 5, 0
        if failed.kind is FailureKind.UNHEARD and self._slept:
            return 0, 1  # what has failed by itself meanwhile comes first
        if failed.kind is FailureKind.ASKED and failed.process is None:  # its machine asked for the stop of all
            return 3, -1
        if (
            failed.kind is FailureKind.ASKED
        ):  # one that saved for all ends first, and those that wait for it lose a peer
            return 3, self._order.get(who, len(self._order))
        if failed.kind in (FailureKind.EXITED, FailureKind.ABORTED):
            # the hosts do not end at the same moment
            elsewhere = len(self.silent) > (failed.host in self.silent) or (self._has_unheard and self._slept)
            if who not in self._reporters and not elsewhere:  # a user program may abort by itself
                return (1 if failed.kind is FailureKind.ABORTED and not self._has_exited else 0), 0
        elif failed.kind is not FailureKind.PEER_LOST:
            return 0, 0
        return 4, 0


def is_peer_loss(output: bytes) -> bool:
    """Return True if the end of a process's output is JAX's report of a lost peer."""
    return _PEER_IS_GONE.search(output) is not None


def from_error(host: str, process: int, error: ErrorEvent) -> Failure:
    """Return the failure that an error event of a worker describes."""
    kind = ErrorKind(error["kind"])
    message = str(error["message"])
    lines = message.strip().splitlines() or [kind.value]
    at = f" in step {error['step']}" if error.get("step") is not None else ""
    details = message if kind in _EXPLAINED else str(error.get("traceback", ""))
    if kind in (ErrorKind.NOT_FINITE, ErrorKind.WRONG_HOST, ErrorKind.DIVERGED):
        at = ""  # its message names the step
    if kind is ErrorKind.PEER_LOST:
        what = f"lost another process{at}: {lines[0]}"
        return Failure(host, process, what, kind.exit_code, FailureKind.PEER_LOST, details)
    code = failure_code(int(error.get("code") or kind.exit_code))
    origin = FailureKind.EXITED if error.get("program") else FailureKind.CAUSE
    if kind is ErrorKind.WRONG_HOST:
        origin = FailureKind.WRONG
    return Failure(host, process, f"{lines[0]}{at}", code, origin, details)


def from_exit(host: str, frame: Exit, step: int | None, phase: str | None, is_program: bool = False) -> Failure:
    """Return the failure of a process that ended without an error event.

    Args:
        host: the host.
        frame: the exit of the process.
        step: last step that it completed; None if unknown.
        phase: last phase that it reported; None if it reported none.
        is_program: it ran a user program. Its exit codes have podrun's meaning only if it uses podrun's loop, and so
            has phases.
    """
    process, code = frame["process"], frame["code"]
    is_foreign = is_program and phase is None
    when = "" if is_foreign else _when(step, phase)
    full = frame.get("full")
    lack = f": {full}" if full else ""
    if code == ExitCode.PREEMPTED and not is_foreign:
        saved = ", and saved first" if step is not None else ", before its first step: there was nothing to save"
        what = f"was asked to stop from outside{when}{saved}"
        return Failure(host, process, what, code, FailureKind.ASKED)
    if code == ExitCode.DONE:
        return Failure(host, process, f"exited with code 0{when}, before training was done", ExitCode.FAILED)
    if code > 0:
        lost = code == ExitCode.PEER_LOST and not is_program
        kind = FailureKind.PEER_LOST if lost else FailureKind.EXITED if is_program else FailureKind.CAUSE
        return Failure(host, process, f"exited with code {code}{when}{lack}", failure_code(code), kind)
    number = -code
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    kind = FailureKind.ABORTED if number == signal.SIGABRT else FailureKind.CAUSE
    what = f"was ended by {name}{when}{_SIGNAL_HINTS.get(number, '')}{lack}"
    if number == signal.SIGKILL:
        what = _describe_kill(when, frame)
    return Failure(host, process, what, failure_code(128 + number), kind)


def _describe_kill(when: str, frame: Exit) -> str:
    out_of_memory = frame.get("out_of_memory")
    if out_of_memory:
        return f"was killed by the kernel{when}: out of memory ({frame.get('memory', '')})"
    by = "out of memory, or killed by somebody"
    if out_of_memory is not None:
        by = "killed by somebody, not by the kernel for lack of memory"
    return f"was ended by SIGKILL{when} ({by})"


def from_lost_agent(host: str, reason: str, rebooted: bool = False) -> Failure:
    """Return the failure of a host whose agent has ended or does not answer.

    Args:
        host: the host.
        reason: what is known about it.
        rebooted: the host was restarted.
    """
    kind = FailureKind.UNHEARD if UNHEARD in reason else FailureKind.CAUSE
    return Failure(host, None, reason, ExitCode.UNAVAILABLE, kind, rebooted=rebooted)


def preempted_host(
    host: str, reason: str, steps: Sequence[int | None], codes: Sequence[int | None], saved: int | None = None
) -> Failure:
    """Return the failure of a host whose agent stopped because the machine is taken away.

    Args:
        host: the host.
        reason: the reason that its agent gave.
        steps: the last step of each of its processes.
        codes: the exit code of each process.
        saved: step of the newest checkpoint, which another host may have saved for all.
    """
    why = reason.removeprefix(PREEMPTED)
    step = max((step for step in steps if step is not None), default=None)
    if step is not None and saved is not None and saved >= step:
        step, codes = saved, ()
    if any(code != ExitCode.PREEMPTED for code in codes):
        end = ", and did not save in time" if step is not None else ""
    else:
        end = ", and saved first" if step is not None else ", before its first step: there was nothing to save"
    at = "" if step is None else f" after step {step}"
    return Failure(host, None, f"was asked to stop ({why}){at}{end}", ExitCode.PREEMPTED, FailureKind.ASKED)


def silent_host(host: str, silence: float, trouble: str, late: bool = False) -> Failure:
    """Return the failure of a host that does not answer.

    Args:
        host: the host.
        silence: seconds since its last frame.
        trouble: why podrun could not connect again.
        late: the host became silent after it was asked to stop.
    """
    what = f"has not answered for {silence:.0f} s{f' ({trouble})' if trouble else ''}: it is down, or its network is"
    return Failure(host, None, what, ExitCode.UNAVAILABLE, FailureKind.SILENT, late=late)


def _when(step: int | None, phase: str | None) -> str:
    return f" after step {step}" if step is not None else f" during {phase}" if phase else " before it said anything"

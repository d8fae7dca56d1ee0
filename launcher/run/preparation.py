"""Prepare the hosts of an attempt, in a thread so that Ctrl-C works, and repeatedly where a host needs time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from podrun.runtime.events import EventKind, NoteEvent

from ..attempt.cause import Failure
from ..attempt.outcome import Outcome
from ..attempt.suspend_clock import ASLEEP, SuspendClock
from ..plan.plan import LaunchPlan
from ..pod.in_thread import InThread
from ..rundir.events import HostEvent
from ..transport.base import Transport
from .signals import Signals
from .wait_for_hosts import FIRST_PAUSE, LIMIT, LONGEST_PAUSE, SHORT_LIMIT, minutes, sleep

if TYPE_CHECKING:
    from ..staging.bundle import Bundle

_TRIES = 4  # preparations for the first attempt, if each but the last loses a connection


Tell = Callable[[HostEvent | NoteEvent], None]


class Preparation:
    """Prepares remote hosts, and checks this machine; simulated hosts need neither."""

    def __init__(
        self,
        transport: Transport,
        bundles: Sequence[Bundle],
        signals: Signals,
        tell: Tell,
        suspect: Callable[[str, str, str], None],
    ) -> None:
        """Prepare for one attempt.

        Args:
            transport: transport of the pod.
            bundles: the code.
            signals: signals by which the user stops the run.
            tell: records an event.
            suspect: called with (host, `HostFailureKind`, what) for a host whose hardware is broken.
        """
        self._suspect = suspect
        self._transport = transport
        self._bundles = bundles
        self._signals = signals
        self._tell = tell
        self._clock = SuspendClock(ASLEEP)

    def prepare(self, plan: LaunchPlan) -> Outcome | None:
        """Stage code, data and environment on remote hosts, or check this machine.

        Returns None if all hosts are ready, otherwise the outcome of the attempt.
        """
        if plan.run.code is None and not plan.pod.traits.is_exclusive:
            return None
        from .stage import check_hosts, stage_hosts  # imports what simulated hosts do not need

        def tell(host: str, phase: str, message: str) -> None:
            phase = "setup-commands" if phase == "setup" else phase  # the workers have another phase `setup`
            self._tell({"event": EventKind.HOST, "host": host, "phase": phase, "message": message})

        def note(message: str, sent: dict[str, list[str]] | None = None) -> None:
            if sent is None:
                self._note(message)
            else:
                self._tell({"event": EventKind.NOTE, "message": message, "sent": sent})

        if self._signals.received:
            return self._unprepared()

        def work() -> list[Failure]:
            if plan.run.code is None:
                return check_hosts(plan, self._transport, note)
            return stage_hosts(plan, self._transport, self._bundles, tell, note, self._suspect)

        staging = InThread(work, "prepare")
        while not staging.wait(0.1):
            self._clock.now()  # called continuously, so that the clock notices a suspended launcher
            if self._signals.received:
                self._transport.close()  # closing the connections ends the work on the hosts
                staging.wait(5)
                return self._unprepared()
        failures = staging.result()
        if not failures:
            return None
        return Outcome(failures[0].code, failures[0], failures, unprepared=True)

    def prepare_first(self, plan: LaunchPlan) -> Outcome | None:
        """Prepare for the first attempt, and try again a few times if only connections were lost.

        Returns None if all hosts are ready, otherwise the outcome of the attempt.
        """
        pause = FIRST_PAUSE
        for tries_left in reversed(range(_TRIES)):
            outcome = self.prepare(plan)
            if (
                outcome is None
                or not outcome.failures
                or not all(f.dropped for f in outcome.failures)
                or not tries_left
            ):
                break
            self._note(f"cannot start yet: {outcome.cause}; podrun prepares again")
            sleep(pause, self._is_stopped)
            pause *= 2
        return outcome

    def _note(self, message: str) -> None:
        self._tell({"event": EventKind.NOTE, "message": message})

    def _is_stopped(self) -> bool:
        self._clock.now()
        return bool(self._signals.received)

    def _unprepared(self) -> Outcome:
        """Return the outcome of a preparation that the user interrupted."""
        number = self._signals.received[0]
        return Outcome(128 + number, interrupted_by=number, unprepared=True)

    def prepare_again(
        self, plan: LaunchPlan, last_outcome: Outcome, can_do_without: Callable[[Outcome], bool]
    ) -> Outcome | None:
        """Prepare for a restart, and try again for some time: a host that is back may not have mounted everything yet.

        Args:
            plan: the plan of the next attempt.
            last_outcome: the outcome of the last attempt.
            can_do_without: returns True if the run can start without the hosts that an outcome says are not ready.
                These get less time.

        Returns:
            None if all hosts are ready, otherwise the outcome of the attempt.
        """
        started, pause = self._clock.now(), FIRST_PAUSE
        last_cause = ""
        while (outcome := self.prepare(plan)) is not None:
            limit = SHORT_LIMIT if can_do_without(outcome) else LIMIT
            if outcome.cause is None or self._clock.now() - started > limit:
                return last_outcome.without_restart(outcome.code, outcome.failures, outcome.interrupted_by)
            if last_cause != (last_cause := str(outcome.cause)):
                how_long = f"{SHORT_LIMIT:g} s, and then goes on without" if limit == SHORT_LIMIT else minutes(LIMIT)
                what = f"podrun prepares again, up to {how_long}; Ctrl-C ends the run"
                self._note(f"cannot restart yet: {last_cause}; {what}")
            sleep(pause, self._is_stopped)
            pause = min(2 * pause, LONGEST_PAUSE)
        return None

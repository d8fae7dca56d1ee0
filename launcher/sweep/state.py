"""The state of a sweep: a value that is computed from the events of its journal. PURE."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from podrun.runtime.ranking import Ranking

from .events import Event, Kind
from .space import Values

_RUN = re.compile(r"[\w-]+")  # stays in the folder of the runs


class TrialState(StrEnum):
    """State of a trial."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    PAUSED = "paused"
    PRUNED = "pruned"
    FAILED = "failed"


@dataclass
class Trial:
    """A trial: its values, its runs and its result."""

    number: int
    values: Values
    state: TrialState = TrialState.WAITING
    hosts: list[str] = field(default_factory=list)
    """Hosts of its last run."""
    home: str = ""
    """Folder of podrun's files with the record of its last run."""
    machine: str = ""
    """Machine whose podrun supervises its last run."""
    runs: list[str] = field(default_factory=list)
    """Ids of its runs, the last one last."""
    failures: int = 0
    """Number of runs that have failed."""
    value: float | None = None
    """Value of the metric of a trial that is done."""
    rungs: dict[int, float] = field(default_factory=dict)
    """Value of the metric at each rung that it has reached, by the step of the rung."""
    reason: str = ""
    """Reason why its last run has failed or was stopped."""
    code: int = 0
    """Exit code of its last run that has failed."""

    @property
    def has_result(self) -> bool:
        """Return whether something is known of how good its values are."""
        return self.state in (TrialState.DONE, TrialState.FAILED) or bool(self.rungs)

    @property
    def is_paused(self) -> bool:
        """Return whether it stays at a rung, unless it is promoted."""
        return self.state in (TrialState.PAUSED, TrialState.PRUNED)

    @property
    def is_failed(self) -> bool:
        """Return whether it has failed and is not started again."""
        return self.state is TrialState.FAILED

    @property
    def step(self) -> int:
        """Return the step of the highest rung that it has reached; 0 if it has reached none."""
        return max(self.rungs, default=0)

    @property
    def result(self) -> float | None:
        """Return the value of a trial that is done, or that at the highest rung; None without one, or if it has failed."""
        if self.state in (TrialState.DONE, TrialState.FAILED):
            return self.value
        return self.rungs.get(self.step)

    @property
    def rung_of_result(self) -> int:
        """Return the step of the rung that `result` is of; 0 if it is of none."""
        return 0 if self.state in (TrialState.DONE, TrialState.FAILED) else self.step

    @property
    def described(self) -> str:
        """Return its state with the reason, and with the rung that its result is of."""
        at = str(self.state)
        if self.rung_of_result:
            at += f" {'at' if self.is_paused else 'after'} step {self.rung_of_result}"
        return f"{at}: {self.reason}" if self.reason else at


@dataclass
class SweepState:
    """The decisions and the results of a sweep."""

    ranking: Ranking
    trials: dict[int, Trial] = field(default_factory=dict)
    metric: str | None = None
    """Full name of the metric of the trials that are done; None if there are none."""
    seconds: float = 0.0
    """Time that the sweep was running, without the time between its calls."""
    seconds_before: float = 0.0
    """Those of them that are of calls before the newest one."""
    _last: float | None = None

    def apply(self, event: Event) -> None:
        """Change the state as the event says. Raises KeyError or ValueError if the event cannot follow the earlier ones."""
        self._count_seconds(event)
        match event["event"]:
            case Kind.SWEEP:
                if self.trials:
                    raise ValueError("a sweep begins twice")
            case Kind.TRIAL:
                if event["trial"] != len(self.trials):
                    raise ValueError(f"trial {event['trial']} is chosen in place of trial {len(self.trials)}")
                self.trials[event["trial"]] = Trial(event["trial"], event["values"])
            case Kind.START:
                trial = self._in_state(event["trial"], TrialState.WAITING)
                if not _RUN.fullmatch(event["run"]):
                    raise ValueError(f"{event['run']!r} is not the id of a run")
                trial.state = TrialState.RUNNING
                trial.runs.append(event["run"])
                trial.hosts, trial.home, trial.machine = event["hosts"], event["home"], event["machine"]
            case Kind.DONE:
                trial = self._with_run(event["trial"], event["run"])
                trial.state, trial.value, trial.reason = TrialState.DONE, event["value"], ""
                self.metric = event["metric"]
            case Kind.RUNG:
                trial = self._with_run(event["trial"], event["run"])
                if event["step"] <= trial.step:
                    raise ValueError(f"trial {trial.number} reaches step {event['step']} after step {trial.step}")
                trial.state, trial.reason = TrialState.PAUSED, ""
                trial.rungs[event["step"]] = event["value"]
                self.metric = event["metric"]
            case Kind.PROMOTE:
                trial = self._in_state(event["trial"], TrialState.PAUSED, TrialState.PRUNED)
                trial.state = TrialState.WAITING
            case Kind.PRUNE:
                self._in_state(event["trial"], TrialState.PAUSED).state = TrialState.PRUNED
            case Kind.FAIL:
                trial = (
                    self._with_run(event["trial"], event["run"])
                    if event["run"]
                    else self._in_state(event["trial"], TrialState.WAITING)
                )
                trial.failures += 1
                trial.state = TrialState.WAITING if event["retry"] else TrialState.FAILED
                trial.reason, trial.code = event["reason"], event["code"]
            case Kind.STOP:
                trial = self._with_run(event["trial"], event["run"])
                trial.state, trial.reason = TrialState.WAITING, event["reason"]

    def _count_seconds(self, event: Event) -> None:
        """Count the time until an event.

        It is that of a clock that cannot be set, but for the runs that a killed call has left, and in a journal without it.
        """
        if event["event"] == Kind.RESUME:
            self._count_until(event.get("last"))
            self.seconds_before = self.seconds
        elif "elapsed" in event:
            self.seconds = max(self.seconds, self.seconds_before + event["elapsed"])
        else:
            self._count_until(event["time"])
        self._last = event["time"]

    def _count_until(self, until: float | None) -> None:
        """Count the time from the last event to this one, if there are both."""
        if self._last is not None and until is not None:
            self.seconds += max(0.0, until - self._last)

    def _in_state(self, number: int, *states: TrialState) -> Trial:
        """Return a trial that is in one of these states. Raises KeyError, ValueError."""
        if number not in self.trials:
            raise KeyError(f"trial {number} was not chosen before")
        trial = self.trials[number]
        if trial.state not in states:
            raise ValueError(f"trial {number} is {trial.state}, not {' or '.join(states)}")
        return trial

    def _with_run(self, number: int, run: str) -> Trial:
        """Return a trial that this run is running. Raises KeyError, ValueError."""
        trial = self._in_state(number, TrialState.RUNNING)
        if trial.runs[-1] != run:
            raise ValueError(f"run {run} of trial {number} ends, and {trial.runs[-1]} is the one that runs")
        return trial

    def in_state(self, *states: TrialState) -> list[Trial]:
        """Return the trials in one of the states, in the order of their numbers."""
        return [trial for _, trial in sorted(self.trials.items()) if trial.state in states]

    def ranked(self) -> list[Trial]:
        """Return the trials: those that are done from the best to the worst, then those at rungs, the highest first.

        Those without a result come last, in the order of their numbers.
        """

        def key(trial: Trial) -> tuple[bool, bool, int, float, int]:
            cost = self.ranking.cost_of(trial.result)
            return cost is None, trial.state is not TrialState.DONE, -trial.step, cost or 0.0, trial.number

        return sorted(self.trials.values(), key=key)

    def order_at(self, rung: int, trial: Trial) -> tuple[float, int]:
        """Return the key by which trials that have reached a rung are sorted there, the best first."""
        cost = self.ranking.cost_of(trial.rungs[rung])
        assert cost is not None
        return cost, trial.number

    @property
    def best(self) -> Trial | None:
        """Return the best trial that is done, or else the best one at the highest rung; None if no trial has a result.

        Of equal ones that with the lowest number is the best.
        """
        return next((trial for trial in self.ranked() if trial.result is not None), None)

    def is_better(self, value: float) -> bool:
        """Return whether a value of the metric is better than that of each trial that is done."""
        values = [trial.value for trial in self.in_state(TrialState.DONE)]
        costs = [cost for cost in map(self.ranking.cost_of, values) if cost is not None]
        cost = self.ranking.cost_of(value)
        return cost is not None and cost < min(costs, default=math.inf)


def state_of(events: Iterable[Event], ranking: Ranking) -> SweepState:
    """Return the state after these events. Raises KeyError or ValueError, as `SweepState.apply` does."""
    state = SweepState(ranking)
    for event in events:
        state.apply(event)
    return state

"""The state of a sweep: a value that is computed from the events of its journal. PURE."""

from __future__ import annotations

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
    reason: str = ""
    """Reason why its last run has failed or was stopped."""
    code: int = 0
    """Exit code of its last run that has failed."""

    @property
    def has_ended(self) -> bool:
        return self.state in (TrialState.DONE, TrialState.FAILED)


@dataclass
class SweepState:
    """The decisions and the results of a sweep."""

    ranking: Ranking
    trials: dict[int, Trial] = field(default_factory=dict)
    metric: str | None = None
    """Full name of the metric of the trials that are done; None if there are none."""
    seconds: float = 0.0
    """Time that the sweep was running, without the time between its calls."""
    _last: float | None = None

    def apply(self, event: Event) -> None:
        """Change the state as the event says. Raises KeyError or ValueError if the event cannot follow the earlier ones."""
        until = event.get("last", self._last) if event["event"] == Kind.RESUME else event["time"]
        if self._last is not None and until is not None:
            self.seconds += max(0.0, until - self._last)
        self._last = event["time"]
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

    def _in_state(self, number: int, state: TrialState) -> Trial:
        """Return a trial that is in this state. Raises KeyError, ValueError."""
        if number not in self.trials:
            raise KeyError(f"trial {number} was not chosen before")
        trial = self.trials[number]
        if trial.state is not state:
            raise ValueError(f"trial {number} is {trial.state}, not {state}")
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

    @property
    def best(self) -> Trial | None:
        """Return the best trial that is done; of equal ones that with the lowest number. None if no trial is done."""
        return min(self.in_state(TrialState.DONE), key=self._cost, default=None)

    def is_better(self, value: float) -> bool:
        """Return whether a value of the metric is better than that of each trial that is done."""
        best, cost = self.best, self.ranking.cost_of(value)
        return cost is not None and (best is None or cost < self._cost(best))

    def _cost(self, trial: Trial) -> float:
        cost = self.ranking.cost_of(trial.value)
        assert cost is not None
        return cost


def state_of(events: Iterable[Event], ranking: Ranking) -> SweepState:
    """Return the state after these events. Raises KeyError or ValueError, as `SweepState.apply` does."""
    state = SweepState(ranking)
    for event in events:
        state.apply(event)
    return state

"""Show a sweep: a line for each event, and a table of its trials."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from podrun.runtime.wording import counted

from ..view.printable import in_one_line
from ..view.text_table import shorten, text_table
from .events import Event, Kind
from .space import Values, variant_of
from .state import SweepState, TrialState

_SHOWN = 20  # trials in the table
_REASON = 60  # characters of a reason in the table


class Lines:
    """Prints a line for each event, for people."""

    def __init__(self) -> None:
        self._values: dict[int, Values] = {}

    def __call__(self, event: Event) -> None:
        if text := self._line(event):
            print(text, flush=True)

    def know(self, state: SweepState) -> None:
        """Take the values of trials that were chosen before."""
        self._values |= {trial.number: trial.values for trial in state.trials.values()}

    def _line(self, event: Event) -> str | None:
        match event["event"]:
            case Kind.TRIAL:
                self._values[event["trial"]] = event["values"]
            case Kind.START:
                name = name_of(event["trial"], self._values[event["trial"]])
                return f"trial {event['trial']} starts: {name} (run {event['run']} on {', '.join(event['hosts'])})"
            case Kind.DONE:
                best = ", the best so far" if event["is_best"] else ""
                return f"trial {event['trial']}: {event['metric']} {event['value']:.5g}{best}"
            case Kind.RUNG:
                return f"trial {event['trial']} pauses at step {event['step']}: {event['metric']} {event['value']:.5g}"
            case Kind.PROMOTE:
                return f"trial {event['trial']} goes on to step {event['step']}"
            case Kind.FAIL:
                again = "; it is started again" if event["retry"] else ""
                return f"trial {event['trial']} failed: {in_one_line(event['reason'])}{again}"
            case Kind.STOP:
                return f"trial {event['trial']} was stopped: {in_one_line(event['reason'])}"
        return None


class JsonLines:
    """Prints each event as a line of JSON, for programs."""

    def __call__(self, event: Event) -> None:
        print(json.dumps(event), flush=True)


def name_of(number: int, values: Values) -> str:
    """Return the values of a trial as one short text: `learning_rate=0.01 layers=2`."""
    return in_one_line(variant_of(number, values).name)


def trial_table(state: SweepState) -> str:
    """Return a table of the trials, the best first; of many, those that are shown are the best."""
    trials = state.ranked()
    keys = [*dict.fromkeys(key for trial in trials for key in trial.values)]
    rows = [
        [
            str(trial.number),
            *(value for _, value in variant_of(trial.number, trial.values).values),
            "-" if trial.result is None else f"{trial.result:.5g}",
            shorten(trial.described, _REASON),
        ]
        for trial in trials[:_SHOWN]
    ]
    numbers = [0, len(keys) + 1]
    table = text_table([["TRIAL", *keys, state.ranking.metric, "STATE"], *rows], right=numbers)
    return f"{table}\nand {len(trials) - _SHOWN} more trials" if len(trials) > _SHOWN else table


def summary(state: SweepState, limit: str | None, again: str) -> str:
    """Return the last line of the command.

    Args:
        state: the trials.
        limit: the limit that has ended the sweep; None if it is not complete.
        again: the command that goes on with the sweep.
    """
    done, failed = len(state.in_state(TrialState.DONE)), len(state.in_state(TrialState.FAILED))
    counts = f"{counted(done, 'trial')} done" + (f", {failed} failed" if failed else "")
    for early in (TrialState.PAUSED, TrialState.PRUNED):
        counts += f", {len(trials)} {early}" if (trials := state.in_state(early)) else ""
    name, best = "", state.best
    if best is not None:
        at = "" if best.state is TrialState.DONE else f" at step {best.step}"
        name = f"; best by {state.ranking}: trial {best.number}, {best.result:.5g}{at} ({name_of(best.number, best.values)})"
    end = f"; go on with: {again}" if limit is None else f"; complete: {limit}"
    if limit is not None and best is not None and not done:
        end += "; no trial was trained to its end"
    return f"{counts}{name}{end}"


def write_csv(file: Path, state: SweepState) -> None:
    """Write a row for each trial. The names of its metric and its keys are distinct from other columns. Raises OSError."""
    keys = [*dict.fromkeys(key for trial in state.trials.values() for key in trial.values)]
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out)
        columns = ["step", f"metrics.{state.ranking.metric}", *(f"space.{key}" for key in keys)]
        writer.writerow(["trial", "state", *columns, "reason", "runs"])
        for number in sorted(state.trials):
            trial = state.trials[number]
            texts = dict(variant_of(number, trial.values).values)
            step, value = trial.rung_of_result or "", "" if trial.result is None else repr(trial.result)
            cells = [value, *(texts.get(key, "") for key in keys), trial.reason, " ".join(trial.runs)]
            writer.writerow([number, trial.state, step, *cells])

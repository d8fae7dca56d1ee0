"""Begin a sweep, or go on with one: compare what is asked for now with what its journal has."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from podrun.runtime.contract import UserError

from ..rundir.runs import RunDirectory
from .asha import Asha
from .events import VERSION, Event, Kind, SweepEvent
from .journal import JOURNAL
from .planned import Sweep
from .space import values_of
from .state import SweepState, Trial, TrialState, state_of
from .sweep_file import SweepFile

_MAY_CHANGE = ("budget", "retries", "side_by_side")
"""Keys of sweep.yaml that change no trial, but for `side_by_side` in a search that learns from results.

The size of the pod's parts is compared on its own.
"""
_SHOWN = 5  # differences that a message lists


def begun(sweep: Sweep) -> SweepEvent:
    """Return the first event of a new sweep. Raises UserError if its folder has trials of another sweep.

    HostError: the folder on the hosts cannot be read.
    """
    folder = sweep.folders.runs
    if taken := sorted(name for name in sweep.files.names(folder) if name.startswith("trial-")):
        raise UserError(
            f"{folder} holds {taken[0]} of an earlier sweep, whose journal {sweep.folders.results / JOURNAL} is gone; "
            "remove that folder, or choose another with --workdir DIR"
        )
    return {
        "event": Kind.SWEEP,
        "time": time.time(),
        "version": VERSION,
        "name": sweep.name,
        "file": as_json(sweep.file),
        "job": sweep.job,
        "slice": sweep.parts[0].slice.name,
        "transport": sweep.parts[0].transport,
        "parts": [[host.name for host in part.hosts] for part in sweep.parts],
        "folder": str(folder),
    }


def resumed(sweep: Sweep, events: Sequence[Event]) -> SweepState:
    """Return the state of the sweep that the events of a journal have. Raises UserError if it is another sweep."""
    first = events[0]
    journal = sweep.folders.results / JOURNAL
    if first["event"] != Kind.SWEEP:
        raise UserError(
            f"{journal} does not begin with a sweep; restore it, or choose another folder with --workdir DIR"
        )
    if first["version"] != VERSION:
        raise UserError(
            f"{journal} is of version {first['version']}, and this podrun writes version {VERSION}; go on with the podrun "
            "that began the sweep, or choose another folder with --workdir DIR"
        )
    if different := [*_differences(sweep, first)]:
        raise UserError(
            "\n".join(
                [
                    f"the sweep in {sweep.folders.results} was begun with other settings; restore them, or choose another "
                    "folder with --workdir DIR",
                    *(f"  {text}" for text in different[:_SHOWN]),
                    *([f"  and {len(different) - _SHOWN} more"] if len(different) > _SHOWN else []),
                ]
            )
        )
    try:
        state = state_of(events, sweep.file.ranking)
        for trial in state.trials.values():
            _check_values(sweep.file, trial)
            _check_rungs(sweep.asha, trial)
    except (KeyError, ValueError) as error:
        raise UserError(
            f"{journal} contradicts itself: {error.args[0]}; restore it, or choose another folder with --workdir DIR"
        ) from None
    _check_left(state, journal)
    return state


def _check_values(file: SweepFile, trial: Trial) -> None:
    """Raise ValueError if a trial has values that the sweep would not have chosen."""
    if file.learns:  # another release of Optuna may suggest others
        if [*trial.values] != [*file.space] or not all(
            parameter.has(trial.values[key]) for key, parameter in file.space.items()
        ):
            raise ValueError(f"trial {trial.number} has {json.dumps(trial.values)}, which is not in the space")
    elif json.dumps(trial.values) != json.dumps(chosen := values_of(file, trial.number)):
        raise ValueError(f"trial {trial.number} has {json.dumps(trial.values)} in place of {json.dumps(chosen)}")


def _check_rungs(asha: Asha | None, trial: Trial) -> None:
    """Raise ValueError if a trial has paused at other steps than the sweep's rungs."""
    rungs = asha.rungs if asha else ()
    if [*trial.rungs] != [*rungs[: len(trial.rungs)]]:
        raise ValueError(
            f"trial {trial.number} has paused at steps {', '.join(map(str, trial.rungs))}, and the rungs are "
            f"{', '.join(map(str, rungs)) or 'none'}"
        )


def record_of(trial: Trial) -> RunDirectory:
    """Return the run directory of a trial's last run, where the podrun that started it has made it."""
    return RunDirectory(Path(trial.home) / "runs" / trial.runs[-1])


def last_seen(state: SweepState) -> float | None:
    """Return the time of the last event of the runs that a killed sweep has left; None without one."""
    events = (next(record_of(trial).newest_events(), None) for trial in state.in_state(TrialState.RUNNING))
    return max((event["time"] for event in events if event), default=None)


def _check_left(state: SweepState, journal: Path) -> None:
    """Raise UserError if a trial may still run on a machine where nobody here can see it, so that it would run twice."""
    for trial in state.in_state(TrialState.RUNNING):
        if trial.machine != socket.gethostname() and not record_of(trial).path.exists():
            raise UserError(
                f"trial {trial.number} may still run: {trial.machine} has started its run {trial.runs[-1]}, whose record "
                f"{record_of(trial).path} is not here. Go on with the sweep on {trial.machine}; or, if that machine is gone "
                f"for good and nothing runs on {', '.join(trial.hosts)}, remove the last line of {journal.name} with this run"
            )


def as_json(file: SweepFile) -> dict[str, Any]:
    """Return the content of sweep.yaml as the journal has it."""
    values: dict[str, Any] = file.model_dump(mode="json", by_alias=True)
    return values


def _differences(sweep: Sweep, first: SweepEvent) -> Iterator[str]:
    yield from file_differences(first["file"], sweep.file)
    yield from _between("the job's", first["job"], sweep.job)
    yield from _between("the slice of a trial", first["slice"], sweep.parts[0].slice.name)
    yield from _between("the transport to its hosts", first["transport"], sweep.parts[0].transport)


def file_differences(before: dict[str, Any], file: SweepFile) -> Iterator[str]:
    """Yield a text for each difference between the sweep.yaml of a journal and that of now, unless it may differ."""
    now = as_json(file)
    for key in [*before, *(key for key in now if key not in before)]:
        if (key not in _MAY_CHANGE or (key == "side_by_side" and file.learns)) and key != "job":
            yield from _between(key, before.get(key), now.get(key))
    old, new = [*before.get("space", {})], [*file.space]
    if old != new and sorted(old) == sorted(new):
        yield f"the order of space was {', '.join(old)}, and is {', '.join(new)} now"


def _between(name: str, before: Any, now: Any) -> Iterator[str]:
    """Yield a text for each difference between two JSON values."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in [*before, *(key for key in now if key not in before)]:
            yield from _between(
                f"{name}{' ' if name.endswith(chr(39) + 's') else '.'}{key}", before.get(key), now.get(key)
            )
    elif (old := json.dumps(before, sort_keys=True)) != (new := json.dumps(now, sort_keys=True)):  # 1 == True == 1.0
        yield f"{name} was {old}, and is {new} now"

"""Sweeps and their events, made for tests."""

from __future__ import annotations

import json
from typing import Any

from podrun.launcher.sweep.events import Event, parse
from podrun.launcher.sweep.sweep_file import SweepFile

SPACE = {"lr": {"min": 1e-4, "max": 1e-1, "log": True}, "layers": {"values": [2, 4, 8]}}


def made(**keys: Any) -> SweepFile:
    """Return a sweep.yaml's content with these keys."""
    values = {"job": "train.yaml", "space": SPACE, "metric": "max score", "budget": {"trials": 4}}
    return SweepFile.model_validate({**values, **keys})


def event(kind: str, at: float = 0.0, **fields: Any) -> Event:
    """Return an event, after the check that a line of the journal has."""
    return parse(json.dumps({"event": kind, "time": at, **fields}).encode())


def begin() -> Event:
    where = {"slice": "cpu-1x1", "transport": "local", "parts": [["host-0"]], "folder": "/runs/s"}
    return event("sweep", version=1, name="s", file={}, job={}, **where)


def trial(number: int, at: float = 0.0) -> Event:
    return event("trial", at, trial=number, values={"lr": 0.1 * number})


def start(number: int, run: str = "run", at: float = 0.0) -> Event:
    return event("start", at, trial=number, run=run, hosts=["host-0"], home="/home", machine="login")


def done(number: int, value: float, at: float = 0.0, run: str = "run") -> Event:
    return event("done", at, trial=number, run=run, metric="score", value=value, is_best=False)


def fail(number: int, retry: bool, run: str = "run") -> Event:
    return event("fail", trial=number, run=run, code=1, reason="boom", retry=retry)


def rung(number: int, step: int, value: float, run: str = "run") -> Event:
    return event("rung", trial=number, run=run, step=step, metric="score", value=value)

"""Parse the faults of `podrun --inject`: `KIND[:key=value,...][@step=N|@phase=PHASE|@seconds=S]`.

Pure functions, standard library only: the launcher validates the text, and the worker parses it again.
"""

from __future__ import annotations

import difflib
import math
import signal
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from .contract import Phase

STEP, PHASE, SECONDS = "step", "phase", "seconds"
_ANY = (STEP, PHASE, SECONDS)
_LOOP = (STEP, PHASE)
_TARGET = ("host", "process")
PHASES = tuple(phase.value for phase in Phase if phase is not Phase.DONE)
LINK_DOWN, NAN = "link_down", "nan"
BIT_FLIP, WRONG_SUM = "bitflip", "wrong_sum"
IN_STATE = (NAN, BIT_FLIP, WRONG_SUM)
"""The kinds of faults in the state and the computation of a step, which only podrun's runtime knows."""


class Kind(NamedTuple):
    """A kind of fault: the units of time at which it can occur, and its parameters with their defaults."""

    times: tuple[str, ...]
    parameters: tuple[tuple[str, float], ...] = ()


KINDS = MappingProxyType(
    {
        "kill": Kind(_ANY),
        "stop": Kind(_ANY),
        "segfault": Kind(_ANY),
        "sigterm": Kind(_ANY),
        "hang": Kind(_LOOP),
        "exception": Kind(_LOOP),
        "exit": Kind(_LOOP, (("code", 0),)),
        "oom": Kind(_LOOP),
        "slow": Kind((STEP,), (("seconds", 1.0),)),
        NAN: Kind((STEP,)),
        BIT_FLIP: Kind((STEP,)),
        WRONG_SUM: Kind((STEP,)),
        "disk_full": Kind((STEP,)),
        "bad_checkpoint": Kind((STEP,)),
        LINK_DOWN: Kind(_ANY, (("seconds", 5.0),)),
    }
)
SIGNALS = MappingProxyType(
    {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "segfault": signal.SIGSEGV, "sigterm": signal.SIGTERM}
)
"""The kinds of faults that are signals to the process."""


class Injection(NamedTuple):
    """One fault. It occurs once in a run."""

    kind: str
    host: str | None = None
    """Name or number of the host; None: the host of the process."""
    process: int | None = None
    """None: the first process of the host."""
    time: str = STEP
    """Unit of `at`: `step`, `phase` or `seconds` (since the process started)."""
    at: int | float | str = 1
    parameter: float | None = None
    """Value of the kind's only parameter, if it has one."""

    @property
    def by_launcher(self) -> bool:
        """Return whether the launcher injects the fault, rather than the worker."""
        return self.kind == LINK_DOWN or self.time == SECONDS

    def __str__(self) -> str:
        fields = {"host": self.host, "process": self.process}
        fields |= {name: f"{self.parameter:g}" for name, _ in KINDS[self.kind].parameters}
        given = ",".join(f"{key}={value}" for key, value in fields.items() if value is not None)
        return f"{self.kind}{':' if given else ''}{given}@{self.time}={f'{self.at:g}' if self.time == SECONDS else self.at}"


def parse(text: str) -> tuple[Injection | None, list[str]]:
    """Parse one fault. Return (fault, []), or (None, all mistakes in the text)."""
    body, at, moment = text.partition("@")
    name, colon, given = body.partition(":")
    problems: list[str] = []
    if name not in KINDS:
        problems.append(f"unknown kind {name!r}; {_nearest(name, tuple(KINDS))}")
        name = next(iter(difflib.get_close_matches(name, KINDS, n=1)), "kill")  # check the rest as if this were meant
    kind = KINDS[name]
    fields = _fields(given, (*_TARGET, *(key for key, _ in kind.parameters)), problems) if colon else {}
    default = kind.parameters[0] if kind.parameters else ("", 0.0)
    parameter = _parameter(default[0], fields.get(default[0], str(default[1])), problems) if default[0] else None
    process = _whole("process", fields["process"], 0, problems) if "process" in fields else None
    time, value = _moment(name, kind, moment, problems) if at else (STEP, 1)
    if problems:
        return None, problems
    return Injection(name, fields.get("host"), process, time, value, parameter), []


def parse_checked(texts: Sequence[str]) -> list[Injection]:
    """Parse faults that the launcher has validated. Raises ValueError if one is malformed nevertheless."""
    injections = []
    for text in texts:
        injection, problems = parse(text)
        if injection is None:
            raise ValueError(f"--inject {text}: {'; '.join(problems)}")
        injections.append(injection)
    return injections


def _fields(given: str, allowed: Sequence[str], problems: list[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in given.split(","):
        key, equals, value = part.partition("=")
        if key not in allowed:
            problems.append(f"unknown key {key!r}; {_nearest(key, allowed)}")
        elif not equals or not value:
            problems.append(f"{key} has no value; write {key}=VALUE")
        elif key in fields:
            problems.append(f"{key} is given twice; keep one")
        fields.setdefault(key, value)
    return fields


def _moment(name: str, kind: Kind, text: str, problems: list[str]) -> tuple[str, Any]:
    """Parse the time at which the fault occurs: its unit and value."""
    time, _, value = text.partition("=")
    if time not in _ANY:
        problems.append(f"unknown time {'@' + time!r}; {_nearest(time, kind.times, '@')}")
    elif time not in kind.times:
        problems.append(f"{name} cannot occur at @{time}; allowed: {', '.join('@' + t for t in kind.times)}")
    elif time == STEP:
        return time, _whole("@step", value, 1, problems)
    elif time == SECONDS:
        return time, _seconds("@seconds", value, problems)
    elif value not in PHASES:
        problems.append(f"unknown phase {value!r}; {_nearest(value, PHASES)}")
    return time, value


def _parameter(key: str, text: str, problems: list[str]) -> float:
    if key == "seconds":
        return _seconds(key, text, problems)
    code = _whole(key, text, 0, problems)
    if code > 255:
        problems.append(f"{key} is {code}, expected 0 to 255")
    return code


def _whole(key: str, text: str, least: int, problems: list[str]) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 12 or int(text) < least:
        problems.append(f"{key} is {text[:20]!r}, expected a whole number of at least {least}")
        return least
    return int(text)


def _seconds(key: str, text: str, problems: list[str]) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 86400:
        problems.append(f"{key} is {text[:20]!r}, expected a number of seconds, more than 0 and at most 86400")
    return seconds


def _nearest(word: str, allowed: Sequence[str], mark: str = "") -> str:
    near = difflib.get_close_matches(word, allowed, n=1, cutoff=0.6)
    meant = f"did you mean {mark}{near[0]}? " if near else ""
    return f"{meant}allowed: {', '.join(mark + name for name in allowed)}"

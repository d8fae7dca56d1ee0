"""Options for a SLURM job that does not exist yet: `--slurm=partition=gpu,time=2:00:00`. PURE."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from podrun.runtime.contract import UserError

from ...yamlfile.short import short

LEAD = 120
"""Seconds before the time limit at which SLURM signals podrun, which then saves and requeues the job."""
_KEY = re.compile(r"[a-z][a-z0-9-]{0,63}")
_FLAGS = {
    *("contiguous", "exclusive", "get-user-env", "hold", "ignore-pbs", "no-kill", "no-requeue", "overcommit"),
    *("oversubscribe", "quiet", "reboot", "requeue", "spread-job", "use-min-nodes", "verbose"),
}
"""Options of sbatch without a value."""
_TAKEN = {
    "nodes": "the slice says how many nodes, and spares=1 asks for more",
    "array": "`podrun --array KEY=A,B` submits an array of runs",
    "wrap": "podrun writes the script",
    "chdir": "the run starts where podrun was called",
    "input": "podrun reads nothing there",
    "parsable": "podrun reads the answer of sbatch",
    "wait": "podrun does not wait; `podrun attach` does",
    "test-only": "`--dry-run` shows what would be submitted",
    "help": "`sbatch --help` lists the options",
    "usage": "`sbatch --help` lists the options",
    "version": "`sbatch --version` says it",
}
_OWN = ("signal", "spares")
"""Options that podrun reads itself."""
_TIME = re.compile(r"(?:(\d{1,6})-)?(\d{1,6})(?::(\d{1,6}))?(?::(\d{1,6}))?")


class BatchOptions(NamedTuple):
    """Options of a job to submit."""

    given: tuple[tuple[str, str | None], ...]
    """Options of sbatch without their dashes, in the order given, with their values; None: a flag."""
    lead: int = LEAD
    """Seconds before the time limit at which SLURM signals podrun."""
    spares: int = 0
    """Number of spare nodes, in addition to the slice's, which replace nodes that fail."""

    def value(self, name: str) -> str | None:
        """Return the last value of an option; None without one."""
        return next((value for key, value in reversed(self.given) if key == name), None)


def parse_options(text: str) -> BatchOptions:
    """Parse `key=value,flag,...`. Raises UserError with all mistakes.

    A word without `=` that is not a known flag belongs to the value before it, so `exclude=n1,n2` is one option.
    """
    given: list[tuple[str, str | None]] = []
    problems: list[str] = []
    for word in text.split(","):
        key, equals, value = word.partition("=")
        if equals and _KEY.fullmatch(key):
            given.append((key, value))
        elif word in _FLAGS:
            given.append((word, None))
        elif given and given[-1][1] is not None:
            given[-1] = (given[-1][0], f"{given[-1][1]},{word}")
        else:
            problems.append(
                f"{short(word)} is not an option of sbatch; write key=value, such as partition=gpu,time=2:00:00"
            )
    problems += _mistakes(given)
    lead, wrong = _lead(given)
    spares = BatchOptions(tuple(given)).value("spares") or "0"
    if not re.fullmatch(r"\d{1,4}", spares):
        wrong.append(f"spares is {short(spares)}; give the number of nodes beyond those of the slice, such as spares=1")
    if problems or wrong:
        raise UserError("\n".join(f"--slurm: {problem}" for problem in [*problems, *wrong]))
    return BatchOptions(tuple(option for option in given if option[0] not in _OWN), lead, int(spares))


def _mistakes(given: Sequence[tuple[str, str | None]]) -> list[str]:
    problems = [f"{key}: {_TAKEN[key]}; leave it out" for key, _ in given if key in _TAKEN]
    problems += [
        f"{key}: podrun itself would run in the image; name it with `container:` in a pod file, for --pod"
        for key, _ in given
        if key.startswith("container-")
    ]
    for key, value in given:
        if value == "":
            problems.append(f"{key} has no value; write {key}=VALUE, or leave it out")
        elif value is not None and not value.isprintable():
            problems.append(f"{key} is {short(value)}, which cannot be printed")
    return problems


def _lead(given: Sequence[tuple[str, str | None]]) -> tuple[int, list[str]]:
    """Parse the option `signal`. Return how many seconds before the time limit SLURM sends it, and the mistakes in it."""
    options = BatchOptions(tuple(given))
    typed, limit = options.value("signal") or str(LEAD), options.value("time")
    if not re.fullmatch(r"\d{1,5}", typed):
        what = f"signal is {short(typed)}; give the seconds before the time limit at which podrun saves: signal={LEAD}"
        return LEAD, [what]
    if limit and (whole := seconds(limit)) is not None and whole <= int(typed):
        what = f"time is {limit}, and podrun would save {typed} s before its end; give more time, or fewer seconds: signal=30"
        return int(typed), [what]
    return int(typed), []


def seconds(limit: str) -> int | None:
    """Parse a time limit of sbatch to seconds: minutes, `M:S`, `H:M:S`, `D-H`, `D-H:M`, `D-H:M:S`; None if it is invalid."""
    if not (match := _TIME.fullmatch(limit)):
        return None
    days, first, second, third = match.groups()
    numbers = [int(number or 0) for number in (first, second, third)]
    if days is not None or third is not None:
        hours, minutes, rest = numbers
    else:
        hours, minutes, rest = 0, numbers[0], numbers[1]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + rest

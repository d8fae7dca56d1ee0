"""The schema of sweep.yaml, and its reader, which reports all mistakes at once."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, JsonValue, ValidationError, field_validator, model_validator

from podrun.runtime.config import Section
from podrun.runtime.ranking import Ranking

from ..compare.variants import OF_THE_POD
from ..yamlfile.mistakes import Row, describe_mistakes, mistake_row, mistakes_error
from ..yamlfile.near import near_files
from ..yamlfile.yaml_file import read_mapping

MAX_TRIALS = 10_000
"""Maximum number of trials of a sweep."""
_EXACT = 2**53  # from here a float no longer has all whole numbers
_KEY = re.compile(r"[\w-]+(\.[\w-]+)*")
_LENGTH = ("steps", "epochs", "stop_at")
"""Keys of a job that say when it ends."""
_START = "docs/sweeps.md has examples"


class Parameter(Section):
    """Values of one key: a list of them, or a range of numbers."""

    values: tuple[JsonValue, ...] | None = Field(None, description="The values to choose from.")
    min: float | None = Field(None, allow_inf_nan=False, description="The lowest number of a range.")
    max: float | None = Field(None, allow_inf_nan=False, description="The highest number of a range.")
    log: bool = Field(False, description="Whether the logarithm is uniform over the range, as for learning rates.")
    whole: bool = Field(False, alias="int", description="Whether the range has whole numbers only.")

    @model_validator(mode="after")
    def _check(self) -> Parameter:
        if self.values is not None:
            self._check_values(self.values)
        else:
            self._check_range()
        return self

    def _check_values(self, values: tuple[JsonValue, ...]) -> None:
        if {"min", "max", "log", "whole"} & self.model_fields_set:
            raise ValueError("has values and a range; give one of them")
        if not values:
            raise ValueError("values is empty; list the values to try, such as values: [2, 4]")
        if any(math.isinf(value) or math.isnan(value) for value in values if isinstance(value, float)):
            raise ValueError("has .inf or .nan; list finite numbers, or for a program the word in quotes: 'inf'")
        texts = [json.dumps(value) for value in values]
        if twice := [text for number, text in enumerate(texts) if text in texts[:number]]:
            raise ValueError(f"has {twice[0]} twice; keep one of them")

    def _check_range(self) -> None:
        if self.min is None or self.max is None:
            raise ValueError("needs values: [A, B], or a range: min: A and max: B")
        if self.min >= self.max:
            raise ValueError(f"min {self.min:g} is not less than max {self.max:g}; swap them")
        if self.log and self.min <= 0:
            raise ValueError(f"min {self.min:g} has no logarithm; give a min above 0, or leave log out")
        if self.whole and max(-self.min, self.max) >= _EXACT:
            raise ValueError(
                "has whole numbers of more than 15 digits, which would be rounded; list some of them in values"
            )
        if self.whole and (self.min != math.floor(self.min) or self.max != math.floor(self.max)):
            raise ValueError("min and max must be whole numbers, because int is true")

    def place_of(self, value: JsonValue) -> int | None:
        """Return the place of a value in the list, from 0; None if it is not there. 1, 1.0 and true are distinct."""
        text = json.dumps(value)
        return next((place for place, one in enumerate(self.values or ()) if json.dumps(one) == text), None)

    def has(self, value: JsonValue) -> bool:
        """Return whether a value is one of these."""
        if self.values is not None:
            return self.place_of(value) is not None
        assert self.min is not None and self.max is not None
        return isinstance(value, int if self.whole else float) and self.min <= value <= self.max


class Budget(Section):
    """The limits of a sweep. The first limit that is reached counts."""

    trials: int | None = Field(None, gt=0, le=MAX_TRIALS, description="Number of trials.")
    steps: int | None = Field(None, gt=0, description="Number of training steps of all trials together.")
    hours: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Hours of the sweep; then no trial is started any more."
    )


class EarlyStopping(Section):
    """Stop trials early by ASHA (asha.py)."""

    min_steps: int = Field(gt=0, description="Step of the first rung, up to which each trial is trained.")
    factor: int = Field(
        3,
        ge=2,
        description="One of so many trials goes on from a rung, and the next rung is at so many times the steps.",
    )


def _metric(text: str) -> str:
    try:
        return str(Ranking.parse(text))
    except ValueError as error:
        raise ValueError(str(error).partition(" (it is")[0]) from None  # the row of the mistake has the value


class SweepFile(Section):
    """The content of sweep.yaml."""

    job: Path | None = Field(None, description="The train.yaml, relative to the folder of sweep.yaml; or give program.")
    program: tuple[str, ...] = Field(
        (), description="The words of a program of your own; {KEY} in them is replaced, other keys become --KEY=VALUE."
    )
    space: dict[str, Parameter] = Field(description="The keys to search, and the values of each.")
    search: Literal["grid", "random", "optuna"] = Field(
        "random", description="How trials are chosen: all combinations in order, at random, or by Optuna's TPE."
    )
    seed: int = Field(0, ge=0, description="Seed of the search: the same seed gives the same trials.")
    metric: Annotated[str, AfterValidator(_metric)] = Field(
        description="What makes a trial the best: min or max, and the name of a metric, such as max accuracy."
    )
    early_stopping: EarlyStopping | None = Field(
        None,
        description="Stop trials early by ASHA: at each rung the best of them go on; null: all are trained to the end.",
    )
    budget: Budget = Field(Budget(), description="How much the sweep may use.")
    side_by_side: int = Field(
        1, gt=0, description="Number of trials that run at once, each on an equal part of the pod's hosts."
    )
    retries: int = Field(
        1, ge=0, description="How often a trial that fails is started again before it counts as failed."
    )

    @field_validator("space")
    @classmethod
    def _check_space(cls, space: dict[str, Parameter]) -> dict[str, Parameter]:
        if not space:
            raise ValueError("is empty; name at least one key and its values")
        return space

    @property
    def ranking(self) -> Ranking:
        """Return the order of the trials."""
        return Ranking.parse(self.metric)

    @property
    def learns(self) -> bool:
        """Return True if the values of a trial depend on the results of earlier ones."""
        return self.search == "optuna"

    def combinations(self) -> int:
        """Return the number of combinations of the listed values. A range counts as one."""
        return math.prod(len(parameter.values or (None,)) for parameter in self.space.values())


def read_sweep(path: Path) -> SweepFile:
    """Return the content of a sweep.yaml. The path of its job is relative to the current folder.

    Raises:
        UserError: all mistakes, each with its line, key and remedy.
    """
    title = str(path)
    values, lines = read_mapping(path, title, "the sweep", instead=lambda at: near_files(at) or _START, start=_START)
    try:
        sweep = SweepFile.model_validate(values)
    except ValidationError as invalid:
        raise mistakes_error(title, describe_mistakes(SweepFile, invalid.errors(), lines)) from None
    if rows := [*_contradictions(sweep, values, lines)]:
        raise mistakes_error(title, rows)
    if sweep.job is None:
        return sweep
    return sweep.model_copy(update={"job": Path(os.path.relpath(path.parent / sweep.job.expanduser()))})


def _contradictions(sweep: SweepFile, values: Mapping[str, Any], lines: Mapping[str, int]) -> Iterator[Row]:
    """Yield a row for each mistake between the keys of a file."""
    if (sweep.job is None) == (not sweep.program):
        what = (
            "as well as program; remove one of them" if sweep.job else "required: the path of a train.yaml; or program"
        )
        yield mistake_row("job", what, lines)
    if unknown := _unknown_place(sweep):
        yield mistake_row("program", unknown, lines)
    if sweep.early_stopping and sweep.program:
        what = "is for a job: podrun does not know the steps and checkpoints of a program, so it cannot pause one; remove it"
        yield mistake_row("early_stopping", what, lines)
    for key, parameter in sweep.space.items():
        dotted = f"space.{key}"
        if not _KEY.fullmatch(key):
            yield mistake_row(dotted, "is not the name of a key, such as optimizer.learning_rate", lines)
        elif key in OF_THE_POD:
            what = "all trials have the same pod, and a workdir each; use --slice, --pod and --workdir"
            yield mistake_row(dotted, what, lines)
        elif above := next((other for other in sweep.space if key.startswith(f"{other}.")), None):
            yield mistake_row(dotted, f"{above} is searched as well, and contains it; remove one of them", lines)
        if sweep.early_stopping and key in _LENGTH:
            what = "early_stopping compares trials at the same steps, so all must have the same; give it in the job"
            yield mistake_row(dotted, what, lines)
        if sweep.search == "grid" and parameter.values is None:
            what = "a grid has no ranges; list the values, as in values: [0.001, 0.01], or use search: random"
            yield mistake_row(dotted, what, lines)
    if sweep.search == "grid" and sweep.combinations() > MAX_TRIALS and sweep.budget.trials is None:
        what = f"{sweep.combinations()} combinations, more than {MAX_TRIALS}; list fewer values, or set budget.trials"
        yield mistake_row("space", what, lines)
    if sweep.search != "grid" and not sweep.budget.model_fields_set:
        what = f"required, because search: {sweep.search} never ends by itself; such as budget: {{trials: 20}}"
        yield mistake_row("budget", what, lines)


def _unknown_place(sweep: SweepFile) -> str | None:
    """Return the mistake that a word has `{KEY}` of no key of the space, while another key has no place; None without one."""
    places = re.findall(r"\{([\w-]+(?:\.[\w-]+)*)\}", " ".join(sweep.program))
    without = [key for key in sweep.space if key not in places and not key.startswith("launch.")]
    unknown = next((name for name in places if name not in sweep.space), None)
    if unknown is None or not without:
        return None
    return (
        f"{{{unknown}}} is no key of the space; write {{{without[0]}}}, or, if {{{unknown}}} is meant literally, add a word "
        f"with {{{without[0]}}}"
    )

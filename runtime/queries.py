"""Queries of the launcher to programs of the runtime, each a line of JSON (`worker/query.py`). Standard library only."""

from __future__ import annotations

from typing import Literal, TypedDict, final


@final
class InspectQuery(TypedDict):
    """`podrun inspect`: a report on a job."""

    target: dict[str, object] | None
    """The fields of a `Target`; None: the CPUs of the process."""
    target_is_wanted: bool
    """The user asked for its compiler."""
    config: dict[str, object]
    """The fields of the job's `Config`."""
    slice: str
    title: str
    width: int
    """Columns of the terminal."""


@final
class ArraysQuery(TypedDict):
    """`podrun inspect --mesh`: arrays laid out over a mesh."""

    mesh: dict[str, int]
    """Size of each axis."""
    arrays: list[str]
    expression: str | None
    width: int
    """Columns of the terminal."""
    json: bool


@final
class LayoutsQuery(TypedDict):
    """`podrun fit`: what layouts of a job hold, or what the compiler says about one."""

    target: dict[str, object]
    """The fields of a `Target`."""
    layouts: list[dict[str, object]]
    """The fields of a `Config` for each."""
    compile: bool


class EvaluateQuery(TypedDict):
    """`podrun evaluate`: the metrics of a model."""

    folder: str
    step: int | Literal["best"] | None
    data: str | None
    """Path of other data than the run's."""
    tokenizer: str | None
    """Path of a tokenizer.json."""


class ExportQuery(TypedDict):
    """`podrun export`: the model of a checkpoint as a file."""

    workdir: str
    step: int | Literal["best"] | None
    format: str
    output: str | None
    """Path of the file."""


class SamplingFields(TypedDict):
    """The fields of a `Sampling`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float


class GenerateQuery(TypedDict):
    """`podrun generate`: continuations of prompts."""

    folder: str
    step: int | Literal["best"] | None
    prompts: list[str]
    tokens: int | None
    sampling: SamplingFields
    seed: int
    stops: list[str]
    """Texts at which a continuation ends."""
    tokenizer: str | None
    """Path of a tokenizer.json."""

"""Queries of the launcher to programs of the runtime, each a line of JSON (`worker/query.py`), and their answers.

An answer is sent as the JSON of its fields. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypedDict, final

from .events import Metrics
from .job_report import Excess, Report
from .layout_facts import Measured, Survey


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
    """Width of the terminal, in columns."""


@dataclass(frozen=True)
class InspectAnswer:
    """The report on a job whose step was compiled."""

    text: str
    """The report for a terminal."""
    report: Report
    files: list[str]
    """Files and folders that the answer depends on."""


@dataclass(frozen=True)
class TooLargeAnswer:
    """The report on a job whose step does not fit into the memory of a device."""

    problem: str
    """The message to the user."""
    excess: Excess
    files: list[str]
    """Files and folders that the answer depends on."""


@final
class ArraysQuery(TypedDict):
    """`podrun inspect --mesh`: arrays laid out over a mesh."""

    mesh: dict[str, int]
    """Size of each axis."""
    arrays: list[str]
    expression: str | None
    width: int
    """Width of the terminal, in columns."""
    json: bool


@final
class LayoutsQuery(TypedDict):
    """`podrun fit`: what layouts of a job hold, or what the compiler says about one."""

    target: dict[str, object]
    """The fields of a `Target`."""
    layouts: list[dict[str, object]]
    """The fields of a `Config` for each."""
    compile: bool


@dataclass(frozen=True)
class LayoutsAnswer:
    """Answer of the compiler, or facts that need no compiling."""

    answer: Survey | Measured
    """A `Measured` with `compile`, otherwise a `Survey`."""
    files: list[str]
    """Files and folders that the answer depends on."""


class EvaluateQuery(TypedDict):
    """`podrun evaluate`: the metrics of a model."""

    folder: str
    step: int | Literal["best"] | None
    data: str | None
    """Path of other data than the run's."""
    tokenizer: str | None
    """Path of a tokenizer.json."""
    tasks: list[str]
    """Tasks of lm-evaluation-harness, in place of data; none: data."""
    limit: int | None
    """Number of examples of each task; None: all."""


@dataclass(frozen=True)
class EvaluateAnswer:
    """Metrics of a model."""

    about: str
    """A phrase that says which model it is."""
    step: int | None
    """Step of its checkpoint; None for a published model."""
    weights: str
    """Part of the state that was evaluated: `ema`, or `params` if there is no average."""
    data: str
    """A phrase that says which data it is."""
    is_of_run: bool
    """True if the run itself validates with this data."""
    examples: int
    """Number of examples."""
    tokens: int | None
    """Number of tokens of an example; None if it has none."""
    metrics: Metrics
    """The task's metrics. An ensemble has the metrics of its members' mean prediction, and more."""


class BatchesQuery(TypedDict):
    """`podrun batches`: the examples of some steps of a run."""

    workdir: str
    first: int | None
    """First step; None: the steps before the largest jump of the loss."""
    last: int | None
    """Last step; None: the first one alone."""


class OriginFields(TypedDict):
    """The fields of an `Origin`."""

    where: str
    start: int
    size: int
    documents: list[str]


class SeenExample(TypedDict):
    """An example of a step."""

    step: int
    batch: int
    """Number of its batch, which `data.skip` takes: the step, if no batch before it was left out."""
    row: int
    """Its number in the batch of the pod, from 0."""
    index: int
    """Its number in the training set."""
    epoch: int
    """How often the training set, or its source in a mixture, was seen before."""
    origins: list[OriginFields]
    """Where its tokens are from; empty if its source cannot tell."""
    text: str | None
    """The text of its tokens; None without a tokenizer."""


class BatchesAnswer(TypedDict):
    """The examples of some steps."""

    why: str
    """Why these steps, if the user did not name them."""
    note: str
    """What is uncertain about them, for the user; empty if nothing is."""
    examples: list[SeenExample]


class ExportQuery(TypedDict):
    """`podrun export`: the model of a checkpoint as a file."""

    workdir: str
    step: int | Literal["best"] | None
    format: str
    output: str | None
    """Path of the file."""


@dataclass(frozen=True)
class ExportAnswer:
    """Description of an exported file or folder."""

    file: str
    step: int
    weights: str
    """Exported part of the state: `ema`, or `params` if there is no average."""
    arrays: int
    parameters: int
    bytes: int
    tokenizer: str | None
    """Path of the tokenizer.json beside the file or in the folder, if the job has a BPE tokenizer."""
    verified: bool
    """False if the checkpoint has no manifest to verify it by."""


class SamplingFields(TypedDict):
    """A `Sampling` in the JSON of a query."""

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
    devices: int | None
    """Number of devices to use; None: all."""


@dataclass(frozen=True)
class GenerateAnswer:
    """Counts of tokens, and how long they took."""

    about: str
    """A phrase that says which model it is."""
    read: int
    """Tokens of the prompts."""
    written: int
    """New tokens."""
    seconds: float
    """Time without the first block of each batch, in which programs are compiled."""
    timed: int
    """Tokens that were written in that time."""


@final
class PrepareQuery(TypedDict):
    """`podrun prepare`: text of files as a folder of token ids."""

    sources: list[str]
    """Files, folders, glob patterns and URLs of buckets."""
    folder: str
    tokenizer: str
    """byte, char, or the path of a tokenizer.json or of a model's folder."""
    eos: str | None
    """Token that ends each document; None: the one that the tokenizer's files name."""
    column: str | None
    template: str | None
    chat: bool
    """Documents are conversations."""
    pairs: bool
    """Documents are pairs of conversations, with a chosen and a rejected answer."""
    workers: int | None
    """Number of processes; None: one for each core."""
    strict: bool
    """A bad line is an error."""
    overwrite: bool


@final
class PrepareLine(TypedDict):
    """A part of the answer: a line to show to the user."""

    line: str


@final
class PrepareProgress(TypedDict):
    """A part of the answer: progress so far."""

    progress: tuple[int, int, int, float]
    """Bytes read, bytes in all, tokens, and seconds."""


@dataclass(frozen=True)
class PrepareAnswer:
    """Counts of the prepared folder, and of the work done for it."""

    documents: int
    tokens: int
    vocabulary: int
    dtype: str
    shards: int
    sources: int
    empty: int
    bad: int
    bad_shown: list[str]
    """The first bad lines, rows or files, with their reasons."""
    read: int
    """Bytes read this time."""
    written: int
    """Tokens written this time."""
    seconds: float
    was_complete: bool
    """The folder was complete before."""
    pairs: bool
    """Each two documents are a pair of conversations."""
    answers: int | None = None
    """Tokens of conversations that are learned; None for text, and if the folder was complete before."""
    left_out: int = 0
    """Answers that are not learned, because the chat template writes them otherwise once more messages follow."""


@final
class ShowPreparedQuery(TypedDict):
    """`podrun prepare --show`: what a prepared folder has."""

    show: str
    """The folder."""
    verify: bool
    """Compare the files with their digests."""
    seed: int
    """Selects the documents that are shown."""


@dataclass(frozen=True)
class PreparedSample:
    """The beginning of a document."""

    source: str
    number: int
    """Line or row in the source."""
    tokens: int
    text: str
    is_whole: bool
    role: str = ""
    """`chosen` or `rejected`, for a conversation of a pair."""


@dataclass(frozen=True)
class ShowPreparedAnswer:
    """Statistics of a prepared folder, and some of its documents."""

    documents: int
    tokens: int
    vocabulary: int
    dtype: str
    tokenizer: str
    eos: int | None
    shards: int
    sources: int
    bad: int
    empty: int
    shortest: int
    median: int
    longest: int
    """Tokens of documents."""
    lengths: list[tuple[int, int]]
    """(tokens, number of documents with that many and fewer than twice as many), by powers of two."""
    samples: list[PreparedSample]
    answers: int | None
    """Tokens that are learned, if the documents are conversations: those between ⟦ and ⟧ in the samples."""
    pairs: bool
    """Each two documents are a pair of conversations."""
    damage: dict[str, str] | None
    """Files whose digests are wrong, with the reason; None if they were not compared."""

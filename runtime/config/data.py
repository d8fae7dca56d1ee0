"""Sections of the built-in data sources and tokenizers."""

from __future__ import annotations

import math
import re
from pathlib import Path, PurePath
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from .base import SELECTS, Choice, Finite, Fraction, Named, Natural, NaturalFloat, Plugin, Positive, ReadsFiles, Section
from .bucket_url import mistakes
from .files import idx_files, one_file, prepared_files, record_files, text_files
from .task import ExampleKind

ReadFile = Annotated[Path, ReadsFiles(one_file)]
OptionalFile = Annotated[Path | None, ReadsFiles(one_file)]
Records = Annotated[
    str,
    Field(
        min_length=1,
        description="A file, a folder or a glob pattern, relative to here or to train.yaml; or gs://..., s3://...",
    ),
    ReadsFiles(record_files),
]


class CharTokenizer(Section):
    """One token per character; the vocabulary is the set of characters of the text."""

    name: Literal["char"] = Field("char", description=SELECTS)


class ByteTokenizer(Section):
    """One token per byte of the UTF-8 text: 256 tokens, for any text."""

    name: Literal["byte"] = Field("byte", description=SELECTS)


class BPETokenizer(Section):
    """Byte-level byte-pair encoding by the `tokenizers` library: loaded from a file, or trained on the text."""

    name: Literal["bpe"] = Field("bpe", description=SELECTS)
    file: OptionalFile = Field(None, description="A tokenizer.json; without it a tokenizer is trained on the text.")
    vocabulary: Annotated[int, Field(ge=257)] = Field(8192, description="Number of tokens to train the tokenizer to.")


Tokenizer = Annotated[CharTokenizer | ByteTokenizer | BPETokenizer, Choice("byte", plugins=False), Named]


_TOKENIZER = "How text becomes tokens."


_MOST_BATCHES = 1 << 40
"""Highest number of a batch: positions, its products with a batch size, are int64."""


def _are_ranges(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    last = 0
    for low, high in sorted(ranges):
        if high < low:
            raise ValueError(
                f"[{low}, {high}] ends before it begins; give the first batch and the last, such as [{high}, {low}]"
            )
        if high > _MOST_BATCHES:
            raise ValueError(
                f"[{low}, {high}] ends beyond {_MOST_BATCHES:,}, which no training reaches; give the last batch"
            )
        if low <= last:
            raise ValueError(f"[{low}, {high}] overlaps the range that ends with {last}; give each batch once")
        last = high
    return ranges


class DataSource(Section):
    """Base of the built-in data sources."""

    skip: Annotated[tuple[tuple[Positive, Positive], ...], AfterValidator(_are_ranges)] = Field(
        (),
        description="Batches that are left out, as ranges of their numbers: with [[1190, 1210]] step 1190 sees what step "
        "1211 would see without it. To leave out batches that were trained, resume from a checkpoint before them.",
    )

    examples: ClassVar[tuple[ExampleKind, ...]]
    """The kinds of examples that the source can give."""


class FileData(DataSource):
    """Base of the data sources that read files."""

    bring: bool = Field(
        False,
        description="Copy the files from this machine to hosts that are other machines; false: the hosts have them.",
    )

    @model_validator(mode="after")
    def _check_bring(self) -> FileData:
        if self.bring:
            for name in type(self).model_fields:
                url = re.match(r"(gs|s3|https?):/", str(getattr(self, name)))
                if url:
                    raise ValueError(
                        f"bring: {name} is in a bucket or on a server ({url[1]}://...), but bring copies files of this "
                        "machine; remove `bring`, or copy the files here and give their path"
                    )
        return self

    @model_validator(mode="after")
    def _check_urls(self) -> FileData:
        for name, field in type(self).model_fields.items():
            names_files = any(isinstance(mark, ReadsFiles) for mark in field.metadata)
            if names_files and (wrong := mistakes(PurePath(str(getattr(self, name))), name, "my-data")):
                raise ValueError("; ".join(wrong))
        return self


class TextData(FileData):
    """Text files: one file, a folder (its files in sorted order), or a glob pattern."""

    examples = ("tokens",)
    name: Literal["text"] = Field("text", description=SELECTS)
    path: Annotated[str, Field(min_length=1), ReadsFiles(text_files)] = Field(
        description="A file, a folder or a glob pattern, relative to here or to train.yaml; or gs://..., s3://..."
    )
    tokenizer: Tokenizer = Field(ByteTokenizer(), description=_TOKENIZER)
    validation: Fraction = Field(0.1, description="Share of the text, from its end, kept for validation.")


class PythonSourceData(DataSource):
    """The Python sources of the interpreter's standard library: real text that is on every machine."""

    examples = ("tokens",)
    name: Literal["python_source"] = Field("python_source", description=SELECTS)
    tokenizer: Tokenizer = Field(ByteTokenizer(), description=_TOKENIZER)
    validation: Fraction = Field(0.1, description="Share of the text, from its end, kept for validation.")


class TokensData(FileData):
    """A binary file of token ids, made by any tokenizer beforehand; it is memory-mapped."""

    examples = ("tokens",)
    name: Literal["tokens"] = Field("tokens", description=SELECTS)
    path: ReadFile = Field(description="The file, relative to here or to train.yaml; or gs://..., s3://...")
    validation_path: OptionalFile = Field(
        None, description="A second file, for validation; without it the end of `path`."
    )
    validation: Fraction = Field(
        0.1, description="Share of `path`, from its end, kept for validation if there is no validation_path."
    )
    dtype: Literal["uint16", "uint32"] = Field(
        "uint16", description="Type of an id in the files, in the byte order of the hosts."
    )
    vocabulary: Positive = Field(50257, description="Number of token ids; 50257 is GPT-2's.")
    tokenizer_file: OptionalFile = Field(
        None, description="A tokenizer.json, to show sampled tokens as text; without it nothing can be sampled as text."
    )


Prepared = Annotated[
    str,
    Field(
        min_length=1,
        description="A folder that `podrun prepare` wrote, relative to here or to train.yaml; or gs://..., s3://...",
    ),
    ReadsFiles(prepared_files),
]


class PreparedData(FileData):
    """Documents as token ids, made by `podrun prepare`; they are memory-mapped."""

    examples = ("tokens", "pairs")
    name: Literal["prepared"] = Field("prepared", description=SELECTS)
    path: Prepared
    validation_path: Annotated[str | None, ReadsFiles(prepared_files)] = Field(
        None, description="A second such folder, for validation; without it the last documents of `path`."
    )
    validation: Fraction = Field(
        0.1, description="Share of the tokens, in whole documents from the end, kept for validation."
    )
    packing: Literal["concat", "fit"] = Field(
        "concat",
        description="Concat: documents one after another, cut into windows. Fit: as many whole documents as a window has "
        "room for; each is alone in attention, positions and loss. Conversations need fit; pairs are not packed, "
        "and concat has no effect on them.",
    )


TextSource = Annotated[
    PreparedData | TokensData | TextData | PythonSourceData, Choice("prepared", plugins=False), Named
]
"""A source of a mixture, or of a validation set of its own."""


def _is_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][\w-]*", name):
        raise ValueError("the name of a source has letters, digits, _ and -, and begins with a letter or digit")
    return name


SourceName = Annotated[str, AfterValidator(_is_name)]
Weights = dict[SourceName, NaturalFloat]


class MixtureData(DataSource):
    """Several sources of text, mixed by weights; each goes through its own examples in its own order."""

    examples = ("tokens",)
    name: Literal["mixture"] = Field("mixture", description=SELECTS)
    sources: Annotated[dict[SourceName, TextSource], Field(min_length=1)] = Field(
        description="The sources by name, each a section like `data` with the name prepared, tokens, text or python_source."
    )
    bring: bool = Field(
        False,
        description="Copy the files of all sources from this machine to hosts that are other machines; false: the hosts have "
        "them.",
    )
    weights: Weights = Field(
        default={},
        description="Weight of each source: its share of the examples is its weight by the sum of all. Without weights all "
        "sources have the same; they may change when a job is resumed.",
    )
    weights_from: dict[Positive, Weights] = Field(
        default={},
        description="Other weights from a batch on, by its number: {10000: {web: 0.5, code: 0.5}}; that is the step, if no "
        "batch before it was left out by `skip`.",
    )

    @model_validator(mode="after")
    def _check_weights(self) -> MixtureData:
        every = {"weights": self.weights} if self.weights else {}
        every |= {f"weights_from.{step}": weights for step, weights in self.weights_from.items()}
        problems = []
        for key, weights in every.items():
            if unknown := weights.keys() - self.sources.keys():
                problems.append(
                    f"{key}: {', '.join(sorted(unknown))} is not among the sources, which are {', '.join(self.sources)}"
                )
            elif missing := self.sources.keys() - weights.keys():
                problems.append(f"{key}: {', '.join(sorted(missing))} has no weight; give one, 0 to leave it out")
            elif not sum(weights.values()):
                problems.append(f"{key}: all weights are 0; give at least one that is not")
            elif sum(weights.values()) == math.inf:
                problems.append(f"{key}: the weights are too large to add up; give smaller ones, such as shares of 1")
        problems += [
            f"sources.{name}.{key}: the key stands beside `sources` and is for all of them; move it there"
            for name, source in self.sources.items()
            for key in ("bring", "skip")
            if getattr(source, key, False)
        ]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def weights_by_step(self) -> list[tuple[int, dict[str, float]]]:
        """Return (number of steps done, weights) for each change of the weights, in order, beginning with 0 steps."""
        first = self.weights or dict.fromkeys(self.sources, 1.0)
        return sorted({0: first, **{step - 1: weights for step, weights in self.weights_from.items()}}.items())


def has_segments(data: Section) -> bool:
    """Return whether rows of the data have several documents, which attention keeps apart."""
    if isinstance(data, MixtureData):
        return any(map(has_segments, data.sources.values()))
    return isinstance(data, PreparedData) and data.packing == "fit"


Held = Annotated[float, Field(ge=0, lt=1)]
Classes = Annotated[int, Field(ge=2)]


class IdxData(FileData):
    """Images and labels in MNIST's file format (http://yann.lecun.com/exdb/mnist/), plain or .gz; pixels become 0 to 1."""

    examples = ("labels",)
    name: Literal["idx"] = Field("idx", description=SELECTS)
    path: Annotated[Path, ReadsFiles(idx_files)] = Field(
        description="Folder with train-images-idx3-ubyte, train-labels-idx1-ubyte, and t10k-... for validation."
    )


class DigitsData(DataSource):
    """scikit-learn's handwritten digits: 1797 images of 8x8, part of its installation; pixels become 0 to 1."""

    examples = ("labels",)
    name: Literal["digits"] = Field("digits", description=SELECTS)
    validation: Fraction = Field(0.2, description="Share kept for validation, the same images for every seed.")


class MakeClassificationData(DataSource):
    """scikit-learn's make_classification with its defaults: clusters in a high-dimensional space."""

    examples = ("labels",)
    name: Literal["make_classification"] = Field("make_classification", description=SELECTS)
    samples: Positive = Field(50000, description="Examples, those for validation included (n_samples).")
    features: Positive = Field(784, description="Numbers of each example (n_features).")
    classes: Classes = Field(10, description="Number of classes (n_classes).")
    informative: Positive = Field(
        50, description="Features that depend on the class (n_informative); two more are combinations of these."
    )
    seed: Natural = Field(0, description="Seed of the examples (random_state).")
    validation: Held = Field(0.0, description="Share kept for validation; 0: validate on the training examples.")

    @model_validator(mode="after")
    def _check_features(self) -> MakeClassificationData:
        redundant, clusters = 2, 2  # scikit-learn's defaults
        if self.informative + redundant > self.features:
            raise ValueError(
                f"informative {self.informative} and {redundant} redundant features are more than features "
                f"{self.features}; give informative at most {self.features - redundant}, or more features"
            )
        if self.informative < math.log2(self.classes * clusters):
            raise ValueError(
                f"informative {self.informative} is too low for classes {self.classes}: {clusters} clusters for each "
                f"need at least {math.ceil(math.log2(self.classes * clusters))}"
            )
        return self


class SineData(DataSource):
    """y = sin(6x) - x^2/2 + noise, x uniform in a range."""

    examples = ("values",)
    name: Literal["sine"] = Field("sine", description=SELECTS)
    samples: Annotated[int, Field(ge=2)] = Field(10000, description="Examples, those for validation included.")
    range: tuple[Finite, Finite] = Field((-1.0, 1.0), description="Lowest and highest x.")
    noise: NaturalFloat = Field(0.1, description="Standard deviation of the noise; 0: none.")
    seed: Natural = Field(0, description="Seed of x and of the noise.")
    validation: Fraction = Field(0.2, description="Share kept for validation.")

    @field_validator("range")
    @classmethod
    def _check_range(cls, ends: tuple[float, float]) -> tuple[float, float]:
        if ends[0] >= ends[1]:
            raise ValueError(
                f"must be the lowest and the highest x, such as [0, 2]; {ends[0]:g} is not below {ends[1]:g}"
            )
        return ends


class NpzData(FileData):
    """Arrays from a NumPy .npz file: x and y, or x_train, y_train, x_test and y_test, each indexed by example first."""

    examples = ("labels", "values")
    name: Literal["npz"] = Field("npz", description=SELECTS)
    path: ReadFile = Field(description="The .npz file, relative to here or to train.yaml; or gs://..., s3://...")
    validation: Fraction = Field(
        0.1, description="Share, drawn at random, kept for validation if the file has no x_test and y_test."
    )
    classes: Classes | None = Field(
        None, description="Number of classes, if y is a label; without it the highest label + 1."
    )


class ParquetData(FileData):
    """Parquet files, read into memory with pyarrow (podrun[records]): one example per row."""

    examples = ("labels", "values")
    name: Literal["parquet"] = Field("parquet", description=SELECTS)
    path: Records
    x: str | Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        "x", description="Column of the inputs: numbers, or lists of equal length; or several columns of numbers."
    )
    y: str = Field("y", description="Column of the targets.")
    validation: Fraction = Field(0.1, description="Share of the rows, drawn at random, kept for validation.")
    classes: Classes | None = Field(
        None, description="Number of classes, if y is a label; without it the highest label + 1."
    )


class ArrayRecordData(FileData):
    """ArrayRecord files, read on demand with grain (podrun[records]): each record is an .npz archive of one example."""

    examples = ("labels", "values")
    name: Literal["array_record"] = Field("array_record", description=SELECTS)
    path: Records
    x: str = Field("x", description="Name of the inputs in a record.")
    y: str = Field("y", description="Name of the targets in a record.")
    validation: Fraction = Field(0.1, description="Share of the records, from their end, kept for validation.")
    classes: Classes | None = Field(
        None,
        description="Number of classes, if y is a label; without it all records are read once to find the highest label.",
    )


Data = Annotated[
    TextData
    | PythonSourceData
    | TokensData
    | PreparedData
    | MixtureData
    | IdxData
    | DigitsData
    | MakeClassificationData
    | SineData
    | NpzData
    | ParquetData
    | ArrayRecordData
    | Plugin,
    Choice("python_source"),
    Named,
]

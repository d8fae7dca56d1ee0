"""Mix several sources by weights: the order of their examples, as a function of the position.

Positions are divided into blocks. In each block every source has a number of examples by its weight, rounded so that its
share from the beginning on is off by less than an example for each source; their order in the block is random. So the source
of an example, and how many of it came before, are computed without a look at earlier blocks.

Weights may change at a position. The examples of each source go on there where they were.
"""

from __future__ import annotations

import hashlib
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypedDict

import numpy as np

from ..config import Config
from ..config.data import MixtureData
from ..contract import UserError
from ..models import context_length
from .base import Batch, Dataset, Examples, Origin, PartlyTrained, Traceable
from .pipeline import ShuffledOrder
from .saved_tokenizer import saved_form

Array = np.ndarray[Any, Any]

_BLOCK = 1024
_KEPT = 64  # blocks of which the order is kept
_MARK = b"mixture:"


class Stage(NamedTuple):
    """Weights from a position on."""

    start: int
    """The position: examples of all sources that came before."""
    weights: dict[str, float]
    """The weight of each source; they need not add up to 1."""

    def saved(self) -> SavedStage:
        """Return the stage as a checkpoint has it."""
        return {"start": self.start, "weights": self.weights}


def planned_stages(config: Config) -> tuple[Stage, ...]:
    """Return the stages that the job plans; empty if its data is not a mixture."""
    if not isinstance(config.data, MixtureData):
        return ()
    batch = config.batch_size
    assert batch != "all"  # `Config` refuses it for tokens
    return tuple(Stage(steps * batch, weights) for steps, weights in config.data.weights_by_step())


def history(past: Sequence[Stage], planned: Sequence[Stage], position: int) -> tuple[Stage, ...]:
    """Return the stages of a resumed job: the past ones up to `position`, and the ones planned now after it."""
    before = [stage for stage in past if stage.start < position]
    now = [stage for stage in planned if stage.start <= position][-1]
    if not before:
        return tuple(planned)
    if before[-1].weights != now.weights:
        before.append(Stage(position, now.weights))
    return (*before, *(stage for stage in planned if stage.start > position))


@dataclass(frozen=True)
class _Quotas:
    """Numbers of examples of each source within a stage."""

    shares: Array
    """float64[sources]; they add up to 1."""
    block: int
    """Positions of a block."""

    def before(self, blocks: int) -> Array:
        """Return how many examples of each source are in the first `blocks` blocks of the stage, int64[sources]."""
        counts = np.floor(self.shares * (blocks * self.block)).astype(np.int64)
        # What rounding leaves goes to the largest share, which has enough in each block not to become fewer.
        counts[int(self.shares.argmax())] += blocks * self.block - counts.sum()
        return counts


class SavedStage(TypedDict):
    """A stage as a checkpoint has it."""

    start: int
    weights: dict[str, float]


def check_saved(saved: Any) -> None:
    """Raise ValueError, KeyError or TypeError unless `saved` is a valid list of `SavedStage`."""
    starts = [stage["start"] for stage in saved]
    if (
        not starts
        or starts[0] != 0
        or not all(isinstance(start, int) for start in starts)
        or starts != sorted(starts)  # of two at the same place the later one counts
    ):
        raise ValueError("the stages of the mixture are not in order")
    for stage in saved:
        weights = stage["weights"]
        if not isinstance(weights, dict):
            raise TypeError("the weights of the mixture are no mapping")
        if not all(isinstance(weight, int | float) and 0 <= weight < float("inf") for weight in weights.values()):
            raise ValueError("a weight of the mixture is not a number")
        if not sum(weights.values()) > 0:
            raise ValueError("the weights of the mixture are all 0")


class MixtureOrder:
    """The order of a mixture. Indices count the examples of all sources, one source after another.

    Args:
        sizes: number of examples of each source.
        stages: the weights, by position; the first stage begins at 0.
        seed: seed of the order.
    """

    def __init__(self, sizes: Mapping[str, int], stages: Sequence[Stage], seed: int) -> None:
        self._names = sorted(sizes)
        self._sizes = np.array([sizes[name] for name in self._names], np.int64)
        self._offsets = np.cumsum(self._sizes) - self._sizes
        # By name, so that another source does not change the order of these.
        self._orders = [ShuffledOrder(sizes[name], _seed_of(name, seed)) for name in self._names]
        self._seed = seed
        self._stages = tuple(stages)
        self._starts = np.array([stage.start for stage in stages], np.int64)
        self._quotas = [_quotas(self._names, stage.weights) for stage in stages]
        self._done = [np.zeros(len(self._names), np.int64)]
        """Examples of each source before each stage."""
        for stage, after in zip(range(len(stages) - 1), stages[1:], strict=True):
            within = self._within(stage, after.start - self._stages[stage].start)
            self._done.append(self._done[stage] + within)
        self._block = lru_cache(_KEPT)(self._ordered_block)

    def examples(self, positions: Array) -> tuple[Array, Array]:
        """Return (indices, epochs), int64[B] each, of the examples at `positions`, int64[B]."""
        sources, numbers = self._numbers(positions)
        indices, epochs = np.empty_like(positions), np.empty_like(positions)
        for source, order in enumerate(self._orders):
            here = sources == source
            if here.any():
                places, epochs[here] = order.examples(numbers[here])
                indices[here] = self._offsets[source] + places
        return indices, epochs

    def run(self, start: int, count: int) -> tuple[Array, Array]:
        """Return `examples` at the `count` positions from `start` on."""
        return self.examples(np.arange(start, start + count))

    def epochs_before(self, position: int) -> dict[str, float]:
        """Return how often each source was passed through before a position."""
        stage = self._stage_of(max(0, position - 1))
        done = self._done[stage] + self._within(stage, position - self._stages[stage].start)
        return {name: float(done[i] / self._sizes[i]) for i, name in enumerate(self._names)}

    def _numbers(self, positions: Array) -> tuple[Array, Array]:
        """Return the source at each position, and how many examples of that source come before: int64[B] each."""
        sources, numbers = np.empty_like(positions), np.empty_like(positions)
        stages = np.searchsorted(self._starts, positions, "right") - 1
        for stage in np.unique(stages).tolist():
            quotas, here = self._quotas[stage], stages == stage
            blocks, places = np.divmod(positions[here] - self._stages[stage].start, quotas.block)
            of_stage, before = np.empty_like(blocks), np.empty_like(blocks)
            for block in np.unique(blocks).tolist():
                in_block = blocks == block
                at, counted = self._block(stage, block)
                of_stage[in_block] = at[places[in_block]]
                before[in_block] = counted[places[in_block]]
            sources[here], numbers[here] = of_stage, before
        return sources, numbers

    def _ordered_block(self, stage: int, block: int) -> tuple[Array, Array]:
        """Return, for each position in a block, its source and how many examples of that source came before in the job."""
        quotas = self._quotas[stage]
        before = quotas.before(block)
        sources = np.repeat(np.arange(len(self._names)), quotas.before(block + 1) - before)
        np.random.default_rng((self._seed, 2, self._stages[stage].start, block)).shuffle(sources)
        numbers = np.empty_like(sources)
        for source in range(len(self._names)):
            here = sources == source
            numbers[here] = self._done[stage][source] + before[source] + np.arange(here.sum())
        return sources, numbers

    def _within(self, stage: int, count: int) -> Array:
        """Return how many of the first `count` examples of a stage are of each source, int64[sources]."""
        quotas = self._quotas[stage]
        block, rest = divmod(count, quotas.block)
        sources = self._ordered_block(stage, block)[0][:rest]
        return quotas.before(block) + np.bincount(sources, minlength=len(self._names))

    def _stage_of(self, position: int) -> int:
        return int(np.searchsorted(self._starts, position, "right")) - 1


def _quotas(names: Sequence[str], weights: Mapping[str, float]) -> _Quotas:
    """Return the quotas of a stage, which do not depend on sources that were added after it."""
    shares = np.array([weights.get(name, 0.0) for name in names], np.float64)
    return _Quotas(shares / math.fsum(weights.values()), max(_BLOCK, len(weights) ** 2))


def _seed_of(name: str, seed: int) -> int:
    return seed << 32 | zlib.crc32(name.encode())


def mixture_dataset(section: MixtureData, config: Config) -> Dataset:
    """Return the data of several sources. Raises UserError if one cannot be read, or they do not fit together."""
    from . import load_source

    parts: dict[str, Dataset] = {}
    for name in sorted(section.sources):
        source = section.sources[name]
        try:
            parts[name] = load_source(config.model_copy(update={"data": source, "validation": {}}))
        except UserError as error:
            raise UserError(f"data.sources.{name}: {error}") from None
    _check_tokens_alike(parts)
    train, validation = ([getattr(part, split) for part in parts.values()] for split in ("train", "validation"))
    context = context_length(config)
    return Dataset(
        joined(train, context),
        joined(validation, context),
        fingerprint=fingerprint_of({name: part.fingerprint for name, part in parts.items()}),
        vocabulary=max(part.vocabulary for part in parts.values()),
        tokenizer=next((part.tokenizer for part in parts.values() if part.tokenizer is not None), None),
        end_of_text=next((part.end_of_text for part in parts.values() if part.end_of_text is not None), None),
        note="\n".join(f"{name}: {part.note}" for name, part in parts.items() if part.note),
        has_segments=any(part.has_segments for part in parts.values()),
        sources=dict(zip(parts, train, strict=True)),
        validations=dict(zip(parts, validation, strict=True)),
    )


def _check_tokens_alike(parts: Mapping[str, Dataset]) -> None:
    """Raise UserError if the same id means different tokens in two sources."""
    known = {name: saved_form(part.tokenizer) for name, part in parts.items() if part.tokenizer is not None}
    first = next(iter(known), None)
    for name in known:
        if first is not None and known[name] != known[first]:
            raise UserError(
                f"data.sources: {name} and {first} have different tokenizers, so that their ids mean different tokens; make "
                "both with the same one (char makes another one for each text: take byte or bpe with a file)"
            )


def fingerprint_of(sources: Mapping[str, bytes]) -> bytes:
    """Return the digest of a mixture: for each source a digest of its name, and one of its data."""
    digests = [
        hashlib.blake2b(part, digest_size=16).digest()
        for name in sorted(sources)
        for part in (name.encode(), sources[name])
    ]
    return _MARK + b"".join(digests)


def missing_sources(before: bytes, now: bytes) -> bool | None:
    """Return whether the data lacks a source that it had before, or has changed it; None if either is no mixture.

    Args:
        before: digest of the earlier data.
        now: digest of the present data, which may have further sources.
    """
    if not (before.startswith(_MARK) and now.startswith(_MARK)):
        return None
    pairs = [{data[at : at + 32] for at in range(len(_MARK), len(data), 32)} for data in (before, now)]
    return not pairs[0] <= pairs[1]


def joined(parts: Sequence[Examples], context: int) -> Joined:
    """Return the examples of several sources as one set."""
    partly = any(isinstance(part, PartlyTrained) for part in parts)
    return JoinedPartly(parts, context) if partly else Joined(parts)


class Joined:
    """The examples of several sources, one source after another, as one set."""

    def __init__(self, parts: Sequence[Examples]) -> None:
        self._parts = tuple(parts)
        self._ends = np.cumsum([part.size for part in parts])
        self.size = int(self._ends[-1])

    def gather(self, indices: Array, epochs: Array) -> Batch:
        """Return the batch. Examples without `segments` or `weights` get them if others in the set have them."""
        batch: Batch = {}
        for number, here in self._by_part(indices):
            part = self._parts[number].gather(indices[here] - self._first(number), epochs[here])
            for name, value in part.items():
                if name not in batch:
                    batch[name] = np.ones((len(indices), *value.shape[1:]), value.dtype)
                batch[name][here] = value
        return batch

    def origins(self, index: int, epoch: int) -> list[Origin]:
        """Return the origins of an example's tokens."""
        number = int(np.searchsorted(self._ends, index, "right"))
        part = self._parts[number]
        return part.origins(index - self._first(number), epoch) if isinstance(part, Traceable) else []

    def _by_part(self, indices: Array) -> list[tuple[int, Array]]:
        """Return, for each source that has some of the examples, its number and a mask of these examples, bool[B]."""
        numbers = np.searchsorted(self._ends, indices, "right")
        return [(number, numbers == number) for number in np.unique(numbers).tolist()]

    def _first(self, number: int) -> int:
        return int(self._ends[number - 1]) if number else 0


class JoinedPartly(Joined):
    """The examples of several sources, of which some have tokens that are not trained."""

    def __init__(self, parts: Sequence[Examples], context: int) -> None:
        super().__init__(parts)
        self._context = context

    def gather(self, indices: Array, epochs: Array) -> Batch:
        """Return the batch, always with `segments` and `weights`."""
        shape = (len(indices), self._context)
        missing = {"segments": np.ones(shape, np.int32), "weights": np.ones(shape, np.float32)}
        return {**missing, **super().gather(indices, epochs)}

    def trained(self, indices: Array, epochs: Array) -> int:
        """Return the number of trained tokens of these examples."""
        total = 0
        for number, here in self._by_part(indices):
            part = self._parts[number]
            places = indices[here] - self._first(number)
            if isinstance(part, PartlyTrained):
                total += part.trained(places, epochs[here])
            else:
                total += len(places) * self._context
        return total

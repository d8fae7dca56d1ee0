"""The batches that training goes on with, sharded over the devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .checkpoint.messages import gather_texts
from .config import Config
from .contract import UserError
from .data.base import Examples
from .data.pipeline import Constant, Prefetcher, TrainBatches, full_batch
from .data.streamed import Share, Streamed, StreamReader, states_by_part
from .job_counts import JobCounts
from .parallel.base import Strategy
from .state import Batch


@dataclass(frozen=True)
class TrainFeed:
    """This process's part of the batches from one position on."""

    batches: Prefetcher[Batch] | Constant[Batch]
    stream: StreamReader | None = None
    """The iterator that they come from, if the data is read by iterators."""
    part: int = 0
    """Which part of each batch it reads."""
    where: str = ""
    """The data source, for errors."""

    def streams_at(self, position: int) -> list[str] | None:
        """Return the state of each part's iterator at a position, if there are any. Called on all processes."""
        if self.stream is None:
            return None
        each = gather_texts(f"{self.part} {self.stream.state_at(position)}".encode())
        split = [text.decode().partition(" ") for text in each]
        return states_by_part([(int(number), state) for number, _, state in split], self.where)


def open_feed(
    config: Config,
    examples: Examples,
    strategy: Strategy,
    counts: JobCounts,
    states: list[str] | None,
    note: Callable[[str], None],
) -> TrainFeed:
    """Return the batches from the position of `counts` on.

    Args:
        config: the job.
        examples: the training set.
        strategy: divides a batch over the processes and devices.
        counts: how far the job is.
        states: the iterators' states in the restored checkpoint, if the data is read by iterators.
        note: gets a sentence for the user.

    Raises:
        UserError: the data's iterators cannot go on from the checkpoint, or cannot be divided so.
    """
    parts = strategy.shares * config.accumulate
    if isinstance(examples, Streamed):
        return _streamed(config, examples, strategy, counts, states, note)
    if config.batch_size == "all":
        return TrainFeed(Constant(strategy.shard(full_batch(examples, parts, *strategy.data_shard))))
    batches = TrainBatches(examples, counts.order.order(), counts.consumed, *strategy.data_shard, parts)
    return TrainFeed(Prefetcher(lambda at: strategy.shard(batches.at(at)), counts.position, counts.consumed))


def _streamed(
    config: Config,
    streamed: Streamed,
    strategy: Strategy,
    counts: JobCounts,
    states: list[str] | None,
    note: Callable[[str], None],
) -> TrainFeed:
    """Return the batches of this process's iterator, from its state in the checkpoint on."""
    where, consumed, parts = f"data.name {config.data.name}", counts.consumed, strategy.shares * config.accumulate
    part, num_parts = strategy.data_shard
    if consumed % parts:
        raise UserError(
            f"batch_size {consumed} is no multiple of {parts}, the parts into which this pod divides it, and batches of "
            "an iterator are not padded; give a batch_size that is"
        )
    share = Share(part, num_parts, consumed // num_parts, config.seed)
    if counts.step and states is None:
        raise UserError(f"{where}: the checkpoint has no state of its iterator: it was made with other data")
    reader = StreamReader(streamed, share, where, counts.position, states)
    before = num_parts if states is None else len(states)
    if before != num_parts:
        note(f"{where}: `regroup` has turned the states of {before} iterators into states of {num_parts}")
    batches = Prefetcher(lambda at: strategy.shard(reader.read(at, at + consumed)), counts.position, consumed)
    return TrainFeed(batches, reader, part, where)

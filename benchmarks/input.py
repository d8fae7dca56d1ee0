"""Measure podrun's input pipeline: batches/s against bare NumPy, and against grain's DataLoader on the same records.

    python benchmarks/input.py [--rounds 9] [--batch 128]

Arrays: the pipeline (shuffled order, part of this process, gathered batch) against `x[indices], y[indices]` with indices that
are there already. Images are bytes in podrun's memory and float32 in NumPy's. Records: ArrayRecord files of .npz archives,
decoded by the same `numpy.load`, against grain's DataLoader with its shuffling sampler and its batches, in this process (with
16 threads that read) and with two worker processes. Each pipeline is also read through the Prefetcher, as in training. Malloc
keeps its memory, as in podrun's workers on CPU.

All take turns, block by block. Printed: batches/s of each (medians), and the median over rounds of the ratio to the first.
"""

from __future__ import annotations

import argparse
import io
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from setting import print_setting

from podrun.runtime.config import Config
from podrun.runtime.config.data import ArrayRecordData
from podrun.runtime.data.arrays import array_dataset
from podrun.runtime.data.base import Examples
from podrun.runtime.data.pipeline import Prefetcher, ShuffledOrder, TrainBatches
from podrun.runtime.data.records import array_record_dataset

EXAMPLES = 50000
RECORDS = 5000

Reader = Callable[[int], None]
"""Read so many batches and discard them."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batch", type=int, default=128)
    arguments = parser.parse_args()
    print_setting()
    print(f"{'examples':<24}{'read by':<28}{'batches/s':>11}{'ratio':>8}")
    noise = np.random.default_rng(0)
    labels = noise.integers(0, 10, EXAMPLES).astype(np.int32)
    vectors = noise.normal(size=(EXAMPLES, 784)).astype(np.float32)
    show("784 float32", array_readers(vectors, labels, None, arguments.batch), 300, arguments.rounds)
    images = noise.integers(0, 256, (EXAMPLES, 28, 28, 1)).astype(np.uint8)
    show("28x28 images", array_readers(images, labels, 1 / 255, arguments.batch), 300, arguments.rounds)
    with tempfile.TemporaryDirectory() as folder:
        path = write_records(Path(folder, "records.array_record"), vectors[:RECORDS], labels[:RECORDS])
        show("records of 784 float32", record_readers(path, arguments.batch), 20, arguments.rounds)


def show(name: str, readers: dict[str, Reader], batches: int, rounds: int) -> None:
    for read in readers.values():  # opens files, starts workers
        read(batches)
    rates: dict[str, list[float]] = {reader: [] for reader in readers}
    for _ in range(rounds):
        for reader, read in readers.items():
            start = time.perf_counter()
            read(batches)
            rates[reader].append(batches / (time.perf_counter() - start))
    first = next(iter(rates.values()))
    for reader, values in rates.items():
        ratio = statistics.median(value / base for value, base in zip(values, first, strict=True))
        print(f"{name:<24}{reader:<28}{statistics.median(values):>11.1f}{ratio:>8.2f}", flush=True)


# --- readers --------------------------------------------------------------------------------------------------------


def array_readers(x: np.ndarray, y: np.ndarray, scale: float | None, batch: int) -> dict[str, Reader]:
    examples = array_dataset((x, y), (x, y), classes=10, scale=scale).train
    return {"NumPy": from_iterator(bare_numpy(x if scale is None else x * np.float32(scale), y, batch))} | pipeline(
        examples, batch
    )


def bare_numpy(x: np.ndarray, y: np.ndarray, batch: int) -> Iterator[Any]:
    order = np.random.default_rng(0).permutation(len(x))
    while True:
        for start in range(0, len(x) - batch + 1, batch):
            indices = order[start : start + batch]
            yield x[indices], y[indices]


def pipeline(examples: Examples, batch: int) -> dict[str, Reader]:
    """Return podrun's pipeline for one process: in the reader's thread, and in a thread of its own."""
    batches = TrainBatches(examples, ShuffledOrder(examples.size, 0), batch, 0, 1)
    positions = iter(range(0, 1 << 60, batch))
    prefetcher = Prefetcher(batches.at, 0, batch)
    return {
        "podrun": from_iterator(batches.at(position) for position in positions),
        "podrun, Prefetcher": from_iterator(prefetched(prefetcher)),
    }


def prefetched(prefetcher: Prefetcher[Any]) -> Iterator[Any]:
    while True:
        yield prefetcher.get()
        prefetcher.refill()


def record_readers(path: Path, batch: int) -> dict[str, Reader]:
    section = ArrayRecordData(path=str(path), classes=10, validation=0.0002)
    job = Config(task="classification", data=section, steps=1, batch_size=batch)
    return {
        "grain DataLoader": from_iterator(grain_loader(path, batch, 0)),
        "grain DataLoader, 2 workers": from_iterator(grain_loader(path, batch, 2)),
    } | pipeline(array_record_dataset(section, job).train, batch)


def grain_loader(path: Path, batch: int, workers: int) -> Iterator[Any]:
    source = grain.sources.ArrayRecordDataSource(str(path))
    sampler = grain.samplers.IndexSampler(len(source), shuffle=True, seed=0)
    operations = [Decode(), grain.transforms.Batch(batch, drop_remainder=True)]
    return iter(grain.DataLoader(data_source=source, sampler=sampler, operations=operations, worker_count=workers))


class Decode(grain.transforms.Map):
    """Return the arrays of a record, decoded as podrun does."""

    def map(self, record: bytes) -> dict[str, np.ndarray]:
        with np.load(io.BytesIO(record)) as archive:
            return {"x": archive["x"], "y": archive["y"]}


def from_iterator(batches: Iterator[Any]) -> Reader:
    def read(count: int) -> None:
        for _ in range(count):
            next(batches)

    return read


def write_records(path: Path, x: np.ndarray, y: np.ndarray) -> Path:
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for inputs, label in zip(x, y, strict=True):
        file = io.BytesIO()
        np.savez(file, x=inputs, y=label)
        writer.write(file.getvalue())
    writer.close()
    return path


if __name__ == "__main__":
    if "MALLOC_TRIM_THRESHOLD_" not in os.environ:  # malloc reads it when a process starts
        keep = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 32)}
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **keep})
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # grain's workers ask for a flag
    main()

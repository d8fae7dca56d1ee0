"""Measure batches of prepared documents against NumPy on the same memory-mapped tokens.

    python benchmarks/packing.py [--rounds 9] [--documents 200000]

Documents of mixed lengths (log-normal, 400 tokens in the middle) are packed into rows of 1,025 tokens, and read in
random order in batches of 64: `packing: fit`, `packing: concat`, a mixture of both, and, as the reference, NumPy slices
of as many tokens at random places of the file, copied to int32. Printed: seconds to pack a million documents, padding,
tokens/s of each (medians), and the median over rounds of the ratio to NumPy; and the time of the first batch at
position 10^9, in a fresh order.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from setting import print_setting

from podrun.runtime.data.mixture import JoinedPartly, MixtureOrder, Stage
from podrun.runtime.data.packing import PackedRows, pack
from podrun.runtime.data.pipeline import ShuffledOrder, TrainBatches
from podrun.runtime.data.windows import Source, TrainWindows

CONTEXT, BATCH, STEPS = 1024, 64, 30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--documents", type=int, default=200_000)
    arguments = parser.parse_args()
    print_setting()
    chance = np.random.default_rng(0)
    sizes = np.clip(chance.lognormal(6, 1, arguments.documents), 2, 20_000).astype(np.int64)
    ends = np.cumsum(sizes)
    begun = time.perf_counter()
    rows = pack(ends, CONTEXT + 1)
    seconds = (time.perf_counter() - begun) * 1e6 / len(ends)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tokens")
        chance.integers(0, 50_000, int(ends[-1]), np.uint16).tofile(file)
        tokens = np.memmap(file, np.uint16, "r").view(np.ndarray)
        source = Source("tokens", 50_257)
        fit, concat = PackedRows(tokens, rows, CONTEXT, source), TrainWindows(tokens, CONTEXT, 0, source)
        print(f"packed in {seconds:.1f} s for a million documents, {fit.padding:.2%} padding")
        both = JoinedPartly([concat, fit], CONTEXT)
        mixed = MixtureOrder({"concat": concat.size, "fit": fit.size}, [Stage(0, {"concat": 1, "fit": 1})], 0)
        readers = {
            "NumPy": lambda step: numpy_batch(tokens, step),
            "packing: concat": TrainBatches(concat, ShuffledOrder(concat.size, 0), BATCH, 0, 1).at,
            "packing: fit": TrainBatches(fit, ShuffledOrder(fit.size, 0), BATCH, 0, 1).at,
            "mixture": TrainBatches(both, mixed, BATCH, 0, 1).at,
        }
        show(readers, arguments.rounds)
        begun = time.perf_counter()
        stages = [Stage(0, {"concat": 1, "fit": 1}), Stage(5 * 10**8, {"concat": 1, "fit": 3})]
        fresh = MixtureOrder({"concat": concat.size, "fit": fit.size}, stages, 0)
        TrainBatches(both, fresh, BATCH, 0, 1).at(10**9)
        print(f"first batch at position 10^9: {(time.perf_counter() - begun) * 1e3:.0f} ms")


def numpy_batch(tokens: Any, step: int) -> np.ndarray[Any, Any]:
    places = np.random.default_rng(step).integers(0, len(tokens) - CONTEXT - 1, BATCH)
    return np.stack([tokens[place : place + CONTEXT + 1] for place in places]).astype(np.int32)


def show(readers: dict[str, Callable[[int], Any]], rounds: int) -> None:
    """Read by each in turns, and print the medians."""
    speeds: dict[str, list[float]] = {name: [] for name in readers}
    for turn in range(rounds + 1):  # the first warms up
        for name, read in readers.items():
            begun = time.perf_counter()
            for step in range(STEPS):
                read((turn * STEPS + step) * BATCH)
            if turn:
                speeds[name].append(STEPS * BATCH * CONTEXT / (time.perf_counter() - begun))
    print(f"{'read by':<24}{'tokens/s':>14}{'ratio':>8}")
    for name, each in speeds.items():
        ratio = statistics.median(a / b for a, b in zip(each, speeds["NumPy"], strict=True))
        print(f"{name:<24}{statistics.median(each):>14,.0f}{ratio:>8.2f}")


if __name__ == "__main__":
    main()

"""Measure what a save of podrun's costs the training that goes on beside it.

    python benchmarks/checkpoint_beside.py [--rounds 3] [--folder DIR]   # GPT-2 124M: how long a save blocks, in steps
    python benchmarks/checkpoint_beside.py --manifest                    # steps while a thread computes digests, and alone
    python benchmarks/checkpoint_beside.py [...] --layers 1 --width 64 --megabytes 10    # with less

On CPU a state is written before training goes on (runtime/checkpoint/save.py), so a save blocks longer there.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from checkpoint import peak, reset_peak
from setting import print_setting

GPT2 = {"name": "gpt2", "layers": 12, "heads": 12, "width": 768, "context": 1024}
SMALL = {"model": {"name": "gpt2", "layers": 2, "heads": 2, "width": 64, "context": 64}, "batch_size": 8}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, help="where checkpoints are written; by default in that for temporary files"
    )
    parser.add_argument("--manifest", action="store_true")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--megabytes", type=int, default=1000, help="size of the file for --manifest")
    arguments = parser.parse_args()
    print_setting()
    if arguments.manifest:
        print_manifest(arguments.rounds, arguments.megabytes)
    else:
        model = {**GPT2, "layers": arguments.layers, "width": arguments.width, "heads": max(1, arguments.width // 64)}
        print_steps(model, arguments.rounds, arguments.folder)


def trainer_of(config: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Return a strategy on one device, its state, and a batch."""
    import numpy as np

    from podrun.runtime.config import Config
    from podrun.runtime.data import load_dataset
    from podrun.runtime.optim import make_optimizer
    from podrun.runtime.parallel import make_strategy
    from podrun.runtime.tasks import make_task

    job = Config.model_validate({"steps": 100, "data": "python_source", "parallel": "single", **config})
    data = load_dataset(job)
    one = make_strategy(job, make_task(job, data), *make_optimizer(job, 100))
    size = int(job.batch_size)
    batch = one.shard(data.train.gather(np.arange(size), np.zeros(size, np.int64)))
    return one, one.init(), batch


def print_steps(model: dict[str, Any], rounds: int, folder: Path | None) -> None:
    """Print the seconds of a step of a GPT-2, and for how long a save of its state blocks."""
    from podrun.runtime.checkpoint.store import Checkpoints
    from podrun.runtime.config import Checkpoint, Config

    one, state, batch = trainer_of({"model": model, "batch_size": 1})
    config = Config.model_validate({"task": "regression", "steps": 1, "batch_size": 1})
    steps: list[float] = []
    blocking: list[float] = []
    with tempfile.TemporaryDirectory(dir=folder) as path:
        checkpoints = Checkpoints(Path(path, "checkpoints"), Checkpoint(keep=1))
        for number in range(rounds + 1):
            for _ in range(2):  # the first one after a save may wait for its digests
                began = time.perf_counter()
                state, metrics = one.step(state, batch)
                metrics.read()
                steps.append(time.perf_counter() - began)
            before, began = reset_peak(), time.perf_counter()
            checkpoints.save(number + 1, one.savable(state), 0, config, b"", None)
            blocking.append(time.perf_counter() - began)
            checkpoints.completed(wait=True)
            more = peak() - before
            print(f"step {steps[-1]:.2f} s, save blocks {blocking[-1]:.2f} s, memory +{more / 1e6:.0f} MB", flush=True)
    shown = statistics.median(b / s for b, s in zip(blocking[1:], steps[3::2], strict=True))
    size = f"{model['layers']} layers of width {model['width']}"
    print(f"a save of a GPT-2 with {size} blocks {shown:.2f} of a step (1 example of 1024 tokens)")


def print_manifest(rounds: int, megabytes: int) -> None:
    """Print how much slower steps are while digests of a file are computed."""
    from podrun.runtime.checkpoint.manifest import digest

    one, state, batch = trainer_of(SMALL)
    blocks: dict[bool, list[float]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "data")
        file.write_bytes(os.urandom(10**6) * megabytes)
        for number in range(2 * rounds + 1):
            beside = number % 2 == 1
            thread = threading.Thread(target=digest, args=(file,))
            if beside:
                thread.start()
            seconds = []
            began = time.perf_counter()
            while thread.is_alive() if beside else time.perf_counter() - began < 1:
                at = time.perf_counter()
                state, metrics = one.step(state, batch)
                metrics.read()
                seconds.append(time.perf_counter() - at)
            if number:  # the first block compiles
                blocks[beside].append(statistics.median(seconds))
            if beside:
                print(f"digests of {megabytes} MB: {time.perf_counter() - began:.2f} s")
    slower = statistics.median(a / b for a, b in zip(blocks[True], blocks[False], strict=True))
    print(f"a step takes {slower:.2f} times as long meanwhile")


if __name__ == "__main__":
    main()

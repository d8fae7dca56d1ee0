"""Measure what `launch.verify_every` costs: steps with a comparison of the devices, in turns with steps without.

    python benchmarks/verification.py [--rounds 12] [--steps 10] [--devices 4] [--strategy pmap] [--width 128] [--batch 8]

Blocks of steps take turns: one with a comparison after its last step, one without. Printed: milliseconds of a step and
of a comparison, and the cost of a comparison every 100, 200 and 500 steps as a share of the run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from typing import Any

from setting import print_setting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10, help="steps per block")
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--strategy", default="pmap")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    arguments = parser.parse_args()
    print_setting()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_NUM_CPU_DEVICES"] = str(arguments.devices)
    plain, compared = measure(arguments)
    step = statistics.median(plain) / arguments.steps
    pairs = [other - one for one, other in zip(plain, compared, strict=True)]
    comparison = statistics.median(pairs)
    print(f"a step        {1e3 * step:8.2f} ms")
    print(f"a comparison  {1e3 * comparison:8.2f} ms, {comparison / step:.2f} of a step")
    for every in (100, 200, 500):
        print(f"verify_every={every}: {100 * comparison / (every * step):.2f} % of a run")


def measure(arguments: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Return the seconds of each block without and with a comparison."""
    import jax
    import numpy as np

    from podrun.runtime.config import Config
    from podrun.runtime.data import load_dataset
    from podrun.runtime.optim import make_optimizer
    from podrun.runtime.parallel import make_strategy
    from podrun.runtime.tasks import make_task
    from podrun.runtime.verification import Verifier

    size = {"layers": arguments.layers, "heads": 4, "width": arguments.width, "context": 64}
    job: dict[str, Any] = {"model": {"name": "decoder", **size}, "batch_size": arguments.batch, "steps": 1000}
    config = Config.model_validate({**job, "data": "python_source", "parallel": arguments.strategy})
    data = load_dataset(config)
    task = make_task(config, data)
    strategy = make_strategy(config, task, *make_optimizer(config, 1000, task.stacked))
    state = strategy.init()
    batch = strategy.shard(data.train.gather(np.arange(arguments.batch), np.zeros(arguments.batch, int)))
    verifier = Verifier(config, task, strategy, "here")
    times: dict[bool, list[float]] = {False: [], True: []}
    for number in range(2 * arguments.rounds + 2):
        compares = bool(number % 2)
        began = time.perf_counter()
        for _ in range(arguments.steps):
            state, metrics = strategy.step(state, batch)
            metrics.read()
        if compares:
            verifier.check(state, batch, number)
        jax.block_until_ready(state)
        if number > 1:  # the first two compile
            times[compares].append(time.perf_counter() - began)
    return times[False], times[True]


if __name__ == "__main__":
    main()

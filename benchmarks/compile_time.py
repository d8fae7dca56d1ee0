"""Measure how long each parallelism strategy takes to compile: its step and its initial state, against a plain step.

    python benchmarks/compile_time.py [--parameters 12,300] [--strategies pmap,jit,fsdp,...] [--devices 4] [--rounds 3]

The model has many small parameters, for a compiler takes its time by their number: layers of a matrix and a bias. *Plain* is
`jax.jit` of loss, gradient and optimizer for the same model, with the batch divided over the same devices, or on one for
`single`. Every figure is from a process of its own, in turns, without any cache of compiled programs. Printed: CPU seconds
from the call to the first result, tracing and optimizing and all threads included, and as ratios to the plain step: medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from typing import Any

from setting import print_setting

WIDTH = 16
PLAIN = "plain"


def main() -> None:
    from strategies import WAYS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", default="12,300")
    parser.add_argument("--strategies", default=",".join(WAYS))
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print_setting()
    print(
        f"{'parameters':<12}{'parallel':<11}{'step, s':>9}{'plain':>8}{'ratio':>8}   {'state, s':>9}{'ratio':>8}",
        flush=True,
    )
    for parameters in map(int, arguments.parameters.split(",")):
        ways = {way: 1 if way == "single" else arguments.devices for way in arguments.strategies.split(",")}
        cases = [*ways.items(), *((PLAIN, devices) for devices in sorted({*ways.values()}))]
        rounds = [{case: measure(*case, parameters) for case in cases} for _ in range(arguments.rounds)]
        for way, devices in ways.items():
            step, state, plain = (
                statistics.median(times[case][name] for times in rounds)
                for case, name in (((way, devices), "step"), ((way, devices), "state"), ((PLAIN, devices), "step"))
            )
            columns = f"{step:>9.2f}{plain:>8.2f}{step / plain:>8.2f}   {state:>9.2f}{state / plain:>8.2f}"
            print(f"{parameters:<12}{way:<11}{columns}", flush=True)


def measure(way: str, devices: int, parameters: int) -> dict[str, float]:
    """Return the CPU seconds of the step and, but for the plain one, of the initial state."""
    settings = {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "NPROC": str(devices),
    }
    command = [sys.executable, __file__, "worker", way, str(parameters)]
    done = subprocess.run(command, env={**os.environ, **settings}, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{way} with {parameters} parameters failed; see its messages above")
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


# --- the measured process -------------------------------------------------------------------------------------------


def worker(way: str, parameters: int) -> None:
    from strategies import WAYS

    from podrun.runtime.config import Config
    from podrun.runtime.data import load_dataset

    job = {
        "task": "classification",
        "model": {"name": "compile_time:Deep", "options": {"parameters": parameters}},
        "data": {"name": "make_classification", "samples": 100},
        "optimizer": {"name": "adam"},
        "batch_size": 16,
        "steps": 10,
    }
    config = Config.model_validate(job if way == PLAIN else {**job, "parallel": WAYS[way]})
    data = load_dataset(config)
    print(json.dumps(plain(config, data) if way == PLAIN else podrun(config, data)))


class Deep:
    """A network of layers with `options["parameters"]` arrays, half of them matrices and half biases."""

    def __init__(self, options: Any, outputs: int, dtype: Any) -> None:
        self._layers = options["parameters"] // 2
        self._outputs = outputs

    def init(self, key: Any, x: Any) -> Any:
        import jax
        import jax.numpy as jnp

        widths = [x.shape[-1], *[WIDTH] * (self._layers - 1), self._outputs]
        normal = jax.nn.initializers.lecun_normal()
        return {
            f"layer{number}": {"w": normal(jax.random.fold_in(key, number), shape), "b": jnp.zeros(shape[1])}
            for number, shape in enumerate(pairwise(widths))
        }

    def apply(self, params: Any, x: Any) -> Any:
        import jax

        for number in range(self._layers):
            layer = params[f"layer{number}"]
            x = x @ layer["w"] + layer["b"]
            x = x if number == self._layers - 1 else jax.nn.relu(x)
        return x


def podrun(config: Any, data: Any) -> dict[str, float]:
    """Begin with the strategy, for it may trace the state when it is made."""
    import jax

    from podrun.runtime.data.pipeline import ShuffledOrder, TrainBatches
    from podrun.runtime.optim import make_optimizer
    from podrun.runtime.parallel import make_strategy
    from podrun.runtime.tasks import make_task

    task, optimizer = make_task(config, data), make_optimizer(config, config.total_steps(1))
    began = time.process_time()
    strategy = make_strategy(config, task, *optimizer)
    state = jax.block_until_ready(strategy.init())
    have_state = time.process_time()
    batch = strategy.shard(TrainBatches(data.train, ShuffledOrder(data.train.size, 0), config.batch_size, 0, 1).at(0))
    ready = time.process_time()
    _, metrics = strategy.step(state, batch)
    strategy.average(metrics).read()
    return {"state": have_state - began, "step": time.process_time() - ready}


def plain(config: Any, data: Any) -> dict[str, float]:
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from strategies import plain_step, with_optimizer

    from podrun.runtime.optim import make_optimizer

    model = Deep(config.model.options, data.outputs, jnp.float32)
    optimizer, _ = make_optimizer(config, config.total_steps(1))

    def loss(params: Any, batch: Any) -> Any:
        logits = model.apply(params, batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    mesh = Mesh(np.array(jax.devices()), ("data",))
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    params = model.init(jax.random.key(0), jnp.zeros((1, *data.shape)))
    state = jax.device_put(with_optimizer(params, optimizer), whole)
    batch = jax.device_put(
        data.train.gather(np.arange(config.batch_size), np.zeros(config.batch_size, np.int64)), split
    )
    began = time.process_time()
    jax.device_get(jax.jit(plain_step(loss, optimizer), donate_argnums=0)(state, batch)[1])
    return {"step": time.process_time() - began}


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2], int(sys.argv[3]))
    else:
        main()

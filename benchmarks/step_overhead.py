"""Measure what the runtime adds to a step: podrun's loop against pmap loops by hand of the same model, optimizer and data.

    python benchmarks/step_overhead.py [--rounds 12] [--steps 15] [--slice cpu-1x4,cpu-2x2] [--model small,medium]

In every process of a pod three loops take turns, block by block, so that all see the same machine:

    podrun      the runtime's own loop, with prefetch, metrics, events and the stop check
    one buffer  a plain pmap loop that averages gradients and loss as one vector
    per leaf    the textbook loop: `jax.lax.pmean(grads)`, a replicated state, one all-reduced buffer for each parameter

Printed: milliseconds per step of each, and the median over rounds of the ratio of steps/s (above 1: podrun is faster).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from setting import print_setting

SIZES = {
    "small": {"layers": 2, "heads": 2, "width": 64, "context": 64},
    "medium": {"layers": 4, "heads": 4, "width": 128, "context": 64},
}
QUIET: dict[str, Any] = {"log": {"every": 10}, "eval": {"every": 0}, "checkpoint": {"every": 0}}


# --- the launching side ---------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=15, help="steps per block")
    parser.add_argument("--slice", default="cpu-1x4,cpu-2x2")
    parser.add_argument("--model", default=",".join(SIZES))
    arguments = parser.parse_args()
    print_setting()
    print(
        f"{'slice':<9}{'model':<8}{'podrun':>9}{'one buffer':>12}{'per leaf':>10}   podrun vs one buffer   vs per leaf"
    )
    for slice_name in arguments.slice.split(","):
        for size in arguments.model.split(","):
            times = measure(slice_name, SIZES[size], arguments.rounds, arguments.steps)
            print(f"{slice_name:<9}{size:<8}{row(times)}", flush=True)


def row(times: dict[str, list[float]]) -> str:
    milliseconds = {name: statistics.median(values) * 1e3 for name, values in times.items()}
    ratios = [
        statistics.median(other / ours for ours, other in zip(times["podrun"], times[name], strict=True))
        for name in ("one buffer", "per leaf")
    ]
    columns = "".join(f"{milliseconds[n]:>{w}.1f}" for n, w in (("podrun", 9), ("one buffer", 12), ("per leaf", 10)))
    return f"{columns}{ratios[0]:>16.3f}{ratios[1]:>20.3f}"


def measure(slice_name: str, model: dict[str, int], rounds: int, steps: int) -> dict[str, list[float]]:
    """Return the seconds per step of each loop, by round."""
    job = {"steps": 1_000_000, "batch_size": 12, "model": model, **QUIET}
    times = run_pod(slice_name, job, [__file__, "worker", str(rounds), str(steps)])
    return {name: [wall for wall, _ in rounds] for name, rounds in times.items()}


def run_pod(slice_name: str, job: dict[str, Any], command: list[str]) -> Any:
    """Start a worker for each process of a simulated pod, as podrun would; return the JSON that the first one prints."""
    from podrun.launcher.inventory.simulated import simulated_pod
    from podrun.launcher.plan.plan import make_plan
    from podrun.launcher.plan.spec import RunSpec
    from podrun.launcher.pod.slices import parse_slice
    from podrun.runtime.config import Config

    config = Config.model_validate(job)
    with tempfile.TemporaryDirectory() as folder:
        pod = replace(simulated_pod(parse_slice(slice_name)), home=folder)
        plan = make_plan(RunSpec("benchmark", pod, config, Path(folder, "work"), Path.cwd()))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        workers = []
        for host in plan.hosts:
            directory = Path(host.spec["dir"])
            directory.mkdir(parents=True)
            for name, text in host.spec["files"].items():
                (directory / name).write_text(text)
            env = {**os.environ, **host.spec["processes"][0]["env"], "PODRUN_COORDINATOR": f"127.0.0.1:{port}"}
            workers.append(subprocess.Popen([sys.executable, *command], env=env, stdout=subprocess.PIPE, text=True))
        outputs = [worker.communicate(timeout=600)[0] for worker in workers]
        if any(worker.returncode for worker in workers):
            raise SystemExit("a worker failed; see its messages above")
    return json.loads(next(line for line in outputs[0].splitlines() if line.startswith("{")))


# --- the worker -----------------------------------------------------------------------------------------------------


def worker(rounds: int, steps: int) -> None:
    trainer, config, env = start_trainer()
    others = {
        "one buffer": hand_written(config, env, steps, one_buffer=True),
        "per leaf": hand_written(config, env, steps, one_buffer=False),
    }
    take_turns(trainer, others, rounds, steps, env)


def start_trainer() -> tuple[Any, Any, Any]:
    """Join the pod. Return the runtime's loop, the job, and the environment of this process."""
    from podrun.runtime.config import load_config
    from podrun.runtime.contract import Workdir, WorkerEnv
    from podrun.runtime.distributed import configure_jax, initialize
    from podrun.runtime.train import Trainer
    from podrun.runtime.worker.progress import Reporter

    env = WorkerEnv.from_env()
    config = load_config(env.config_path)
    workdir = Workdir(config.launch.workdir)
    configure_jax()
    if env.process_id == 0:
        workdir.path.mkdir()
        workdir.token(env.run_id, env.attempt).touch()
    initialize(env, 120)
    trainer = Trainer(config, env, workdir, Reporter(env.events_path))
    trainer.start()
    return trainer, config, env


def take_turns(trainer: Any, others: dict[str, Callable[[], None]], rounds: int, steps: int, env: Any) -> None:
    """Run podrun's loop and the others, a block of `steps` each in turn. Ends this process.

    Process 0 prints the seconds and its CPU seconds per step of each loop, by round.
    """
    import jax

    for loop in others.values():  # compile
        loop()
    turns = Turns(trainer, others, rounds, steps)
    trainer._feed = replace(trainer._feed, batches=turns)
    with contextlib.suppress(Over):
        trainer.run()
    if env.process_id == 0:
        print(json.dumps(turns.times), flush=True)
    trainer.close()
    jax.distributed.shutdown()
    os._exit(0)


class Over(Exception):
    """All rounds are done."""


class Turns:
    """Batches for the runtime's loop; between two blocks of its steps the other loops have their turn.

    So the loop is never left, and the work at its start and end is not counted.
    """

    def __init__(self, trainer: Any, others: dict[str, Callable[[], None]], rounds: int, steps: int) -> None:
        self.trainer, self.batches, self.others = trainer, trainer._feed.batches, others
        self.rounds, self.steps, self.taken = rounds, steps, -1  # the first block compiles
        self.times: dict[str, list[tuple[float, float]]] = {name: [] for name in ("podrun", *others)}

    def get(self, look: Callable[[], None]) -> Any:
        self.taken += 1
        if self.taken % self.steps == 0:
            self.change()
        return self.batches.get(look)

    def change(self) -> None:
        import jax
        from jax.experimental import multihost_utils

        number = self.taken // self.steps - 1
        for one in self.trainer._in_flight:
            jax.block_until_ready(one.metrics)
        if number >= 1:
            self.times["podrun"].append(self.since())
        if number == self.rounds:
            raise Over
        for name in list(self.others)[:: -1 if number % 2 else 1] if number >= 0 else []:
            # Processes whose loop does not communicate run apart; the next loop would pay for it.
            multihost_utils.sync_global_devices(f"{name} {number}")
            self.start()
            self.others[name]()
            self.times[name].append(self.since())
        multihost_utils.sync_global_devices(f"podrun {number}")
        self.start()

    def start(self) -> None:
        self.began = time.perf_counter(), time.process_time()

    def since(self) -> tuple[float, float]:
        wall, used = time.perf_counter() - self.began[0], time.process_time() - self.began[1]
        return wall / self.steps, used / self.steps

    def refill(self) -> None:
        self.batches.refill()

    def close(self) -> None:
        self.batches.close()


def hand_written(config: Any, env: Any, steps: int, one_buffer: bool) -> Callable[[], None]:
    """Make a loop as one writes it in a script: pmap, pmean, replicated state, a block on the loss after every step."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax.flatten_util import ravel_pytree
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from podrun.runtime.data import load_dataset
    from podrun.runtime.models import make_language_model
    from podrun.runtime.optim import make_optimizer

    data = load_dataset(config)
    model = make_language_model(config, data.vocabulary, jnp.dtype("float32")).module
    optimizer, _ = make_optimizer(config, config.total_steps(1))
    devices = jax.local_device_count()

    def loss_fn(params: Any, tokens: Any) -> Any:
        logits = model.apply({"params": params}, tokens[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

    def step(params: Any, opt_state: Any, tokens: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_fn)(params, tokens)
        if one_buffer:
            flat, unravel = ravel_pytree((loss, grads))
            loss, grads = unravel(jax.lax.pmean(flat, "device"))
        else:
            loss, grads = jax.lax.pmean((loss, grads), "device")
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    def init() -> Any:
        params = model.init(jax.random.key(0), jnp.zeros((1, config.model.context), jnp.int32))["params"]
        return params, optimizer.init(params)

    def batches() -> Iterator[Any]:
        share = config.batch_size // env.num_processes
        generator = np.random.default_rng(env.process_id)
        while True:
            indices = generator.integers(data.train.size, size=share)
            tokens = data.train.gather(indices, np.zeros(share, np.int64))["tokens"]
            yield tokens.reshape(devices, -1, tokens.shape[-1])

    pmapped = jax.pmap(step, "device", donate_argnums=(0, 1))
    split = NamedSharding(Mesh(np.array(jax.local_devices()), ("device",)), PartitionSpec("device"))
    copies = jax.jit(lambda tree: jax.tree.map(lambda x: jnp.broadcast_to(x, (devices, *x.shape)), tree))
    state = jax.device_put(copies(jax.jit(init)()), split)
    source = batches()

    def loop() -> None:
        nonlocal state
        for _ in range(steps):
            *new, loss = pmapped(*state, next(source))
            state = new
            float(loss[0])

    return loop


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(int(sys.argv[2]), int(sys.argv[3]))
    else:
        main()

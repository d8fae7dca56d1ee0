"""Measure what podrun adds to a step for each parallelism strategy: its loop against one written by hand.

    python benchmarks/strategies.py [--strategies pmap,jit,fsdp,...] [--slice cpu-1x4,cpu-2x2] [--model lm|cnn|mlp]
                                    [--rounds 61] [--steps N] [--log 10]

The loops written by hand are plain jax, flax and optax for the same model, data and optimizer, as an expert writes them:
state donated, layouts given, gradients averaged as one vector between processes where communication is written out (gloo,
which connects CPUs, pays for every buffer), the next batch placed while a step runs, one step in flight (more deadlock on
CPU). Of every step they read the loss and the norm of the gradient.

podrun's is the runtime's own loop. The two take turns in every process of a pod, block by block, so that both see the same
machine. Printed: milliseconds per step of each, and the ratio of podrun's time to the other (below 1: podrun is faster), by
round: median and quartiles. The same ratio of CPU time (process 0, all threads) says more where others use the machine.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from setting import print_setting
from step_overhead import QUIET, run_pod, start_trainer, take_turns

MODELS: dict[str, dict[str, Any]] = {
    "lm": {"model": {"layers": 2, "heads": 2, "width": 64, "context": 64}, "batch_size": 16},
    "cnn": {
        "task": "classification",
        "model": {"name": "cnn", "features": [16, 32], "dense": 64},
        "data": {"name": "digits"},
        "optimizer": {"name": "adam"},
        "batch_size": 64,
    },
    "mlp": {
        "task": "classification",
        "model": {"name": "mlp", "layers": 2, "width": 256},
        "data": {"name": "make_classification", "samples": 5000},
        "optimizer": {"name": "adam"},
        "batch_size": 64,
    },
}
STEPS = {"lm": 10, "cnn": 40, "mlp": 20}
WAYS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in ("pmap", "jit", "explicit", "shard_map", "single", "ensemble")},
    "fsdp": {"name": "jit", "mesh": {"fsdp": 4}},
}

Loss = Callable[[Any, Any], jax.Array]
Step = Callable[[Any, Any], tuple[Any, tuple[jax.Array, jax.Array]]]
Way = tuple[Any, Step, Callable[[Any], Any]]
"""(state, step: (state, batch) -> (state, (loss, norm of the gradient)), place: a batch of this process on its devices)."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", default=",".join(WAYS))
    parser.add_argument("--slice", default="cpu-1x4,cpu-2x2")
    parser.add_argument("--model", choices=MODELS, default="lm")
    parser.add_argument("--rounds", type=int, default=61)
    parser.add_argument("--steps", type=int, help="steps per block")
    parser.add_argument("--log", type=int, default=10, help="podrun writes metrics every so many steps")
    arguments = parser.parse_args()
    print_setting()
    steps = arguments.steps or STEPS[arguments.model]
    print(f"{'slice':<9}{'model':<7}{'parallel':<11}{'podrun':>8}{'by hand':>9}   {'ratio':<26}of CPU time")
    for slice_name in arguments.slice.split(","):
        for way in arguments.strategies.split(","):
            job = {"steps": 1_000_000, "parallel": WAYS[way], **MODELS[arguments.model], **QUIET}
            job["log"] = {"every": arguments.log}
            times = run_pod(slice_name, job, [__file__, "worker", way, str(arguments.rounds), str(steps)])
            podrun, by_hand = (
                statistics.median(wall for wall, _ in times[loop]) * 1e3 for loop in ("podrun", "by hand")
            )
            wall, cpu = (ratio(times["podrun"], times["by hand"], which) for which in (0, 1))
            print(
                f"{slice_name:<9}{arguments.model:<7}{way:<11}{podrun:>8.2f}{by_hand:>9.2f}   {wall:<26}{cpu}",
                flush=True,
            )


def ratio(podrun: list[list[float]], by_hand: list[list[float]], which: int) -> str:
    low, middle, high = statistics.quantiles([a[which] / b[which] for a, b in zip(podrun, by_hand, strict=True)], n=4)
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"


def worker(way: str, rounds: int, steps: int) -> None:
    trainer, config, env = start_trainer()
    take_turns(trainer, {"by hand": hand_written(way, config, steps)}, rounds, steps, env)


# --- by hand --------------------------------------------------------------------------------------------------------


def hand_written(way: str, config: Any, steps: int) -> Callable[[], None]:
    from podrun.runtime.data import load_dataset
    from podrun.runtime.optim import make_optimizer

    data = load_dataset(config)
    init, loss = learned(config, data)
    optimizer, _ = make_optimizer(config, config.total_steps(1))
    state, step, place = BY_HAND[way](init, loss, optimizer)
    source = batches(data.train, config.batch_size, way in ("single", "ensemble"))
    batch = place(next(source))

    def loop() -> None:
        nonlocal state, batch
        for _ in range(steps):
            state, value = step(state, batch)
            batch = place(next(source))
            jax.device_get(value)

    return loop


def learned(config: Any, data: Any) -> tuple[Callable[[jax.Array], Any], Loss]:
    """Return functions for the model's initial parameters and its mean loss over a batch."""
    from podrun.runtime.models import make_language_model, make_model

    float32 = jnp.dtype("float32")
    if config.task == "language_model":
        model = make_language_model(config, data.vocabulary, float32).module
        example: Any = jnp.zeros((1, config.model.context), jnp.int32)

        def split(batch: Any) -> tuple[jax.Array, jax.Array]:
            return batch["tokens"][:, :-1], batch["tokens"][:, 1:]
    else:
        model = make_model(config, data.shape, data.outputs, float32).module
        example = jnp.zeros((1, *data.shape))

        def split(batch: Any) -> tuple[jax.Array, jax.Array]:
            return batch["x"], batch["y"]

    def loss(params: Any, batch: Any) -> jax.Array:
        inputs, targets = split(batch)
        logits = model.apply({"params": params}, inputs)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    return lambda key: model.init(key, example)["params"], loss


def batches(examples: Any, size: int, whole: bool) -> Iterator[Any]:
    """Yield this process's part of batches drawn at random, or all of each."""
    part, generator = size if whole else size // jax.process_count(), np.random.default_rng(jax.process_index())
    while True:
        yield examples.gather(generator.integers(examples.size, size=part), np.zeros(part, np.int64))


def by_pmap(init: Any, loss: Loss, optimizer: Any) -> Way:
    """Keep the state without an axis of devices, which saves a copy of it in every step."""
    devices = jax.local_device_count()
    mesh = Mesh(np.array(jax.local_devices()), ("device",))
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("device"))

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        value, grads = averaged(jax.value_and_grad(loss)(params, batch), "device")
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), (value, optax.tree.norm(grads))

    def place(batch: Any) -> Any:
        return jax.device_put({k: v.reshape(devices, -1, *v.shape[1:]) for k, v in batch.items()}, split)

    state = jax.jit(lambda: with_optimizer(init(jax.random.key(0)), optimizer), out_shardings=whole)()
    return state, jax.pmap(step, "device", in_axes=(None, 0), out_axes=None, donate_argnums=0), place


def by_jit(init: Any, loss: Loss, optimizer: Any, fsdp: int = 1) -> Way:
    """Take the mean over the global batch; the layouts of inputs and outputs determine the rest."""
    mesh = Mesh(pod().reshape(-1, fsdp), ("data", "fsdp"), axis_types=(AxisType.Auto,) * 2)
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(("data", "fsdp")))

    def layout(x: Any) -> NamedSharding:
        """Return the layout that divides the longest possible dimension of a large array."""
        fits = [i for i, n in enumerate(x.shape) if n % fsdp == 0]
        if fsdp == 1 or not fits or np.prod(x.shape) <= 2**14:
            return whole
        longest = max(fits, key=lambda i: x.shape[i])
        return NamedSharding(mesh, PartitionSpec(*[None] * longest, "fsdp"))

    def first() -> Any:
        return with_optimizer(init(jax.random.key(0)), optimizer)

    layouts = jax.tree.map(layout, jax.eval_shape(first))

    def gathered(params: Any, batch: Any) -> jax.Array:
        return loss(jax.lax.with_sharding_constraint(params, whole), batch)

    step = plain_step(loss if fsdp == 1 else gathered, optimizer)
    compiled = jax.jit(step, in_shardings=(layouts, split), out_shardings=(layouts, whole), donate_argnums=0)
    return jax.jit(first, out_shardings=layouts)(), compiled, on_mesh(split)


def by_explicit(init: Any, loss: Loss, optimizer: Any) -> Way:
    """Use layouts in types: those of the parameters are known, so those of the gradients are, too."""
    mesh = Mesh(pod(), ("data",), axis_types=(AxisType.Explicit,))
    whole, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    state = jax.jit(lambda: with_optimizer(init(jax.random.key(0)), optimizer), out_shardings=whole)()
    compiled = jax.jit(plain_step(loss, optimizer), donate_argnums=0)

    def step(state: Any, batch: Any) -> Any:
        with jax.set_mesh(mesh):  # only here: podrun's loop in this process has its own mesh
            return compiled(state, batch)

    return state, step, on_mesh(split)


def by_shard_map(init: Any, loss: Loss, optimizer: Any) -> Way:
    """Write the program of one device, with an explicit mean."""
    mesh = Mesh(pod(), ("data",))
    whole, split = PartitionSpec(), PartitionSpec("data")

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        varying = jax.tree.map(lambda x: jax.lax.pcast(x, "data", to="varying"), params)
        value, grads = averaged(jax.value_and_grad(loss)(varying, batch), "data")
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), (value, optax.tree.norm(grads))

    mapped = jax.shard_map(step, mesh=mesh, in_specs=(whole, split), out_specs=(whole, whole))
    state = jax.jit(
        lambda: with_optimizer(init(jax.random.key(0)), optimizer), out_shardings=NamedSharding(mesh, whole)
    )()
    return state, jax.jit(mapped, donate_argnums=0), on_mesh(NamedSharding(mesh, split))


def by_single(init: Any, loss: Loss, optimizer: Any) -> Way:
    """Use one device."""
    state = jax.jit(lambda: with_optimizer(init(jax.random.key(0)), optimizer))()
    return state, jax.jit(plain_step(loss, optimizer), donate_argnums=0), jax.device_put


def by_ensemble(init: Any, loss: Loss, optimizer: Any) -> Way:
    """Train a member per device by pmap, without communication, with a loss from each."""
    here = jax.process_index() * jax.local_device_count()
    members = jnp.arange(here, here + jax.local_device_count())
    first = jax.pmap(lambda member: with_optimizer(init(jax.random.fold_in(jax.random.key(0), member)), optimizer))
    step = jax.pmap(plain_step(loss, optimizer), in_axes=(0, None), donate_argnums=0)
    whole = NamedSharding(Mesh(np.array(jax.local_devices()), ("member",)), PartitionSpec())
    return first(members), step, lambda batch: jax.device_put(batch, whole)


BY_HAND: dict[str, Callable[..., Way]] = {
    "pmap": by_pmap,
    "jit": by_jit,
    "fsdp": lambda *args: by_jit(*args, fsdp=4),
    "explicit": by_explicit,
    "shard_map": by_shard_map,
    "single": by_single,
    "ensemble": by_ensemble,
}


def averaged(tree: Any, axis: str) -> Any:
    if jax.process_count() == 1:
        return jax.lax.pmean(tree, axis)
    flat, unravel = ravel_pytree(tree)
    return unravel(jax.lax.pmean(flat, axis))


def plain_step(loss: Loss, optimizer: Any) -> Step:
    """Return the step that one writes for one device."""

    def step(state: Any, batch: Any) -> Any:
        params, opt_state = state
        value, grads = jax.value_and_grad(loss)(params, batch)
        updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), (value, optax.tree.norm(grads))

    return step


def with_optimizer(params: Any, optimizer: Any) -> Any:
    return params, optimizer.init(params)


def pod() -> np.ndarray:
    """Return all devices, each process's next to each other."""
    return np.array(sorted(jax.devices(), key=lambda d: (d.process_index, d.id)))


def on_mesh(sharding: NamedSharding) -> Callable[[Any], Any]:
    """Return a function that makes a global array from the parts of all processes."""
    return lambda batch: {k: jax.make_array_from_process_local_data(sharding, v) for k, v in batch.items()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    else:
        main()

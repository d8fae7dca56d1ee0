"""Compile the step of every strategy for slices, and print a JSON line about each: a process of its own for each platform.

python -m tests.compilers.compile_steps FOLDER v3-32 v5e-16
"""

from __future__ import annotations

import json
import math
import re
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax

from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.pod.target import target_of
from podrun.runtime.compiler import devices_of
from podrun.runtime.config import Config
from podrun.runtime.data import load_dataset
from podrun.runtime.data.pipeline import batch_shapes
from podrun.runtime.devices import Devices
from podrun.runtime.optim import make_optimizer
from podrun.runtime.parallel import make_strategy
from podrun.runtime.tasks import make_task

FSDP = {"tpu7x-8": 8}
"""Size of the axis, by slice; 4 on all others. For the 2 x 2 x 1 chips of a tpu7x-8 the compiler scatters nothing with 4."""
STRATEGIES = ("pmap", "jit", "jit fsdp", "explicit", "explicit fsdp", "shard_map", "single", "ensemble", "jit model")
OF_SLICE: dict[str, tuple[str, ...]] = {
    "v6e-16": ("pmap", "jit fsdp", "jit model"),
    "tpu7x-8": ("pmap", "shard_map", "explicit fsdp", "jit model"),
    "2xv5e-16": ("pmap", "jit", "jit fsdp", "jit model"),
    "h100-16": ("pmap", "explicit", "jit fsdp"),
}
"""Strategies whose collectives could be other ones than on the slice before; on the slices that are not here, all."""
_COLLECTIVE = re.compile(r" (all-reduce|reduce-scatter|all-gather|collective-permute|all-to-all)(?:-start)?\(")
_SCATTER = re.compile(r"^%all-reduce-scatter[\w.-]* ", re.MULTILINE)
"""The form of a reduce-scatter in a TPU's program: a fused all-reduce of which each device keeps its part."""


def strategies_of(slice: str) -> tuple[str, ...]:
    return OF_SLICE.get(slice, STRATEGIES)


def config(strategy: str, slice: str, devices: int, text: Path) -> Config:
    """Return a small job; with its width fsdp divides the matrices."""
    name, _, axis = strategy.partition(" ")
    job: dict[str, Any] = {
        "task": "language_model",
        "batch_size": 2 * devices,
        "data": {"name": "text", "path": str(text), "tokenizer": "byte"},
        "model": {"name": "gpt2", "layers": 1, "width": 128, "heads": 2, "context": 16},
        "precision": "bfloat16",
        "optimizer": {"name": "adamw", "learning_rate": 0.01},
    }
    if name == "ensemble":
        features = {"samples": 50, "features": 64, "classes": 4, "informative": 10, "validation": 0.3}
        job = {
            "task": "classification",
            "batch_size": 8,
            "data": {"name": "make_classification", **features},
            "model": {"name": "mlp", "layers": 1, "width": 32},
            "optimizer": "adam",
        }
    mesh: dict[str, Any] = {"mesh": {"fsdp": FSDP.get(slice, 4)}} if axis == "fsdp" else {}
    if axis == "model":
        mesh = {"mesh": {"fsdp": 2, "model": 2}}
        # Splash attention does not compile for v3.
        attention = "splash" if slice in ("v5e-16", "v6e-16", "tpu7x-8", "2xv5e-16") else "xla"
        job["model"] = {
            "name": "decoder",
            "layers": 2,
            "width": 256,
            "heads": 2,
            "context": 128,
            "attention": attention,
        }
    return Config.model_validate({**job, "steps": 4, "parallel": {"name": name, **mesh}})


def compiled(strategy: str, slice: str, pod: Devices, text: Path) -> dict[str, Any]:
    """Return the collectives and the memory of a step."""
    job = config(strategy, slice, pod.count, text)
    data = load_dataset(job)
    made = make_strategy(job, make_task(job, data), *make_optimizer(job, job.steps), pod)
    batch = {
        name: jax.ShapeDtypeStruct(array.shape, array.dtype)
        for name, array in batch_shapes(data.train, job.batch_size).items()
    }
    start = time.monotonic()
    step = made.lowered(batch).compile()
    program, memory = step.as_text(), step.memory_analysis()
    assert program and memory
    count = Counter(_COLLECTIVE.findall(program))
    scatters = len(_SCATTER.findall(program))
    count["reduce-scatter"] += scatters
    count["all-reduce"] -= scatters
    return {
        "slice": slice,
        "strategy": strategy,
        "collectives": +count,
        "alias": memory.alias_size_in_bytes,
        "state": sum(bytes_of(array, pod) for array in jax.tree.leaves(made.abstract_state())),
        "seconds": round(time.monotonic() - start, 1),
    }


def bytes_of(array: jax.ShapeDtypeStruct, pod: Devices) -> int:
    """Return the bytes of a device's part of an array of the state."""
    shape = array.sharding.shard_shape(array.shape) if array.sharding else array.shape
    return math.prod(shape) * array.dtype.itemsize


def main(folder: str, *slices: str) -> None:
    jax.config.update("jax_threefry_partitionable", True)
    jax.config.update("jax_enable_compilation_cache", False)
    text = Path(folder) / "text.txt"
    text.write_text("To be, or not to be, that is the question. " * 200)
    for slice in slices:
        target = target_of(parse_slice(slice))
        assert target
        pod = devices_of(target)
        for strategy in strategies_of(slice):
            print(json.dumps(compiled(strategy, slice, pod, text)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The step of every strategy, compiled for TPUs and GPUs: its collectives, and that it donates its state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .compile_steps import strategies_of

pytestmark = pytest.mark.compilers

SLICES = {
    "libtpu": ("v3-32", "v5e-16", "v6e-16", "tpu7x-8", "2xv5e-16"),
    "jax_cuda13_plugin": ("h100-8", "h100-16"),
}
"""By package of the compiler."""
ONE_REDUCE = {"tpu7x-8": 2}
"""All-reduces of pmap and shard_map, if not one: on tpu7x the large gradients have an asynchronous one of their own."""
SEVERAL = ("2xv5e-16",)
"""Between slices gradients are scattered within each first, and gathered again at the end."""
PADDING = 64 * 1024
"""Bytes by which the tiles of a TPU may exceed its small arrays."""
TIMEOUT = 900.0  # seconds


@pytest.fixture(scope="module")
def steps(compilers: None, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what was compiled, by slice and strategy; by one process for each compiler, at the same time."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")} | {"JAX_PLATFORMS": "cpu"}
    module = [sys.executable, "-m", f"{__package__}.compile_steps"]
    started = []
    for package, slices in SLICES.items():
        folder = tmp_path_factory.mktemp(package)
        with (folder / "err").open("w") as err:
            command = [*module, str(folder), *slices]
            started.append(
                (
                    folder,
                    subprocess.Popen(
                        command, env=env, stdout=subprocess.PIPE, stderr=err, text=True, cwd=Path(__file__).parents[2]
                    ),
                )
            )
    lines = []
    try:
        for folder, process in started:
            out, _ = process.communicate(timeout=TIMEOUT)
            assert process.returncode == 0, (folder / "err").read_text()[-3000:]
            lines += [json.loads(line) for line in out.splitlines()]
    finally:
        for _, process in started:
            process.kill()
            process.wait()
    return {(line["slice"], line["strategy"]): line for line in lines}


@pytest.mark.timeout(TIMEOUT + 100)
@pytest.mark.parametrize(
    ("slice", "strategy"),
    [(name, strategy) for names in SLICES.values() for name in names for strategy in strategies_of(name)],
)
def test_collectives_and_donation(slice: str, strategy: str, steps: dict[tuple[str, str], dict[str, Any]]) -> None:
    step = steps[slice, strategy]
    count = step["collectives"]
    if strategy in ("single", "ensemble"):
        assert count == {}
    elif strategy == "jit model":
        assert count["all-gather"] >= 1, "layers are gathered over fsdp"
        assert count["all-reduce"] >= 4, "what devices of a row computed is summed, in attention and MLP, twice each"
    elif "fsdp" in strategy:
        assert count["all-gather"] >= 1, "parameters are gathered where they are used"
        assert count["reduce-scatter"] >= 1, "gradients are reduced to the parts that devices keep"
    else:
        reduces = ONE_REDUCE.get(slice, 1)
        # jit and explicit reduce the float32 gradients of layer norms and the loss apart from those in bfloat16.
        assert count["all-reduce"] == reduces + (strategy in ("jit", "explicit"))
        assert set(count) == ({"all-reduce", "reduce-scatter", "all-gather"} if slice in SEVERAL else {"all-reduce"})
    padding = 0 if slice.startswith("h100") else PADDING
    assert step["state"] <= step["alias"] <= step["state"] + padding, "the whole state is donated, and nothing else"

"""Parameters that a plug-in makes in bfloat16: trained in float32, and said so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.contract import Workdir, WorkerEnv
from podrun.runtime.train import Trainer
from podrun.runtime.worker.progress import Reporter

from ..strategies import copies, dataset, job, make, train


class Net:
    """Weights that bfloat16 has exactly."""

    def __init__(self, options: Any, outputs: int, dtype: Any) -> None:
        self.outputs, self.dtype = outputs, jnp.dtype(options["dtype"])

    def init(self, key: jax.Array, x: jax.Array) -> Any:
        w = jax.random.normal(key, (x.shape[-1], self.outputs), jnp.bfloat16) / 16
        return {"layer": {"w": w.astype(self.dtype), "b": jnp.zeros(self.outputs, jnp.float32)}}

    def apply(self, params: Any, x: jax.Array) -> jax.Array:
        return x.astype(jnp.float32) @ params["layer"]["w"] + params["layer"]["b"]


def model(dtype: str) -> dict[str, Any]:
    return {"name": f"{__name__}:Net", "options": {"dtype": dtype}}


def test_parameters_and_moments_are_float32() -> None:
    """Losses are those of the same numbers in float32, bit for bit."""
    losses = {}
    for dtype in ("float32", "bfloat16"):
        one = make(job("single", model=model(dtype), optimizer={"name": "adamw", "learning_rate": 1e-3}), dataset())
        order = [dataset().train.gather(np.arange(8) + 8 * n, np.zeros(8, np.int64)) for n in range(3)]
        state, history = train(one, one.init(), order)
        losses[dtype] = [metrics["loss"] for metrics in history]
        types = {leaf.dtype for leaf in jax.tree.leaves(copies(one.savable(state))) if leaf.ndim}
        assert types == {np.dtype(np.float32)}
        assert one.raised == (() if dtype == "float32" else ("layer.w (bfloat16)",))
    assert losses["bfloat16"] == losses["float32"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_said_once(tmp_path: Path, dtype: str) -> None:
    data = {"name": "make_classification", "samples": 40, "features": 8, "classes": 4, "informative": 6}
    keys = {
        "task": "classification",
        "steps": 2,
        "batch_size": 4,
        "data": data,
        "model": model(dtype),
        "parallel": "single",
    }
    config = Config.model_validate({**keys, "eval": {"every": 0, "batches": 1}, "log": {"tensorboard": False}})
    workdir, events = Workdir(tmp_path), tmp_path / "events"
    workdir.token("run", 0).touch()
    env = WorkerEnv("run", 0, "host-0", 0, 1, (0, 1, 2, 3), "cpu-1x4", tmp_path)
    trainer = Trainer(config, env, workdir, Reporter(events))
    trainer.start()
    trainer.run()
    trainer.finish()
    trainer.close()
    records = [json.loads(line) for line in events.read_text().splitlines()]
    notes = [record["message"] for record in records if "become float32" in str(record.get("message"))]
    assert [note.startswith("the initial parameters layer.w (bfloat16) become float32") for note in notes] == [True] * (
        dtype == "bfloat16"
    )

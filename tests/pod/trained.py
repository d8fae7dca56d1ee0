"""Runs that train, and the state that they save."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..conftest import Sandbox


def run(sandbox: Sandbox, slice: str, workdir: str, *overrides: str) -> None:
    done = sandbox.podrun("--slice", slice, "--simulate", "-w", workdir, "train.yaml", *overrides)
    assert done.returncode == 0, done.stdout + done.stderr


def saved_state(checkpoint: Path) -> dict[str, Any]:
    """The training state in a checkpoint, as numpy arrays."""
    import orbax.checkpoint as ocp  # not when tests are collected: it imports JAX, and that reads the environment

    (meta,) = [json.loads(file.read_text()) for file in (checkpoint / "meta").iterdir() if "shapes" in file.read_text()]

    def template(name: str, shapes: Any) -> Any:
        if isinstance(shapes, dict):
            return {key: template(key, value) for key, value in shapes.items()}
        return np.zeros(shapes, np.int32 if name in ("step", "count") else np.float32)

    target = template("", meta["shapes"])
    with ocp.StandardCheckpointer() as reader:
        state: dict[str, Any] = reader.restore(checkpoint / "state", target)
    return state

"""Check each step for a loss or gradient that is not finite: skip as many such steps as the job allows, then fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from ..array_names import places
from ..contract import NotFiniteError

_NOTED = 5
_ADVICE = "a lower learning rate, warm-up steps, or clipping may help"


@dataclass
class FiniteCheck:
    """Counts the steps that were not finite, on the host. The devices decide whether a step changes the state."""

    allowed: int
    """Number of such steps in a row that are skipped: the job's `skip_nonfinite`."""
    note: Callable[[str], None]
    every_metric: bool = False
    """True if all metrics must be finite, as for a task with its own step; otherwise only loss and gradient."""
    in_a_row: int = 0
    skipped: int = 0
    """Number of all skipped steps since the process began."""

    def passes(self, step: int, values: dict[str, float]) -> bool:
        """Return whether a step's loss and gradient are finite. If they are not, the step was skipped.

        Raises:
            NotFiniteError: they are not, and no more steps may be skipped.
        """
        checked = values if self.every_metric else {name: values.get(name, 0.0) for name in ("loss", "grad_norm")}
        if all(map(math.isfinite, checked.values())):
            self.in_a_row = 0
            return True
        shown = "  ".join(f"{name} {value:g}" for name, value in values.items())
        if self.in_a_row == self.allowed:
            if self.every_metric:
                raise NotFiniteError(
                    f"a metric is not finite in step {step} ({shown}); {_ADVICE}. A metric that has no value in some steps "
                    "must be a number there: jnp.where(count > 0, total / jnp.maximum(count, 1), 0)"
                )
            start = f"the loss or its gradient is not finite in step {step} ({shown})"
            if self.allowed:
                start += f", nor in the {self.allowed} before it, which were skipped (skip_nonfinite)"
            raise NotFiniteError(f"{start}; {_ADVICE}")
        self.in_a_row += 1
        self.skipped += 1
        if self.skipped <= _NOTED or self.skipped % 100 == 0:
            so_far = f"; {self.skipped} so far" if self.skipped > 1 else ""
            self.note(f"step {step} is skipped: its loss or gradient is not finite ({shown}){so_far}")
        return False


def arrays_with_nan(tree: Any) -> list[str]:
    """Return the names of the arrays with NaN in this process's part of them. Communicates with no other process."""
    floats = {".".join(place): x for place, x in places(tree, "the state") if jnp.issubdtype(x.dtype, jnp.inexact)}
    parts: dict[int, dict[str, jax.Array]] = {}  # arrays on the same device, by its number here
    for name, array in floats.items():
        shards = array.addressable_shards[: 1 if array.is_fully_replicated else None]
        for number, shard in enumerate(shards):
            parts.setdefault(number, {})[name] = shard.data
    have = {number: _have_nan([*arrays.values()]) for number, arrays in parts.items()}
    wrong = {
        name for number, each in have.items() for name, bad in zip(parts[number], each.tolist(), strict=True) if bad
    }
    return [name for name in floats if name in wrong]


@jax.jit
def _have_nan(arrays: list[jax.Array]) -> jax.Array:
    """Return whether each array has NaN, bool[n]."""
    return jnp.stack([jnp.isnan(array).any() for array in arrays])

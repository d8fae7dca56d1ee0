"""Metrics of a step, in one array."""

from __future__ import annotations

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np

from ..tasks.base import Scalars


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StepMetrics:
    """Scalars by name, stored in one array: separate transfers would take longer than a short step."""

    values: jax.Array
    """float32[n]; for an ensemble float32[members of this process, n]."""
    names: tuple[str, ...] = field(metadata={"static": True})

    @classmethod
    def of(cls, metrics: Scalars) -> StepMetrics:
        """Stack traced scalars, float32[] each."""
        return cls(jnp.stack([jnp.asarray(x, jnp.float32) for x in metrics.values()]), tuple(metrics))

    @property
    def complete(self) -> bool:
        """Return whether the step has been computed, so that `read` does not wait."""
        return bool(self.values.is_ready())  # type: ignore[attr-defined]

    def read(self) -> dict[str, float]:
        """Wait for the step and return the numbers; for an ensemble, means over the members of this process."""
        values = np.asarray(self.values)
        return dict(zip(self.names, values.reshape(-1, len(self.names)).mean(0).tolist(), strict=True))

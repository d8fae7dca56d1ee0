"""Everything that training changes."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax

Params = Any
Batch = dict[str, Any]
"""Arrays whose leading axis is the example."""


@flax.struct.dataclass
class TrainState:
    """A pytree. Random numbers and the position in the data are functions of `step` and need no state."""

    step: jax.Array
    """Steps done, int32[]."""
    params: Params
    """float32."""
    opt_state: Any

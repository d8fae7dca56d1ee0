"""The training state: all that training changes."""

from __future__ import annotations

from typing import Any

import flax.serialization
import flax.struct
import jax

Params = Any
Batch = dict[str, Any]
"""Arrays whose leading axis is the example."""

StateDict = dict[str, Any]
"""`TrainState` as nested dictionaries of arrays: the content of a checkpoint, whatever the strategy."""


@flax.struct.dataclass
class TrainState:
    """The training state, a pytree. Random numbers and the position in the data are functions of `step` and need no state."""

    step: jax.Array
    """Number of steps done, int32[]."""
    params: Params
    """The parameters, float32."""
    opt_state: Any
    ema: Params | None = None
    """Moving average of the parameters, if there is one."""

    @property
    def best_params(self) -> Params:
        """Return the parameters that are evaluated, and kept in the end."""
        return self.params if self.ema is None else self.ema


def to_dict(state: TrainState) -> StateDict:
    """Return the arrays under names. A part that is None has no name."""
    named: StateDict = flax.serialization.to_state_dict(state)
    return {name: value for name, value in named.items() if value is not None}


def from_dict(template: TrainState, named: StateDict) -> TrainState:
    """Return the arrays of `named` in the structure of `template`."""
    state: TrainState = flax.serialization.from_state_dict(template, {"ema": None, **named})
    return state

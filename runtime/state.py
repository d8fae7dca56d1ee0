"""The training state: all that training changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import flax.serialization
import flax.struct
import jax
import jax.numpy as jnp

from .contract import UserError

Params = Any
"""Parameters; a task gets `Variables` in their place if its model has state as well."""

Batch = dict[str, Any]
"""Arrays whose leading axis is the example."""

StateDict = dict[str, Any]
"""`TrainState` as nested dictionaries of arrays: the content of a checkpoint, whatever the strategy."""


@dataclass
class Variables:
    """The parameters of a model and its state beyond them, such as the running statistics of batch norm."""

    params: Params
    state: Any
    """The state before the step; once the model has been applied for training, the state after it."""
    updated: bool = field(default=False, init=False)
    """True once the model has been applied for training."""


jax.tree_util.register_dataclass(Variables, ["params", "state"], [])


def variables(params: Params, model_state: Any) -> Any:
    """Return what a task takes for its parameters: the parameters alone where the model has no state."""
    return params if model_state is None else Variables(params, model_state)


def parts(given: Any) -> tuple[Params, Any]:
    """Return the parameters and the model's state, None if it has none, of what a task takes for its parameters."""
    return (given.params, given.state) if isinstance(given, Variables) else (given, None)


def in_float32(params: Params) -> tuple[Params, tuple[str, ...]]:
    """Return parameters whose floats of lower precision have become float32, and the names and types that those had.

    An optimizer's small updates would be lost in bfloat16, and its moments would have that type as well.
    """
    raised: list[str] = []

    def cast(path: Any, leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype.itemsize >= 4:
            return leaf
        raised.append(f"{jax.tree_util.keystr(path, simple=True, separator='.')} ({leaf.dtype})")
        return leaf.astype(jnp.float32)

    return jax.tree.map_with_path(cast, params), tuple(raised)


def new_state(given: Any) -> Any:
    """Return the state that a task's loss has left behind. Raises UserError if it has not applied the model to `given`."""
    if isinstance(given, Variables) and not given.updated:
        raise UserError(
            "task: its `loss` leaves no new state of the model, which has running statistics or the like; apply the model to "
            "the parameters that `loss` gets, and outside of jax.checkpoint and jax.vmap"
        )
    return parts(given)[1]


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
    model_state: Any = None
    """State of the model beyond its parameters, if it has any."""

    @property
    def best(self) -> Any:
        """Return the parameters, and state of the model, that are evaluated, and kept in the end."""
        return variables(self.params if self.ema is None else self.ema, self.model_state)


def to_dict(state: TrainState) -> StateDict:
    """Return the arrays under names. A part that is None has no name."""
    named: StateDict = flax.serialization.to_state_dict(state)
    return {name: value for name, value in named.items() if value is not None}


def from_dict(template: TrainState, named: StateDict) -> TrainState:
    """Return the arrays of `named` in the structure of `template`."""
    state: TrainState = flax.serialization.from_state_dict(template, {"ema": None, "model_state": None, **named})
    return state

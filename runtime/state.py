"""The training state: everything that a step changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import flax.serialization
import flax.struct
import jax
import jax.numpy as jnp
import optax

from .contract import UserError

Params = Any
"""Parameters. If the model has state as well, a task gets `Variables` in their place."""

Batch = dict[str, Any]
"""Arrays by name; the leading axis is the example."""

StateDict = dict[str, Any]
"""`TrainState` as nested dictionaries of arrays, as saved in a checkpoint; the same for all strategies."""


@dataclass
class Variables:
    """The parameters of a model, and its other state, such as the running statistics of batch norm."""

    params: Params
    state: Any
    """The state before the step; once the model has been applied for training, the state after it."""
    updated: bool = field(default=False, init=False)
    """True once the model has been applied for training."""


jax.tree_util.register_dataclass(Variables, ["params", "state"], [])


def variables(params: Params, model_state: Any) -> Any:
    """Return the `params` argument for a task: the parameters, or `Variables` if the model has state."""
    return params if model_state is None else Variables(params, model_state)


def parts(given: Any) -> tuple[Params, Any]:
    """Split the `params` argument of a task into parameters and the model's state, None if it has none."""
    return (given.params, given.state) if isinstance(given, Variables) else (given, None)


def in_float32(params: Params) -> tuple[Params, tuple[str, ...]]:
    """Convert parameters of lower precision to float32. Return the parameters, and the names and dtypes of those converted.

    In bfloat16, small updates of the optimizer would be lost, and its moments would be bfloat16 as well.
    """
    raised: list[str] = []

    def cast(path: Any, leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.dtype.itemsize >= 4:
            return leaf
        raised.append(f"{jax.tree_util.keystr(path, simple=True, separator='.')} ({leaf.dtype})")
        return leaf.astype(jnp.float32)

    return jax.tree.map_with_path(cast, params), tuple(raised)


def new_state(given: Any) -> Any:
    """Return the model's new state after a task's loss. Raises UserError if the loss did not apply the model to `given`."""
    if isinstance(given, Variables) and not given.updated:
        raise UserError(
            "task: its `loss` sets no new state of the model, which has state such as running statistics; apply the model to "
            "the parameters that `loss` gets, and outside of jax.checkpoint and jax.vmap"
        )
    return parts(given)[1]


def select(tree: Any, mask: Any) -> Any:
    """Return a tree of the trained parameters only, with `MaskedNode`, which has no arrays, for the others."""
    return jax.tree.map(lambda leaf, keep: leaf if keep else optax.MaskedNode(), tree, mask)


def merge(part: Any, params: Params) -> Params:
    """Return `params` with the trained parameters of `part`, a result of `select`."""
    return jax.tree.map(
        lambda mine, whole: whole if isinstance(mine, optax.MaskedNode) else mine,
        part,
        params,
        is_leaf=lambda node: isinstance(node, optax.MaskedNode),
    )


@flax.struct.dataclass
class TrainState:
    """The training state, a pytree. Random numbers and the position in the data are functions of `step`."""

    step: jax.Array
    """Number of steps done, int32[]."""
    params: Params
    """The parameters, float32."""
    opt_state: Any
    ema: Params | None = None
    """Exponential moving average of the parameters that are trained, a result of `select`, if the job has `ema`."""
    model_state: Any = None
    """The model's other state, if it has any."""

    @property
    def best(self) -> Any:
        """Return the variables to evaluate and to export: the average if there is one, with the model's state."""
        return variables(self.params if self.ema is None else merge(self.ema, self.params), self.model_state)


def to_dict(state: TrainState) -> StateDict:
    """Return the state as nested dictionaries, without parts that are None."""
    named: StateDict = flax.serialization.to_state_dict(state)
    return {name: value for name, value in named.items() if value is not None}


def from_dict(template: TrainState, named: StateDict) -> TrainState:
    """Return the state with the structure of `template` and the arrays of `named`."""
    state: TrainState = flax.serialization.from_state_dict(template, {"ema": None, "model_state": None, **named})
    return state

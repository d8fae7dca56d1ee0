"""The initial state as a program, traced once: its shapes, and its arrays."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from ..state import TrainState

_FEW = 32
"""Number of parameters up to which one program is compiled in less time than its operations are."""


class Initial:
    """The initial state as a function of a key.

    Args:
        make: a function from a key, of shape [], to the state. It is called once, to trace it.
    """

    def __init__(self, make: Callable[[jax.Array], TrainState]) -> None:
        program, self.shapes = jax.make_jaxpr(make, return_shape=True)(jax.eval_shape(lambda: jax.random.key(0)))
        # flax computes the outputs of a model to find the shapes of its parameters.
        needed, _ = dce_jaxpr(program.jaxpr, [True] * len(program.out_avals), instantiate=True)
        self._program = jaxpr_as_fun(ClosedJaxpr(needed, program.consts))
        self._structure = jax.tree.structure(self.shapes)
        # It runs once. Level 1 gives the same bits as the default; a lower one, which the user may have set, does not.
        level = None if jax.config.values["jax_disable_most_optimizations"] else {"xla_backend_optimization_level": 1}
        self._compiled = jax.jit(self._program, compiler_options=level)

    def __call__(self, key: jax.Array) -> TrainState:
        """Return the state; to be traced."""
        state: TrainState = jax.tree.unflatten(self._structure, self._program(key))
        return state

    def computed(self, key: jax.Array) -> TrainState:
        """Return the state on this process's first device, a CPU.

        Few parameters are computed by one program. XLA takes time for each random array in a program, and from some hundreds
        on it grows faster than their number: two minutes for 1,000 matrices. So more parameters are computed one operation
        after another, each compiled once for all arrays of a shape.
        """
        with jax.default_device(jax.local_devices()[0]):
            if len(jax.tree.leaves(self.shapes.params)) <= _FEW:
                one: TrainState = jax.tree.unflatten(self._structure, self._compiled(key))
                return one
            leaves = self._program(key)
        seen: set[int] = set()
        for number, (leaf, like) in enumerate(zip(leaves, jax.tree.leaves(self.shapes), strict=True)):
            # A step takes the buffers of its state, so each has to have one of its own.
            if id(leaf) in seen or not isinstance(leaf, jax.Array):
                leaves[number] = jnp.array(leaf, like.dtype)
            seen.add(id(leaf))
        whole: TrainState = jax.tree.unflatten(self._structure, leaves)
        return whole

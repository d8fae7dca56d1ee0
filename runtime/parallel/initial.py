"""The program that makes the initial state, traced once for its shapes and its arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from ..state import TrainState

_ONE_PROGRAM_LIMIT = 32
"""Up to this many parameter arrays, one program compiles faster than its operations do one by one."""


SEED = jax.ShapeDtypeStruct((), jnp.uint32)


class InitialState:
    """The initial state as a function of a seed.

    It also makes the random key: separate programs for that take 0.3 s to compile.

    Args:
        make: maps a seed, uint32[], to the state. It is called once, to be traced.
    """

    def __init__(self, make: Callable[[jax.Array], TrainState]) -> None:
        program, self.shapes = jax.make_jaxpr(make, return_shape=True)(SEED)
        # flax's `init` also computes the model's outputs, which are not needed.
        needed, _ = dce_jaxpr(program.jaxpr, [True] * len(program.out_avals), instantiate=True)
        self._program = jaxpr_as_fun(ClosedJaxpr(needed, program.consts))
        self._structure = jax.tree.structure(self.shapes)
        # It runs once, so it is compiled fast. Level 1 gives the same bits as the default; level 0 does not.
        level = None if jax.config.values["jax_disable_most_optimizations"] else {"xla_backend_optimization_level": 1}
        self._compiled = jax.jit(self._program, compiler_options=level)

    def __call__(self, seed: jax.Array) -> TrainState:
        """Return the initial state for a traced seed."""
        state: TrainState = jax.tree.unflatten(self._structure, self._program(seed))
        return state

    @property
    def is_one_program(self) -> bool:
        """Return whether `compute` runs a single program."""
        return len(jax.tree.leaves(self.shapes.params)) <= _ONE_PROGRAM_LIMIT

    def lowered(self) -> jax.stages.Lowered:
        """Return the program of `compute`, lowered but not compiled."""
        with jax.default_device(jax.local_devices()[0]):
            lowered: jax.stages.Lowered = self._compiled.lower(SEED)
            return lowered

    def compute(self, seed: jax.Array | np.uint32, local: Callable[[Any], Any] | None = None) -> TrainState:
        """Compute the initial state on this process's first device, a CPU.

        Args:
            seed: uint32[].
            local: the method `Executables.local`, which caches the executable; None: it is compiled here.

        One program computes it if there are few parameters. Its compile time grows faster than the number of random arrays:
        two minutes for 1,000 matrices. Otherwise the operations run one by one, each compiled once for all arrays of a shape.
        """
        with jax.default_device(jax.local_devices()[0]):
            if self.is_one_program:
                program = local(self._compiled) if local else self._compiled
                one: TrainState = jax.tree.unflatten(self._structure, program(seed))
                return one
            leaves = self._program(seed)
        seen: set[int] = set()
        for number, (leaf, like) in enumerate(zip(leaves, jax.tree.leaves(self.shapes), strict=True)):
            # A step donates its state, so no two arrays may share a buffer.
            if id(leaf) in seen or not isinstance(leaf, jax.Array):
                leaves[number] = jnp.array(leaf, like.dtype)
            seen.add(id(leaf))
        whole: TrainState = jax.tree.unflatten(self._structure, leaves)
        return whole

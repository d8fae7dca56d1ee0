"""Means and sums over devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from podrun.runtime.parallel.collectives import average, total

DEVICES = 4
AXIS = "device"


def tree(size: int) -> dict[str, Any]:
    """[DEVICES, ...] each: of several shapes and dtypes, a scalar and an empty one among them."""
    noise = np.random.default_rng(0)
    return {
        "matrix": jnp.asarray(noise.normal(size=(DEVICES, size, 3)), jnp.float32),
        "scalar": jnp.asarray(noise.normal(size=DEVICES), jnp.float32),
        "half": jnp.asarray(noise.integers(8, size=(DEVICES, 2, 2)), jnp.bfloat16),
        "none": jnp.zeros((DEVICES, 0), jnp.float32),
        "vector": jnp.asarray(noise.normal(size=(DEVICES, 5)), jnp.float32),
    }


def by_shard_map(function: Any, given: Any) -> Any:
    """`function` on each device's part."""

    def one(part: Any) -> Any:
        return function(jax.tree.map(lambda x: x[0], part), AXIS)

    mesh = Mesh(np.array(jax.devices()), (AXIS,))
    return jax.jit(jax.shard_map(one, mesh=mesh, in_specs=PartitionSpec(AXIS), out_specs=PartitionSpec()))(given)


def by_pmap(function: Any, given: Any) -> Any:
    return jax.pmap(lambda part: function(part, AXIS), AXIS, out_axes=None)(given)


@pytest.mark.parametrize("run", [by_pmap, by_shard_map])
@pytest.mark.parametrize(("function", "expected"), [(average, np.mean), (total, np.sum)])
def test_every_array_by_itself(run: Any, function: Any, expected: Any) -> None:
    """Shapes and dtypes are kept, and no number comes to stand in another's place."""
    given = tree(7)
    found = run(function, given)
    assert found.keys() == given.keys()
    for name, x in given.items():
        assert (found[name].shape, found[name].dtype) == (x.shape[1:], x.dtype)
        wide = expected(np.asarray(x, np.float64), axis=0)
        np.testing.assert_allclose(np.asarray(found[name], np.float64), wide, rtol=1e-2 if name == "half" else 1e-5)


@pytest.mark.parametrize("function", [average, total])
def test_one_wait_for_all(function: Any) -> None:
    """CPUs wait for each other once, whatever is in the tree."""
    lowered = jax.pmap(lambda part: function(part, AXIS), AXIS, out_axes=None).lower(tree(7))
    assert lowered.compile().as_text().count(" all-reduce(") == 1


def test_sums_are_not_computed_again_for_every_element() -> None:
    """XLA does this to a concatenation: it puts the sums that are joined inside the loop over the elements.

    Of two pieces XLA of JAX 0.12 makes a concatenation itself, of three it does not; a step has more.
    """

    def program(x: jax.Array) -> Any:
        return average({"large": x @ x.T, "columns": jnp.exp(x).sum(0), "small": jnp.exp(x).sum()}, AXIS)

    text = jax.pmap(program, AXIS, out_axes=None).lower(jnp.ones((DEVICES, 64, 8))).compile().as_text()
    assert "concatenate" not in text

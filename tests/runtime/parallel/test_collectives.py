"""Means and sums over devices."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from podrun.runtime.devices import Devices
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


def by_shard_map(function: Any) -> Any:
    """A program of `function` on each device's part."""

    def one(part: Any) -> Any:
        return function(jax.tree.map(lambda x: x[0], part), AXIS, Devices.here())

    mesh = Mesh(np.array(jax.devices()), (AXIS,))
    return jax.jit(jax.shard_map(one, mesh=mesh, in_specs=PartitionSpec(AXIS), out_specs=PartitionSpec()))


def by_pmap(function: Any) -> Any:
    return jax.pmap(lambda part: function(part, AXIS, Devices.here()), AXIS, out_axes=None)


@pytest.mark.parametrize("run", [by_pmap, by_shard_map])
@pytest.mark.parametrize(("function", "expected"), [(average, np.mean), (total, np.sum)])
def test_every_array_by_itself(run: Any, function: Any, expected: Any) -> None:
    """Shapes and dtypes are kept, and no number comes to stand in another's place."""
    given = tree(7)
    found = run(function)(given)
    assert found.keys() == given.keys()
    for name, x in given.items():
        assert (found[name].shape, found[name].dtype) == (x.shape[1:], x.dtype)
        wide = expected(np.asarray(x, np.float64), axis=0)
        np.testing.assert_allclose(np.asarray(found[name], np.float64), wide, rtol=1e-2 if name == "half" else 1e-5)


@pytest.mark.parametrize("run", [by_pmap, by_shard_map])
def test_many_small_arrays_are_joined_in_groups(run: Any) -> None:
    """More arrays than a group holds, of three shapes in turns, and two large ones, which are joined by themselves."""
    shapes = [[(3, 2), (5,), (2, 3)][number % 3] for number in range(210)]
    shapes[100:100] = [(130, 128), (130, 128)]
    noise = np.random.default_rng(0)
    given = [jnp.asarray(noise.integers(1000, size=(DEVICES, *shape)), jnp.float32) for shape in shapes]
    program = run(total)
    for x, found in zip(given, program(given), strict=True):
        np.testing.assert_array_equal(found, np.asarray(x).sum(0))
    joins = re.findall(r" concatenate\((.*?)\)", program.lower(given).compile().as_text())
    assert joins and max(join.count(",") + 1 for join in joins) <= 64


@pytest.mark.parametrize("function", [average, total])
def test_one_wait_for_all(function: Any) -> None:
    """CPUs wait for each other once, whatever is in the tree."""
    lowered = jax.pmap(lambda part: function(part, AXIS, Devices.here()), AXIS, out_axes=None).lower(tree(7))
    assert lowered.compile().as_text().count(" all-reduce(") == 1


def test_sums_are_not_computed_again_for_every_element() -> None:
    """XLA does this to a concatenation: it puts the sums that are joined inside the loop over the elements."""

    def program(x: jax.Array) -> Any:
        return average(
            {"large": x @ x.T, "columns": jnp.exp(x).sum(0), "small": jnp.exp(x).sum()}, AXIS, Devices.here()
        )

    lowered = jax.pmap(program, AXIS, out_axes=None).lower(jnp.ones((DEVICES, 64, 8)))
    joined = [body for body in computations(lowered) if " concatenate(" in body]
    assert joined and not any(" exponential(" in body or " reduce(" in body for body in joined)


def computations(lowered: Any) -> list[str]:
    """Return the computations of a program, as XLA compiles it."""
    return re.split(r"\n\n", lowered.compile().as_text())


@pytest.mark.parametrize("run", [by_pmap, by_shard_map])
def test_what_is_compiled_does_not_grow_with_the_arrays(run: Any) -> None:
    """Each operation on a part of the vector is compiled once for all arrays of a shape, wherever they are in it."""

    def function(part: Any, axis: str, pod: Devices) -> Any:
        return [x / (1 + jnp.abs(x)) for x in average(part, axis, pod)]

    def kinds(count: int) -> set[str]:
        """What XLA compiles, but for the whole and what joins the arrays, without names and places in the source."""
        lowered = run(function).lower([jnp.ones((DEVICES, *shape)) for shape in [(3, 5), (7,)] * count])
        bodies = [body for body in computations(lowered) if "ENTRY" not in body and " concatenate(" not in body]
        return {re.sub(r"%[\w.-]+|\b[\w.-]+(?=: )|(, )?metadata=\{[^}]*\}", "", body) for body in bodies}

    assert len(kinds(20)) == len(kinds(10))

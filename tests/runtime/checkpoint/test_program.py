"""Checkpoints of any pytree: what comes back is what was saved, in the same layout."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from podrun.runtime.checkpoint import trees
from podrun.runtime.checkpoint.damage import DamagedCheckpointError
from podrun.runtime.checkpoint.manifest import flush_and_list, write_manifest
from podrun.runtime.checkpoint.program import ProgramCheckpoints
from podrun.runtime.checkpoint.retention import Retention
from podrun.runtime.contract import UserError
from podrun.runtime.worker.progress import Reporter

MESH = Mesh(np.array(jax.devices()[:4]), ("data",))


def through_disk(folder: Path, state: Any, like: Any) -> Any:
    checkpoints = ProgramCheckpoints(folder, state, Retention(1))
    checkpoints.save(1, state)
    assert checkpoints.completed(wait=True) == 1
    checkpoints.close()
    return ProgramCheckpoints(folder, like, Retention(1)).restore(1, like, Reporter(None))


@jax.tree_util.register_dataclass
@dataclass
class Module:
    """A tree with a function as a leaf, as Equinox has them."""

    weight: jax.Array
    activation: Any


class Net(nnx.Module):
    def __init__(self, seed: int) -> None:
        rngs = nnx.Rngs(seed)
        self.layer = nnx.Linear(3, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)


def nnx_state(seed: int) -> Any:
    net = Net(seed)
    return nnx.state((net, nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)))


def mixed(number: int) -> Any:
    params = {"w": jnp.full((2, 3), number, jnp.bfloat16), "b": [jnp.arange(3.0) + number, None]}
    return {
        "params": params,
        "opt": optax.adamw(1e-3).init(params),
        "key": jax.random.key(number),
        "old_key": jax.random.PRNGKey(number),
        "host": np.full(3, number, np.int16),
        "position": number,
        "best": float(number),
        "done": bool(number),
        "name": "kept as it is in the tree that is restored into",
    }


@flax.struct.dataclass
class TrainState:
    step: jax.Array
    params: Any


@pytest.mark.parametrize(
    "make",
    [
        mixed,
        nnx_state,
        lambda n: Module(jnp.full(2, n), jax.nn.relu),
        lambda n: TrainState(jnp.int32(n), {"dense": {"kernel": jnp.full((2, 2), n)}}),
        lambda n: (np.float64(n), [jnp.float32(n)]),
        lambda n: jnp.full(3, n),
    ],
    ids=["mixed", "nnx", "module", "struct", "tuple", "array"],
)
def test_any_tree(tmp_path: Path, make: Any) -> None:
    state, like = make(1), make(0)
    restored = through_disk(tmp_path, state, like)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
        assert type(after) is type(before)
        if isinstance(before, jax.Array) and jnp.issubdtype(before.dtype, jax.dtypes.prng_key):
            before, after = jax.random.key_data(before), jax.random.key_data(after)
        assert getattr(after, "dtype", None) == getattr(before, "dtype", None)
        assert np.array_equal(after, before) if trees._is_saved(before) else after == before
        if isinstance(before, jax.Array):
            assert (after.committed, after.sharding) == (before.committed, before.sharding)


class Tensor:
    """Quacks like a tensor of torch."""

    def __init__(self, values: Any, kind: str = "float32") -> None:
        self._values = np.asarray(values, kind)
        self.dtype = f"torch.{kind}"
        self.shape = self._values.shape
        self.requires_grad = False

    def detach(self) -> Tensor:
        return self

    cpu = detach

    def numpy(self) -> Any:
        return self._values

    def new_tensor(self, values: Any) -> Tensor:
        return Tensor(values, str(self._values.dtype))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tensor) and self.dtype == other.dtype and np.array_equal(self._values, other._values)

    __hash__ = None  # type: ignore[assignment]


def everything(n: int, generator: Any) -> Any:
    return {
        "tensor": Tensor([n, n]),
        "counts": [Tensor(n, "int64"), np.float32(n), np.int16(n), np.bool_(n), np.complex64(n)],
        "generator": generator.bit_generator.state,  # texts, numbers, and integers of 128 bits
        "name": f"run \ud800 {n}",
        "bytes": bytes([n, 255]),
        "array of bytes": bytearray([n]),
        "numpy's": [np.str_(n), np.bytes_([n])],
        "nothing": None,
        "empty": np.zeros((0, n * 0 + 3), np.int8),
        "large": n * 10**30,
        "function": jax.nn.relu,
    }


def test_texts_tensors_and_large_numbers(tmp_path: Path) -> None:
    """Each comes back with its type; a generator goes on from its state."""
    generator = np.random.default_rng(3)
    generator.random(10)
    state = everything(7, generator)
    restored = through_disk(tmp_path, state, everything(8, np.random.default_rng(4)))
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for before, after in zip(jax.tree.leaves(state), jax.tree.leaves(restored), strict=True):
        assert type(after) is type(before)
        assert np.array_equal(after, before) if isinstance(before, np.ndarray) else after == before
    again = np.random.default_rng()
    again.bit_generator.state = restored["generator"]
    assert again.random() == generator.random()


def test_tensors_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    state = {"w": torch.full((2, 3), 7.0, requires_grad=True), "n": torch.tensor(7)}
    restored = through_disk(tmp_path, state, {"w": torch.zeros((2, 3), requires_grad=True), "n": torch.tensor(0)})
    assert torch.equal(restored["w"], state["w"]) and restored["w"].requires_grad
    assert restored["n"].dtype == torch.int64 and restored["n"] == 7


def test_a_checkpoint_from_before_texts_were_saved(tmp_path: Path) -> None:
    """Its arrays are restored, and the texts are those of the program."""
    through_disk(tmp_path, {"w": 7.0}, {"w": 0.0})
    meta = tmp_path / "1" / "meta" / "metadata"
    written = json.loads(meta.read_text())
    assert written.pop("texts") == {}
    meta.write_text(json.dumps(written))
    write_manifest(tmp_path / "1", flush_and_list(tmp_path / "1"))
    like = {"w": 0.0, "name": "x"}
    assert ProgramCheckpoints(tmp_path, like, Retention(1)).restore(1, like, Reporter(None)) == {"w": 7.0, "name": "x"}


def test_texts_that_nobody_has_saved(tmp_path: Path) -> None:
    through_disk(tmp_path, {"w": 7.0, "name": "x"}, {"w": 0.0, "name": ""})
    meta = tmp_path / "1" / "meta" / "metadata"
    for texts in (
        {"name": 3},
        {"name": ["str"]},
        {"name": ["file", "x"]},
        {"name": ["int", "x"]},
        [1],
        {"name": ["str", 1]},
    ):
        meta.write_text(json.dumps({**json.loads(meta.read_text()), "texts": texts}))
        write_manifest(tmp_path / "1", flush_and_list(tmp_path / "1"))
        with pytest.raises(DamagedCheckpointError, match="not the metadata of a checkpoint"):
            ProgramCheckpoints(tmp_path, {"w": 0.0, "name": ""}, Retention(1)).restore(
                1, {"w": 0.0, "name": ""}, Reporter(None)
            )


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([None]), np.array(1, "m8[s]"), np.zeros(1, "i4,i4")])
def test_arrays_that_cannot_be_saved_are_named(array: Any) -> None:
    with pytest.raises(UserError, match=r"x\.odd of the state is an array of .*, which cannot be saved"):
        trees.named_leaves({"x": {"odd": array}, "w": 0.0})


def test_divided_arrays(tmp_path: Path) -> None:
    """Each is laid out as in the tree that is restored into, whatever it was when it was saved."""
    divided, whole = (NamedSharding(MESH, spec) for spec in (PartitionSpec("data"), PartitionSpec()))
    values = np.arange(8.0)
    state = {"a": jax.device_put(values, divided), "b": jax.device_put(values, whole)}
    like = {"a": jax.device_put(np.zeros(8), whole), "b": jax.device_put(np.zeros(8), divided)}
    restored = through_disk(tmp_path, state, like)
    assert np.array_equal(restored["a"], values) and np.array_equal(restored["b"], values)
    assert (restored["a"].sharding, restored["b"].sharding) == (whole, divided)


def test_arrays_that_change_while_they_are_saved(tmp_path: Path) -> None:
    """The program goes on, and works in place."""
    state = {"x": np.zeros(1 << 20)}
    checkpoints = ProgramCheckpoints(tmp_path, state, Retention(1))
    checkpoints.save(1, state)
    state["x"] += 1
    checkpoints.completed(wait=True)
    assert not checkpoints.restore(1, state, Reporter(None))["x"].any()
    checkpoints.close()


def test_another_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError) as refused:
        through_disk(tmp_path, {"a": np.zeros(2), "b": 1}, {"a": np.zeros(3), "c": 1.0})
    assert str(refused.value).splitlines()[1:4] == [
        "  a: float64[2] in the checkpoint, float64[3] in the state",
        "  b: int[] in the checkpoint, not in the state",
        "  c: not in the checkpoint, float[] in the state",
    ]


def test_a_name_that_two_arrays_have() -> None:
    with pytest.raises(UserError, match="two arrays would be called 1"):
        trees.named_leaves(Both())


@jax.tree_util.register_pytree_with_keys_class
class Both:
    """A tree with the same name twice."""

    def tree_flatten_with_keys(self) -> Any:
        key = jax.tree_util.DictKey("1")
        return ((key, np.zeros(1)), (key, np.zeros(1))), None

    @classmethod
    def tree_unflatten(cls, data: None, children: Any) -> Both:
        return cls()

"""Models of users: the examples of the documentation train, are saved and restored; whatever is no model is refused."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podrun.runtime.checkpoint.store import Checkpoints
from podrun.runtime.contract import UserError
from podrun.runtime.parallel import layout
from podrun.runtime.parallel.arrays import merge_model_states
from podrun.runtime.parallel.base import Strategy
from podrun.runtime.state import to_dict

from ...tiers import mostly_long
from ..strategies import FEATURES, assert_identical, copies, dataset, job, make, train

pytest.importorskip("equinox", reason="the extra `test` has it")

DOCS = Path(__file__).parents[3] / "docs" / "plugins.md"
MODELS = DOCS.read_text().partition("\n## Models\n")[2]
EXAMPLES = {m[1]: m[0] for m in re.finditer(r"# (my_\w+)\.py\n.*?(?=```)", MODELS, re.S) if "Net" in m[0]}
LAYERS = re.search(r"# my_layers\.py\n.*?(?=```)", DOCS.read_text(), re.S)[0]  # type: ignore[index]
OPTIONS = {"inputs": FEATURES, "width": 32}
SOURCE = """
import jax
import jax.numpy as jnp
import flax.linen as nn
import equinox as eqx
from flax import nnx
from types import SimpleNamespace as Thing

class NNX(nnx.Module):
    def __init__(self, rngs): self.w = nnx.Param(jnp.zeros(3))
    def __call__(self, x, mask): return x

class Linen(nn.Module):
    def __call__(self, x, mask, train): return x

class NoCall(eqx.Module):
    w: jax.Array

class Synchronized(nn.Module):
    axis_name: str
    axis_index_groups: object = None
    @nn.compact
    def __call__(self, x, train=True):
        return nn.BatchNorm(not train, axis_name=self.axis_name, axis_index_groups=self.axis_index_groups)(x)[:, :4]

def params(key): return {"w": jnp.zeros(4)}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make the folder that modules of users are imported from."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("mine", "my_layers", *EXAMPLES):
        sys.modules.pop(name, None)


def strategy(module: str, name: str = "pmap", **keys: Any) -> Strategy:
    attribute = module if ":" in module else f"{module}:Net"
    return make(job(name, model={"name": attribute, "options": OPTIONS}, **keys), dataset())


def batch() -> Any:
    return dataset().train.gather(np.arange(16), np.zeros(16, np.int64))


def shapes() -> Any:
    return {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in batch().items()}


def test_the_documentation_has_an_example_of_each() -> None:
    assert EXAMPLES.keys() == {"my_linen", "my_nnx", "my_equinox", "my_functions"}


@pytest.mark.parametrize("example", mostly_long(EXAMPLES, lambda _, name: name in ("my_nnx", "my_functions")))
def test_examples_train(folder: Path, example: str) -> None:
    """Statistics move in training; they are saved, and another strategy goes on from them."""
    (folder / f"{example}.py").write_text(EXAMPLES[example])
    one = strategy(example)
    before = one.init()
    start = copies(one.savable(before))
    state, history = train(one, before, [batch()] * 2)
    assert history[1]["loss"] < history[0]["loss"]
    saved = copies(one.savable(state))
    statistics = [
        [x for x in jax.tree.leaves(of["model_state"]) if x.dtype == np.float32 and x.size > 1] for of in (start, saved)
    ]
    assert len(statistics[0]) == 2
    assert all(not np.array_equal(old, new) for old, new in zip(*statistics, strict=True))

    checkpoints = Checkpoints(folder / "checkpoints", one.config.checkpoint)
    checkpoints.save(2, one.savable(state), 0, one.config, b"", None)
    checkpoints.completed(wait=True)
    other = strategy(example, "jit fsdp 2")
    again = Checkpoints(folder / "checkpoints", one.config.checkpoint)
    restored = again.load(2, again.target(other.template, other.config, b""))
    placed = other.place(restored.state)
    assert_identical(copies(other.savable(placed)), saved)
    third = [train(s, x, [batch()])[1][0]["loss"] for s, x in ((one, state), (other, placed))]
    assert third[1] == pytest.approx(third[0], rel=1e-5)


def test_layers_in_a_loop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fsdp they are divided, but not their axis, and the losses are those of whole layers."""
    monkeypatch.setattr(layout, "SMALL", 100)
    (folder / "my_layers.py").write_text(LAYERS)
    muon = {"name": "muon", "learning_rate": 0.01}
    whole, parted = (strategy("my_layers:Tower", name, optimizer=muon) for name in ("pmap", "jit fsdp 2"))
    kernel = parted.abstract_state().params["layers"]["block_0"]["Dense_0"]["kernel"]
    assert (kernel.shape, [*kernel.sharding.spec]) == ((6, 32, 32), [None, "fsdp"])
    moments = [x.sharding.spec for x in jax.tree.leaves(parted.abstract_state().opt_state) if x.shape == (6, 32, 32)]
    assert moments == [kernel.sharding.spec]
    histories = [train(one, one.init(), [batch()] * 2)[1] for one in (whole, parted)]
    assert [x["loss"] for x in histories[1]] == pytest.approx([x["loss"] for x in histories[0]], rel=1e-5)
    (folder / "mine.py").write_text(LAYERS.replace('stacked = ("layers",)', 'stacked = ("blocks",)'))
    with pytest.raises(UserError, match=r"`stacked` names 'blocks', but its parameters are .*layers"):
        strategy("mine:Tower").abstract_state()


def test_functions_as_haiku_makes_them(folder: Path) -> None:
    """`hk.without_apply_rng(hk.transform(f))`: any arguments, and names of parameters with slashes."""
    (folder / "mine.py").write_text(
        SOURCE
        + """
def Net(options, outputs, dtype):
    def init(rng, *args, **kwargs): return {"mlp/~/linear": {"w": jnp.zeros((640, outputs)), "b": jnp.zeros(outputs)}}
    def apply(params, *args, **kwargs): return args[0] @ params["mlp/~/linear"]["w"] + params["mlp/~/linear"]["b"]
    return Thing(init=init, apply=apply)
"""
    )
    one = strategy("mine")
    state, history = train(one, one.init(), [batch()] * 2)
    assert history[1]["loss"] < history[0]["loss"]
    saved = copies(one.savable(state))
    checkpoints = Checkpoints(folder / "checkpoints", one.config.checkpoint)
    checkpoints.save(2, one.savable(state), 0, one.config, b"", None)
    checkpoints.completed(wait=True)
    restored = checkpoints.load(2, checkpoints.target(one.template, one.config, b""))
    assert_identical(copies(one.savable(one.place(restored.state))), saved)


@pytest.mark.parametrize("name", ["pmap", "shard_map", "explicit", "single"])
def test_state_of_all_types(folder: Path, name: str) -> None:
    """Floats become means over devices and parts, each from the state before the step; counts and flags stay exact."""
    (folder / "mine.py").write_text(
        SOURCE
        + """
class Net:
    def __init__(self, *args): pass
    def init(self, key):
        params = [{"w": jnp.zeros((640, 4))}, (jnp.zeros(4),)]
        numbers = {"total": jnp.zeros(()), "half": jnp.zeros(3, jnp.bfloat16)}
        return params, {**numbers, "count": jnp.int32(2**25), "on": jnp.array(False)}
    def apply(self, params, x, state):
        numbers = {"total": state["total"] + x[:, 0].sum(), "half": state["half"] + 1}
        return x @ params[0]["w"] + params[1][0], {**numbers, "count": state["count"] + 1, "on": ~state["on"]}
"""
    )
    one = strategy("mine", name, accumulate=2)
    state, _ = train(one, one.init(), [batch()])
    named = copies(one.savable(state))
    assert named["params"].keys() == {"0", "1"}
    after = named["model_state"]
    parts = 2 * one.shares
    assert after["total"] == pytest.approx(batch()["x"][:, 0].sum() / parts, rel=1e-4, abs=1e-5)
    assert (after["half"].dtype, after["half"].tolist()) == (jnp.bfloat16, [1, 1, 1])
    assert (after["count"].dtype, int(after["count"])) == (np.int32, 2**25 + 1)
    assert (after["on"].dtype, bool(after["on"])) == (np.bool_, True)


def test_each_member_of_an_ensemble_has_a_state(folder: Path) -> None:
    (folder / "my_linen.py").write_text(EXAMPLES["my_linen"])
    one = strategy("my_linen", "ensemble")
    state, _ = train(one, one.init(), [batch()])
    means = np.asarray(state.model_state["batch_stats"]["BatchNorm_0"]["mean"])
    assert len({row.tobytes() for row in means}) == jax.device_count()
    assert np.isfinite(one.scores(state, one.shard(batch()))["ensemble_loss"])
    assert one.result(state).state["batch_stats"]["BatchNorm_0"]["mean"].shape == (32,)


def test_no_state_no_name() -> None:
    """A model without state is saved under the names that it has always had."""
    one = make(job("pmap"), dataset())
    assert to_dict(one.abstract_state()).keys() == {"step", "params", "opt_state"}
    assert merge_model_states(None) is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def Net(o, n, d): pass", "returns None, expected a flax.linen.Module, or an object with `init` and `apply`"),
        (
            "def Net(o, n, d): return Linen()",
            "its `__call__` takes (self, x, mask, train), of which podrun does not know `mask`: give it a default, or take",
        ),
        (
            "def Net(o, n, d): return NNX(nnx.Rngs(0))",
            "a module of flax.nnx whose weights do not follow the job's seed",
        ),
        (
            "def Net(o, n, d): return NoCall(jnp.zeros(3))",
            "a module of equinox whose weights do not follow the job's seed",
        ),
        ("def Net(o, n, d, rngs): return nn.Dense(n)", "takes `rngs` and returns flax.linen.linear.Dense, expected"),
        (
            "def Net(o, n, d, rngs): return NNX(rngs)",
            "its `__call__` takes (self, x, mask), of which podrun does not know `mask`",
        ),
        (
            "def Net(o, rngs): return NNX(rngs)",
            "takes (o, rngs), but is called with (options, outputs, dtype, rngs=...)",
        ),
        ("def Net(o, n, d, key): return nn.Dense(n)", "takes `key` and returns flax.linen.linear.Dense, expected"),
        (
            "def Net(o, n, d, key): return NoCall(jnp.zeros(3))",
            "NoCall has no `__call__`, expected `__call__(self, x)`",
        ),
        ("def Net(o, n, d, key): return eqx.nn.Linear(640, 7, key=key)", "gives float32[16, 7] for 16 examples"),
        (
            "def Net(o, n, d): return Synchronized('devices')",
            "averages over an axis named 'devices', as a batch norm with `axis_name` does, but the axis over the shares of a "
            "batch is named 'batch'",
        ),
        ("def Net(o, n, d): return Thing(init=params)", "returns types.SimpleNamespace, expected a flax.linen.Module"),
        ("Net = Thing(init=params, apply=3)", "its `apply` is int, which cannot be called with (params, x)"),
        (
            "Net = Thing(init=params, apply=lambda params: 0)",
            "its `apply` takes (params), but is called with (params, x)",
        ),
        ("Net = Thing(init=lambda: 0, apply=lambda p, x: x)", "its `init` takes (), but is called with (key)"),
        ("Net = Thing(init=lambda key: None, apply=lambda p, x: x)", "its `init` returns None, expected parameters"),
        ("Net = Thing(init=lambda key: {'w': 'a'}, apply=lambda p, x: x)", "w is str, expected an array of numbers"),
        ("Net = Thing(init=lambda key: {'w': key}, apply=lambda p, x: x)", "w is a random key (key<fry>), expected"),
        ("Net = Thing(init=params, apply=lambda p, x: None)", "gives None for a batch, expected an array"),
        ("Net = Thing(init=params, apply=lambda p, x, state: x)", "its `init` returns dict, expected (params, state)"),
        (
            "Net = Thing(init=lambda key: (params(key), {'n': jnp.zeros(2)}), apply=lambda p, x, state: x[:, :4])",
            "its `apply` returns jax._src.interpreters.partial_eval.DynamicJaxprTracer, expected (outputs, state)",
        ),
        (
            "Net = Thing(init=lambda key: (params(key), {'n': jnp.zeros(2)}),"
            " apply=lambda p, x, state: (x[:, :4], {'n': jnp.zeros(3)}))",
            "its state n is float32[2] before a step and float32[3] after it; it must stay the same",
        ),
    ],
)
def test_what_is_no_model(folder: Path, code: str, reason: str) -> None:
    """Refused before the first step, with its file and what it has to be."""
    (folder / "mine.py").write_text(SOURCE + code)
    with pytest.raises(UserError) as raised:
        strategy("mine", "single").lowered(shapes())
    assert reason in str(raised.value)
    assert str(raised.value).startswith("model")


def test_groups_of_devices(folder: Path) -> None:
    """JAX has them where the program is that of one device."""
    (folder / "mine.py").write_text(SOURCE + "def Net(o, n, d): return Synchronized('batch', [[0, 1], [2, 3]])")
    assert strategy("mine", "pmap").lowered(shapes()).as_text()
    with pytest.raises(UserError, match=r"groups of devices .*which JAX supports under pmap and shard_map only"):
        strategy("mine", "explicit").lowered(shapes())


def test_a_line_search_refuses_state(folder: Path) -> None:
    (folder / "my_linen.py").write_text(EXAMPLES["my_linen"])
    one = strategy("my_linen")
    one.uses_line_search = True
    with pytest.raises(
        UserError, match="its line search computes the loss several times in a step, and model my_linen:Net"
    ):
        one.init()


def test_a_task_that_hides_the_model(folder: Path) -> None:
    """Its loss has to leave the new state behind."""
    (folder / "my_linen.py").write_text(EXAMPLES["my_linen"])
    (folder / "mine.py").write_text(
        "from podrun.runtime.tasks.classification import Classification\nimport jax\n"
        "class Task(Classification):\n"
        "    def loss(self, params, batch, key): return jax.checkpoint(super().loss)(params, batch, key)\n"
    )
    one = strategy("my_linen", task="mine:Task")
    with pytest.raises(UserError, match="its `loss` sets no new state of the model"):
        one.lowered(shapes())

"""A model's call gets arguments by name: it knows training from evaluation, whatever it calls the flag; nothing unasked."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podrun.runtime.contract import UserError
from podrun.runtime.models.adapter import Model
from podrun.runtime.models.users import adapt

pytest.importorskip("equinox", reason="the extra `test` has it")

Make = Callable[[str], Model]

FRAMEWORKS = {
    "linen": """
import flax.linen as nn
class Net(nn.Module):
    options: object
    outputs: int
    dtype: object
    @nn.compact
    def __call__(self, {signature}):
        return x * self.param("w", nn.initializers.ones, (1,)) + 10 * ({value})
""",
    "nnx": """
import jax.numpy as jnp
from flax import nnx
class Net(nnx.Module):
    def __init__(self, options, outputs, dtype, *, rngs):
        self.w = nnx.Param(jnp.ones(1))
    def __call__(self, {signature}):
        return x * self.w + 10 * ({value})
""",
    "equinox": """
import equinox as eqx
import jax
import jax.numpy as jnp
class Net(eqx.Module):
    w: jax.Array
    def __init__(self, options, outputs, dtype, key):
        self.w = jnp.ones(1)
    def __call__(self, {signature}):
        return x * self.w + 10 * ({value})
""",
    "plain": """
import jax.numpy as jnp
class Net:
    def __init__(self, options, outputs, dtype): pass
    def init(self, key): return {{"w": jnp.ones(1)}}
    def apply(self, params, {signature}):
        return x * params["w"] + 10 * ({value})
""",
}
X = jnp.ones((2, 1))
NAMES = ["train", "training", "is_training", "enable_dropout"]
"""Names of a flag that is True in training."""


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Make a user's model from its source."""
    monkeypatch.syspath_prepend(tmp_path)

    def made(source: str) -> Model:
        (tmp_path / "called.py").write_text(source)
        sys.modules.pop("called", None)
        return adapt("called:Net", options={}, outputs=1, dtype=jnp.float32)

    yield made
    sys.modules.pop("called", None)


def both(model: Model) -> list[float]:
    """Return the sum of the outputs in training and in an evaluation."""
    params, state = model.init(jax.random.key(0), X[:1])
    return [float(model.apply(params, state or None, X, key)[0].sum()) for key in (jax.random.key(1), None)]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("signature", ["x, {}: bool = {}", "x, *, {}: bool = {}", "x, mask=None, {}=None"])
def test_every_name_of_the_flag(make: Make, framework: str, signature: str) -> None:
    """With a default of either kind, by keyword only, or behind something else: it is told the truth, by name."""
    for number, (name, default) in enumerate(itertools.product(NAMES, [True, False])):
        source = FRAMEWORKS[framework].format(signature=signature.format(name, default), value=f"1 if {name} else 0")
        assert both(make(source)) == [22, 2], (number, name)
    for name in ("deterministic", "inference"):
        source = FRAMEWORKS[framework].format(signature=signature.format(name, True), value=f"0 if {name} else 1")
        assert both(make(source)) == [22, 2], name


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_has_a_default_and_another_name_gets_nothing(make: Make, framework: str) -> None:
    """As the positions and the segmentation of flax's lm1b."""
    signature = "x, inputs_positions=None, inputs_segmentation=None"
    value = "inputs_positions is not None or inputs_segmentation is not None"
    assert both(make(FRAMEWORKS[framework].format(signature=signature, value=value))) == [2, 2]


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("signature", ["x, mask", "x, train, /, mask", "x, *, mask"])
def test_a_parameter_that_podrun_does_not_know(make: Make, framework: str, signature: str) -> None:
    """Named at the start, before anything is trained."""
    with pytest.raises(UserError, match=r"called:Net .*called\.py.*mask" if "train" not in signature else "train"):
        make(FRAMEWORKS[framework].format(signature=signature, value="0"))


@pytest.mark.parametrize("framework", ["linen", "nnx", "equinox", "plain"])
def test_a_key(make: Make, framework: str) -> None:
    """A new one in each step, None in an evaluation."""
    value = "0 if key is None else jax.random.uniform(key, x.shape)"
    model = make("import jax\n" + FRAMEWORKS[framework].format(signature="x, key", value=value))
    params, state = model.init(jax.random.key(0), X[:1])
    drawn = [
        np.asarray(model.apply(params, state or None, X, key)[0]) for key in [*map(jax.random.key, (1, 1, 2)), None]
    ]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    assert np.array_equal(drawn[3], X)
    assert len(np.unique(drawn[0])) == 2


def test_rngs_of_nnx(make: Make) -> None:
    """They are for the layers that take theirs from the call, and None in an evaluation."""
    source = """
import jax.numpy as jnp
from flax import nnx
class Net(nnx.Module):
    def __init__(self, options, outputs, dtype, *, rngs):
        self.w = nnx.Param(jnp.ones(1))
        self.dropout = nnx.Dropout(0.5)
    def __call__(self, x, rngs):
        return self.dropout(jnp.broadcast_to(x * self.w, (len(x), 64)), rngs=rngs)
"""
    model = make(source)
    params, state = model.init(jax.random.key(0), X[:1])
    one, two, none = (
        np.asarray(model.apply(params, state or None, X, k)[0]) for k in (*map(jax.random.key, (1, 2)), None)
    )
    assert set(np.unique(one)) == {0, 2} and not np.array_equal(one, two)
    assert np.array_equal(none, np.ones((2, 64)))


def test_a_norm_as_in_the_resnet_of_flax(make: Make) -> None:
    """`train: bool = True`: statistics move in training, and are used in an evaluation."""
    source = """
import functools
import flax.linen as nn
class Net(nn.Module):
    options: object
    outputs: int
    dtype: object
    @nn.compact
    def __call__(self, x, train: bool = True):
        norm = functools.partial(nn.BatchNorm, use_running_average=not train, momentum=0.9)
        return norm()(x)
"""
    model = make(source)
    x = jnp.array([[3.0], [5.0]])
    params, state = model.init(jax.random.key(0), x[:1])
    outputs, after = model.apply(params, state, x, jax.random.key(1))
    assert np.allclose(outputs, [[-1], [1]], atol=1e-4)
    assert np.allclose(after["batch_stats"]["BatchNorm_0"]["mean"], 0.4)
    assert np.allclose(model.apply(params, state, x, None)[0], x, atol=1e-3)


def test_random_numbers_in_an_evaluation(make: Make) -> None:
    """Refused at the start: the first evaluation, maybe after days, would end the run."""
    source = """
import flax.linen as nn
class Net(nn.Module):
    options: object
    outputs: int
    dtype: object
    @nn.compact
    def __call__(self, x):
        return nn.Dropout(0.5, deterministic=False)(nn.Dense(3)(x))
"""
    with pytest.raises(UserError, match=r"fails in an evaluation \(InvalidRngError: .*let it take `train`"):
        make(source).init(jax.random.key(0), X[:1])
    norm = source.replace("nn.Dropout(0.5, deterministic=False)", "nn.BatchNorm(use_running_average=False)")
    with pytest.raises(
        UserError, match=r"fails in an evaluation \(ModifyScopeVariableError: .*its state stays as it is"
    ):
        make(norm).init(jax.random.key(0), X[:1])


@pytest.mark.parametrize("framework", ["nnx", "equinox", "plain"])
def test_a_key_that_an_evaluation_does_not_have(make: Make, framework: str) -> None:
    """As in Equinox's vision transformer, which splits its key whatever it is for."""
    source = FRAMEWORKS[framework].format(signature="x, key", value="jax.random.uniform(jax.random.split(key)[0])")
    with pytest.raises(UserError, match=r"called:Net .*fails in an evaluation .*its `key` is None"):
        make("import jax\n" + source).init(jax.random.key(0), X[:1])


def test_decorated_calls(make: Make) -> None:
    """The signature is that of the function within."""
    source = FRAMEWORKS["equinox"].format(signature="x, train=True", value="1 if train else 0")
    assert both(make(source.replace("    def __call__", "    @eqx.filter_jit\n    def __call__"))) == [22, 2]
    remat = "\nInner = Net\ndef Net(o, n, d): return nn.remat(Inner, static_argnums=(2,))(o, n, d)\n"
    source = FRAMEWORKS["linen"].format(signature="x, train=True", value="1 if train else 0")
    assert both(make(source + remat)) == [22, 2]

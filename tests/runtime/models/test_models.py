"""Models of arrays: their shapes, their parameters, and every way in which they are traced."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from podrun.runtime.config import Config
from podrun.runtime.contract import UserError
from podrun.runtime.models import make_model
from podrun.runtime.models.dropout import Dropout

MODELS: list[dict[str, Any]] = [
    {"name": "cnn", "features": [4, 8], "dense": 16},
    {"name": "cnn", "features": [4], "dense": 16, "dropout": 0.5},
    {"name": "mlp", "layers": 2, "width": 8, "activation": "gelu", "dropout": 0.5},
    {"name": "linear"},
]
SHAPE = (9, 8, 1)


def model(section: Any, shape: tuple[int, ...] = SHAPE, outputs: int = 3, dtype: str = "float32") -> Any:
    values = {"task": "classification", "data": "digits", "model": section, "steps": 2, "batch_size": 8}
    made: Any = make_model(Config.model_validate(values), shape, outputs, jnp.dtype(dtype))
    return made.module


def images(count: int = 8) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(count, *SHAPE)).astype(np.float32)


def params(module: Any) -> Any:
    """Random ones: those of the linear model are zero at first."""
    shapes = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, *SHAPE)))["params"]
    noise = np.random.default_rng(1)
    return jax.tree.map(lambda x: noise.normal(0, 0.3, x.shape).astype(np.float32), shapes)


# --- shapes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("section", MODELS, ids=str)
def test_outputs_and_parameters(section: dict[str, Any], dtype: str) -> None:
    """float32[B, outputs] from parameters that are float32, whatever the computation; named as optimizers expect."""
    module = model(section, dtype=dtype)
    variables = jax.eval_shape(module.init, jax.random.key(0), jnp.zeros((1, *SHAPE)))["params"]
    leaves = jax.tree_util.tree_leaves_with_path(variables)
    assert {leaf.dtype for _, leaf in leaves} == {jnp.dtype("float32")}
    assert {path[-1].key for path, _ in leaves} == {"kernel", "bias"}
    outputs = jax.eval_shape(module.apply, {"params": variables}, images(5))
    assert (outputs.shape, outputs.dtype) == ((5, 3), jnp.float32)


def test_cnn_is_that_of_the_mnist_example() -> None:
    """With its default sizes it has the parameters of Flax's example, and halves odd sizes downwards."""
    sizes = jax.eval_shape(model("cnn", (28, 28, 1), 10).init, jax.random.key(0), jnp.zeros((1, 28, 28, 1)))
    shapes = jax.tree.map(lambda x: x.shape, sizes["params"])
    assert {name: layer["kernel"] for name, layer in shapes.items()} == {
        "conv_0": (3, 3, 1, 32),
        "conv_1": (3, 3, 32, 64),
        "dense": (3136, 256),
        "head": (256, 10),
    }
    assert params(model(MODELS[0]))["dense"]["kernel"].shape == (2 * 2 * 8, 16)


def test_cnn_takes_images_without_channels() -> None:
    """[H, W] is one channel."""
    module = model(MODELS[0])
    with_channel = module.apply({"params": params(module)}, images(), True)
    without = module.apply({"params": params(module)}, images()[..., 0], True)
    np.testing.assert_array_equal(with_channel, without)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((20,), "model cnn takes images, [height, width, channels], but the examples have shape [20]"),
        ((3, 9, 1), "model.features: 2 convolutions halve an image 2 times, but the examples are 3x9; give at most 1"),
    ],
)
def test_cnn_without_images(shape: tuple[int, ...], message: str) -> None:
    """It refuses other shapes before anything is traced."""
    with pytest.raises(UserError, match=re.escape(message)):
        model(MODELS[0], shape)


def test_linear_starts_at_zero() -> None:
    """All outputs are then the same."""
    module = model("linear")
    variables = module.init(jax.random.key(0), jnp.zeros((1, *SHAPE)), True)
    assert not np.asarray(module.apply(variables, images(), True)).any()


def test_mlp_by_hand() -> None:
    """Its layers are what the section says."""
    module = model({"name": "mlp", "layers": 2, "width": 8, "activation": "tanh"})
    p = params(module)
    x = images().reshape(8, -1)
    for name in ("dense_0", "dense_1"):
        x = np.tanh(x @ p[name]["kernel"] + p[name]["bias"])
    expected = x @ p["head"]["kernel"] + p["head"]["bias"]
    np.testing.assert_allclose(module.apply({"params": p}, images(), True), expected, rtol=1e-4, atol=1e-5)


# --- dropout --------------------------------------------------------------------------------------------------------


def test_dropout_keeps_the_mean() -> None:
    """Each element is 0 or divided by what is kept of them; nothing happens without a rate, or if deterministic."""
    x = jnp.full((100, 100), 3.0)
    dropped = np.asarray(Dropout(0.25).apply({}, x, False, rngs={"dropout": jax.random.key(0)}))
    assert set(np.unique(dropped).tolist()) == {0, 4}
    assert (dropped == 0).mean() == pytest.approx(0.25, abs=0.02)
    np.testing.assert_array_equal(Dropout(0.25).apply({}, x, True), x)
    np.testing.assert_array_equal(Dropout(0.0).apply({}, x, False), x)


@pytest.mark.parametrize("section", MODELS[1:3], ids=str)
def test_models_drop(section: dict[str, Any]) -> None:
    """With another key another network; without dropout always the same."""
    module = model(section)

    def outputs(key: int, deterministic: bool) -> np.ndarray[Any, Any]:
        rngs = {"dropout": jax.random.key(key)}
        return np.asarray(module.apply({"params": params(module)}, images(), deterministic, rngs=rngs))

    assert not np.array_equal(outputs(0, False), outputs(1, False))
    np.testing.assert_array_equal(outputs(0, True), outputs(1, True))


# --- ways of being parallel -----------------------------------------------------------------------------------------


def gradients(module: Any) -> Callable[[Any, Any], Any]:
    """The loss, which is the mean of the squared outputs, and its gradients; with dropout."""

    def loss(p: Any, x: Any) -> jax.Array:
        return (module.apply({"params": p}, x, False, rngs={"dropout": jax.random.key(2)}) ** 2).mean()

    return jax.value_and_grad(loss)


def over_mesh(kind: AxisType) -> Callable[[Any, Any, Any], Any]:
    """jit with the batch split over both axes of a mesh."""

    def compute(function: Any, p: Any, x: Any) -> Any:
        mesh = jax.make_mesh((2, 2), ("data", "fsdp"), axis_types=(kind, kind))
        with jax.set_mesh(mesh):
            p = jax.device_put(p, NamedSharding(mesh, PartitionSpec()))
            x = jax.device_put(x, NamedSharding(mesh, PartitionSpec(("data", "fsdp"))))
            return jax.jit(function)(p, x)

    return compute


def by_shard_map(function: Any, p: Any, x: Any) -> Any:
    mesh = jax.make_mesh((4,), ("device",), axis_types=(AxisType.Auto,))
    by_device, whole = PartitionSpec("device"), PartitionSpec()

    def local(p: Any, x: Any) -> Any:
        p = jax.lax.pcast(p, "device", to="varying")
        return jax.lax.pmean(function(p, x), "device")

    return jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(whole, by_device), out_specs=whole, check_vma=True))(p, x)


def by_pmap(function: Any, p: Any, x: Any) -> Any:
    parts = x.reshape(4, -1, *x.shape[1:])
    pmapped = jax.pmap(lambda p, x: jax.lax.pmean(function(p, x), "d"), "d", in_axes=(None, 0), out_axes=None)
    return pmapped(p, parts)


WAYS = {
    "explicit": over_mesh(AxisType.Explicit),
    "jit": over_mesh(AxisType.Auto),
    "shard_map": by_shard_map,
    "pmap": by_pmap,
}


@pytest.mark.parametrize("section", MODELS, ids=str)
def test_gradients_over_four_devices(section: dict[str, Any]) -> None:
    """Every way of being parallel traces the model; without dropout, which differs by device, all give the same."""
    module = model(section)
    function = gradients(module)
    expected, expected_grads = jax.jit(function)(params(module), images())
    for way, over_devices in WAYS.items():
        loss, grads = over_devices(function, params(module), images())
        assert np.isfinite(loss), way
        if "dropout" not in section:
            assert float(loss) == pytest.approx(float(expected), rel=1e-4), way
            for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(expected_grads), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5, err_msg=way)

"""One MLP in four frameworks, as plug-ins of a job: a hidden layer, batch norm and dropout if asked for, the outputs."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import flax.core
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

WIDTH = 160
_NORM: dict[str, Any] = {"momentum": 0.9, "epsilon": 1e-5, "use_fast_variance": False}


def drop(key: jax.Array, rate: float, x: jax.Array) -> jax.Array:
    """Drop elements by a product, as podrun's own models do."""
    return x / (1 - rate) * jax.random.bernoulli(key, 1 - rate, x.shape).astype(x.dtype)


class LinenMLP(nn.Module):
    outputs: int
    norm: bool
    dropout: float
    axis: str | None

    @nn.compact
    def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
        x = nn.Dense(WIDTH, name="dense_0")(x)
        if self.norm:
            x = nn.BatchNorm(deterministic, **_NORM, axis_name=self.axis, name="norm")(x)
        x = jnp.tanh(x)
        if self.dropout and not deterministic:
            x = drop(self.make_rng("dropout"), self.dropout, x)
        result: jax.Array = nn.Dense(self.outputs, name="head")(x)
        return result


def linen_mlp(options: Any, outputs: int, dtype: Any) -> nn.Module:
    return LinenMLP(outputs, options["norm"], options["dropout"], options.get("axis"))


class NNXMLP(nnx.Module):
    def __init__(self, options: Any, outputs: int, dtype: Any, *, rngs: nnx.Rngs) -> None:
        self.dense_0 = nnx.Linear(options["features"], WIDTH, rngs=rngs)
        if options["norm"]:
            self.norm = nnx.BatchNorm(WIDTH, **_NORM, axis_name=options.get("axis"), rngs=rngs)
        if options["dropout"]:
            self.dropout = nnx.Dropout(options["dropout"], rngs=rngs)
        self.head = nnx.Linear(WIDTH, outputs, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self.dense_0(x)
        x = jnp.tanh(self.norm(x) if hasattr(self, "norm") else x)
        return self.head(self.dropout(x) if hasattr(self, "dropout") else x)


nnx_mlp = NNXMLP


class Dense(eqx.Module):
    kernel: jax.Array
    bias: jax.Array

    def __init__(self, inputs: int, outputs: int, key: jax.Array) -> None:
        self.kernel = jax.nn.initializers.lecun_normal()(key, (inputs, outputs))
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return x @ self.kernel + self.bias


class EquinoxMLP(eqx.Module):
    dense_0: Dense
    norm: eqx.nn.BatchNorm | None
    dropout: eqx.nn.Dropout
    head: Dense

    def __init__(self, options: Any, outputs: int, key: jax.Array) -> None:
        first, second = jax.random.split(key)
        self.dense_0 = Dense(options["features"], WIDTH, first)
        self.norm = eqx.nn.BatchNorm(WIDTH, "batch", momentum=0.9, mode="batch") if options["norm"] else None
        self.dropout = eqx.nn.Dropout(options["dropout"])
        self.head = Dense(WIDTH, outputs, second)

    def __call__(self, x: jax.Array, state: Any = None, key: jax.Array | None = None) -> Any:
        x = self.dense_0(x)
        if self.norm is not None:
            x, state = self.norm(x, state)
        x = self.head(self.dropout(jnp.tanh(x), key=key))
        return x if self.norm is None else (x, state)


def equinox_mlp(options: Any, outputs: int, dtype: Any, key: jax.Array) -> Any:
    if options["norm"]:
        return eqx.nn.make_with_state(EquinoxMLP)(options, outputs, key)
    return EquinoxMLP(options, outputs, key)


class Plain:
    """`apply` names no `state`."""

    def __init__(self, options: Any, outputs: int, dtype: Any) -> None:
        self.options, self.outputs = options, outputs

    def init(self, key: jax.Array) -> Any:
        sizes = {"dense_0": (self.options["features"], WIDTH), "head": (WIDTH, self.outputs)}
        keys = jax.random.split(key, 2)
        return {
            name: {"kernel": jax.nn.initializers.lecun_normal()(k, size), "bias": jnp.zeros(size[1])}
            for k, (name, size) in zip(keys, sizes.items(), strict=True)
        }

    def apply(self, params: Any, x: jax.Array) -> jax.Array:
        x = jnp.tanh(x @ params["dense_0"]["kernel"] + params["dense_0"]["bias"])
        return x @ params["head"]["kernel"] + params["head"]["bias"]


class PlainWithState(Plain):
    def init(self, key: jax.Array) -> Any:
        params = super().init(key)
        params["norm"] = {"scale": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)}
        return params, {"batch_stats": {"norm": {"mean": jnp.zeros(WIDTH), "var": jnp.ones(WIDTH)}}}

    def apply(self, params: Any, x: jax.Array, state: Any, key: jax.Array | None, train: bool) -> Any:  # type: ignore[override]
        x = x @ params["dense_0"]["kernel"] + params["dense_0"]["bias"]
        stats = state["batch_stats"]["norm"]
        now = self._statistics(x) if train else stats
        x = (x - now["mean"]) * jax.lax.rsqrt(now["var"] + 1e-5) * params["norm"]["scale"] + params["norm"]["bias"]
        x = jnp.tanh(x)
        if self.options["dropout"] and key is not None:
            x = drop(_flax_key(key), self.options["dropout"], x)
        stats = {name: 0.9 * stats[name] + 0.1 * now[name] for name in stats}
        return x @ params["head"]["kernel"] + params["head"]["bias"], {"batch_stats": {"norm": stats}}

    def _statistics(self, x: jax.Array) -> dict[str, jax.Array]:
        if self.options.get("axis") is None:
            return {"mean": x.mean(0), "var": x.var(0)}
        mean = jax.lax.pmean(x.mean(0), self.options.get("axis"))
        return {"mean": mean, "var": jax.lax.pmean(((x - mean) ** 2).mean(0), self.options.get("axis"))}


def plain_mlp(options: Any, outputs: int, dtype: Any) -> Plain:
    return (PlainWithState if options["norm"] else Plain)(options, outputs, dtype)


def _flax_key(key: jax.Array) -> jax.Array:
    """Return the key of the first random number that a module of flax draws."""
    derived: jax.Array = flax.core.apply(lambda scope: scope.make_rng("dropout"))({}, rngs={"dropout": key})
    return derived

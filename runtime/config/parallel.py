"""Sections of the parallelism strategies."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from .base import SELECTS, Choice, Named, Plugin, Positive, Section
from .model import Model, ModelSection
from .optimizer import Optimizer


class Mesh(Section):
    """The devices as a grid: `data` copies of the state, each on `fsdp` x `model` devices.

    Devices along `fsdp` hold parts of the state, which they gather to compute with (ZeRO-3). Those along `model` compute with
    parts of the matrices, for the same examples (tensor parallelism).
    """

    data: Literal[-1] | Positive = Field(
        -1, description="Copies of the state; -1: the number of devices divided by fsdp and model."
    )
    fsdp: Positive = Field(
        1, description="Devices that parameters and optimizer state are divided over; 1: each device has all."
    )
    model: Positive = Field(
        1, description="Devices that compute a part of each matrix, for the same examples (tensor parallelism)."
    )

    def problem(self, devices: int, slices: int = 1) -> str | None:
        """Return why this mesh does not fit `devices` devices in `slices` equal slices; None if it does."""
        copy = self.fsdp * self.model
        keys = "fsdp" if self.model == 1 else "model" if self.fsdp == 1 else "fsdp x model"
        if slices > 1 and (devices // slices) % copy:
            return (
                f"parallel.mesh.{keys} {copy} does not divide the {devices // slices} devices of each of the {slices} "
                f"slices, so layers would wait for the network between slices; it can be {_divisors(devices // slices)}"
            )
        if self.data == -1 and devices % copy:
            return (
                f"parallel.mesh.{keys} {copy} does not divide the {devices} devices of the slice; it can be "
                f"{_divisors(devices)}"
            )
        if self.data != -1 and self.data * copy != devices:
            sizes = " x ".join(f"{name} {size}" for name, size in self._sizes())
            return (
                f"parallel.mesh has {sizes} = {self.data * copy} places, but the slice has {devices} devices; "
                "give data: -1 for as many as there are, or a slice of that size"
            )
        return None

    def _sizes(self) -> list[tuple[str, int]]:
        return [("data", self.data), ("fsdp", self.fsdp), *([("model", self.model)] if self.model > 1 else [])]


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)


class ParallelSection(Section):
    """Base of the sections of strategies: the properties that the launcher needs."""

    divides_batch: ClassVar[bool] = True
    """False if every device that computes sees the whole batch."""
    model_per_device: ClassVar[bool] = False
    """True if each device trains a model of its own."""

    @property
    def grid(self) -> Mesh:
        """Return the mesh that the devices are arranged in."""
        return Mesh()

    def conflict(self, model: Model, optimizer: Optimizer) -> str | None:
        """Return why the strategy cannot train the model with the optimizer; None if it can."""
        return None


class _WholeState(ParallelSection):
    """Base of the strategies in which every device holds the whole state."""

    @model_validator(mode="before")
    @classmethod
    def _no_mesh(cls, values: Any) -> Any:
        if isinstance(values, dict) and "mesh" in values:
            raise ValueError(
                f"{values.get('name', 'pmap')} takes no mesh, because every device holds a whole model; "
                "remove it, or take parallel.name=jit or explicit, which divide a model (fsdp)"
            )
        return values


_MESH = "How the devices are arranged; give fsdp, or fsdp and model, for a model that is too large for one device."


def rule_pattern(rule: str) -> str:
    """Return a regular expression that matches full names, keys joined by dots, whose end `rule` matches."""
    return rf"(^|\.)(?:{rule})$"


def _check_rules(rules: dict[str, int]) -> dict[str, int]:
    for rule in rules:
        try:
            re.compile(rule_pattern(rule))
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{rule!r} is no regular expression: {error}") from None
    return rules


PartitionRules = Annotated[
    dict[str, int],
    AfterValidator(_check_rules),
    Field(
        description="Which dimension of a parameter mesh.model divides, by a regular expression that the end of its name "
        "matches, before the rules of the model: {dense.kernel: 1}; without its axis of layers, -1 is the last."
    ),
]


class _Divided(ParallelSection):
    """Base of the strategies that can divide the state."""

    mesh: Mesh = Field(Mesh(), description=_MESH)
    partition_rules: PartitionRules = {}

    @property
    def grid(self) -> Mesh:
        return self.mesh

    def conflict(self, model: Model, optimizer: Optimizer) -> str | None:
        if self.mesh.model == 1:
            if self.partition_rules:
                return "parallel.partition_rules are for an axis `model`; give parallel.mesh.model, or remove them"
            return None
        if not isinstance(model, ModelSection):
            return None  # its rules are known when it is loaded
        problem = model.model_axis_problem(self.mesh.model)
        if problem is None and not model.has_model_axis and not self.partition_rules:
            problem = (
                f"model {model.name} does not say which of its matrices are divided; give parallel.partition_rules, or "
                "take model: decoder"
            )
        return None if problem is None else f"parallel.mesh.model {self.mesh.model}: {problem}"


class Pmap(_WholeState):
    """`jax.pmap` over the local devices of each process, gradients averaged by `pmean`."""

    name: Literal["pmap"] = Field("pmap", description=SELECTS)


class Jit(_Divided):
    """`jax.jit` over a mesh: arrays carry their shardings, and the compiler inserts the communication."""

    name: Literal["jit"] = Field("jit", description=SELECTS)


class Explicit(_Divided):
    """Like jit, but with the sharding in the type of every array, checked while tracing."""

    name: Literal["explicit"] = Field("explicit", description=SELECTS)

    def conflict(self, model: Model, optimizer: Optimizer) -> str | None:
        if self.mesh.fsdp * self.mesh.model == 1 or optimizer.elementwise:
            return super().conflict(model, optimizer)
        return (
            f"parallel: explicit with fsdp or model does not know the shardings of what {optimizer.name} computes; "
            "take parallel.name=jit, or fsdp: 1"
        )


class ShardMap(_WholeState):
    """`jax.shard_map`: the program of one device, with the communication written out."""

    name: Literal["shard_map"] = Field("shard_map", description=SELECTS)


class Single(_WholeState):
    """One device of each process computes the whole batch: the baseline for the others."""

    divides_batch = False
    name: Literal["single"] = Field("single", description=SELECTS)


class Ensemble(_WholeState):
    """One model per device, each with its own seed, trained on the same data; predictions are averaged."""

    divides_batch = False
    model_per_device = True
    name: Literal["ensemble"] = Field("ensemble", description=SELECTS)

    def conflict(self, model: Model, optimizer: Optimizer) -> str | None:
        if getattr(model, "init_from", None) is not None:
            return (
                "parallel: ensemble with model.init_from: all members would begin with the same weights and see the same "
                "data; take another strategy, or leave init_from out"
            )
        if not (isinstance(model, ModelSection) and model.starts_at_zero):
            return None
        return (
            f"parallel: ensemble of {model.name} models, which all start from zeros and see the same data, would be copies "
            "of one; take another model, or another strategy"
        )


class ParallelPlugin(Plugin, ParallelSection):
    """The user's own strategy."""


Parallel = Annotated[Pmap | Jit | Explicit | ShardMap | Single | Ensemble | ParallelPlugin, Choice("pmap"), Named]

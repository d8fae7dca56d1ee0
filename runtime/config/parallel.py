"""Sections of the parallelism strategies."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from .base import SELECTS, Choice, Named, Plugin, Positive, Section
from .model import Model, ModelSection
from .optimizer import Optimizer


class Mesh(Section):
    """The devices as a grid of `data` rows: the `fsdp` devices of a row share one copy of the state (ZeRO-3)."""

    data: Literal[-1] | Positive = Field(
        -1, description="Copies of the state; -1: the number of devices divided by fsdp."
    )
    fsdp: Positive = Field(
        1, description="Devices that parameters and optimizer state are divided over; 1: each device has all."
    )

    def problem(self, devices: int, slices: int = 1) -> str | None:
        """Return why this mesh does not fit `devices` devices in `slices` equal slices; None if it does."""
        if slices > 1 and (devices // slices) % self.fsdp:
            fits = ", ".join(str(n) for n in range(1, devices // slices + 1) if devices // slices % n == 0)
            return (
                f"parallel.mesh.fsdp {self.fsdp} does not divide the {devices // slices} devices of each of the {slices} "
                f"slices, so parameters would be gathered between slices at each layer; it can be {fits}"
            )
        if self.data == -1 and devices % self.fsdp:
            fits = ", ".join(str(n) for n in range(1, devices + 1) if devices % n == 0)
            return (
                f"parallel.mesh.fsdp {self.fsdp} does not divide the {devices} devices of the slice; it can be {fits}"
            )
        if self.data != -1 and self.data * self.fsdp != devices:
            return (
                f"parallel.mesh has data {self.data} x fsdp {self.fsdp} = {self.data * self.fsdp} places, but the slice "
                f"has {devices} devices; give data: -1 for as many as there are, or a slice of that size"
            )
        return None


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


_MESH = "How the devices are arranged; give fsdp for a model that is too large for one device."


class Pmap(_WholeState):
    """`jax.pmap` over the local devices of each process, gradients averaged by `pmean`."""

    name: Literal["pmap"] = Field("pmap", description=SELECTS)


class Jit(ParallelSection):
    """`jax.jit` over a mesh: arrays carry their shardings, and the compiler inserts the communication."""

    name: Literal["jit"] = Field("jit", description=SELECTS)
    mesh: Mesh = Field(Mesh(), description=_MESH)

    @property
    def grid(self) -> Mesh:
        return self.mesh


class Explicit(ParallelSection):
    """Like jit, but with the sharding in the type of every array, checked while tracing."""

    name: Literal["explicit"] = Field("explicit", description=SELECTS)
    mesh: Mesh = Field(Mesh(), description=_MESH)

    @property
    def grid(self) -> Mesh:
        return self.mesh

    def conflict(self, model: Model, optimizer: Optimizer) -> str | None:
        if self.mesh.fsdp == 1 or optimizer.elementwise:
            return None
        return (
            f"parallel: explicit with fsdp does not know the shardings of what {optimizer.name} computes; "
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

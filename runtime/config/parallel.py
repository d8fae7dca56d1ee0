"""Parallelism strategies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag, model_validator

from .base import Named, Plugin, Positive, Section, choice


class Mesh(Section):
    """The devices as a grid: each row of `fsdp` of them holds one copy of the state, in as many parts (ZeRO-3)."""

    data: Literal[-1] | Positive = Field(-1, description="Copies of the state; -1: as many as there are devices for.")
    fsdp: Positive = Field(1, description="Parts that parameters and optimizer state are divided in; 1: whole.")

    def problem(self, devices: int) -> str | None:
        """Return why this mesh does not fit that many devices; None if it does."""
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


class _WholeState(Section):
    """Base of the strategies in which every device holds all of the state."""

    @model_validator(mode="before")
    @classmethod
    def _no_mesh(cls, values: Any) -> Any:
        if isinstance(values, dict) and "mesh" in values:
            raise ValueError(
                f"{values.get('name', 'pmap')} takes no mesh, because every device holds a whole model; "
                "remove it, or take parallel.name=jit or explicit, which divide a model (fsdp)"
            )
        return values


class Pmap(_WholeState):
    """`jax.pmap` over the local devices of each process, gradients averaged by `pmean`."""

    name: Literal["pmap"] = "pmap"


class Jit(Section):
    """`jax.jit` over a mesh: arrays say how they are laid out, the compiler inserts the communication."""

    name: Literal["jit"] = "jit"
    mesh: Mesh = Mesh()


class Explicit(Section):
    """As jit, but with the layout in the type of every array, checked while tracing."""

    name: Literal["explicit"] = "explicit"
    mesh: Mesh = Mesh()


class ShardMap(_WholeState):
    """`jax.shard_map`: the program of one device, with the communication written out."""

    name: Literal["shard_map"] = "shard_map"


class Single(_WholeState):
    """One device computes everything (in each process alike): the baseline for the others."""

    name: Literal["single"] = "single"


class Ensemble(_WholeState):
    """One model per device, each from a seed of its own, trained on the same data; predictions are averaged."""

    name: Literal["ensemble"] = "ensemble"


Parallel = Annotated[
    Annotated[Pmap, Tag("pmap")]
    | Annotated[Jit, Tag("jit")]
    | Annotated[Explicit, Tag("explicit")]
    | Annotated[ShardMap, Tag("shard_map")]
    | Annotated[Single, Tag("single")]
    | Annotated[Ensemble, Tag("ensemble")]
    | Annotated[Plugin, Tag("plugin")],
    choice("pmap", pmap=Pmap, jit=Jit, explicit=Explicit, shard_map=ShardMap, single=Single, ensemble=Ensemble),
    Named,
]

"""Compile a step for a pod, and report the memory and the communication that it needs."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from ..job_report import Buffer, Memory, Roofline, Traffic
from ..parallel.base import Strategy
from . import hlo
from .buffers import largest
from .loops import unknown_loops
from .moved import moved
from .roofline import roofline
from .traffic import PodMesh, traffic

_TOO_MUCH = re.compile(r"RESOURCE_EXHAUSTED|Ran out of memory|out of memory", re.IGNORECASE)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True)
class CompiledStep:
    """Result of compiling the step of a job."""

    memory: Memory | None
    """None if the step does not fit, or if the compiler does not report it."""
    needed: int | None
    """Bytes of memory that a device needs, as reported by the compiler; a lower bound if the step does not fit."""
    available: int | None
    """Bytes of a device's memory that the compiler can use. It reports them only if the step does not fit."""
    buffers: tuple[Buffer, ...]
    """The largest temporaries at the peak of memory."""
    traffic: tuple[Traffic, ...]
    roofline: Roofline | None
    """None if the step does not fit."""
    unknown_loops: int
    """Loops with an unknown number of iterations, so that `traffic` and `roofline` count them once."""
    seconds: float
    """Time to compile."""
    program: jax.stages.Compiled | None
    """None if the step does not fit."""


def compile_step(strategy: Strategy, lowered: jax.stages.Lowered, flops: float | None = None) -> CompiledStep:
    """Compile a lowered step.

    Args:
        strategy: the strategy that lowered the step; it gives the devices.
        lowered: the result of `Strategy.lowered`.
        flops: FLOPs of one device in a step, for the roofline; None: unknown.

    Raises:
        Exception: any error of the compiler, except that the devices have too little memory.
    """
    began = time.perf_counter()
    try:
        program = lowered.compile()
    except Exception as error:  # JaxRuntimeError, which older versions call XlaRuntimeError
        if not _TOO_MUCH.search(str(error)):
            raise
        needed, available = sizes(str(error))
        return CompiledStep(None, needed, available, (), (), None, 0, time.perf_counter() - began, None)
    seconds = time.perf_counter() - began
    memory = memory_of(program)
    text = hlo.read(program.as_text() or "")
    sent = traffic(text, mesh_of(strategy)) if strategy.pod.count > 1 else ()
    limits = roofline(strategy.pod.kind, strategy.config.precision.compute, flops, moved(text), sent)
    needed = memory.total if memory else None
    return CompiledStep(memory, needed, None, largest(text), sent, limits, unknown_loops(text), seconds, program)


def memory_of(program: jax.stages.Compiled) -> Memory | None:
    stats: Any = program.memory_analysis()
    if stats is None:
        return None
    return Memory(
        stats.argument_size_in_bytes,
        stats.output_size_in_bytes,
        stats.alias_size_in_bytes,
        stats.temp_size_in_bytes,
    )


def sizes(message: str) -> tuple[int | None, int | None]:
    """Return the bytes that are needed and available, from the compiler's message about too little memory.

    libtpu writes `the total memory required for HLO temporaries (22.97G) exceeds available HBM (15.75G)`, or
    `Used 17.21G of 15.75G hbm`.
    """
    for pattern in (
        r"Used (?P<needed>[\d.]+[KMGT]?) of (?P<available>[\d.]+[KMGT]?) hbm",
        r"\((?P<needed>[\d.]+[KMGT]?)\) exceeds available HBM \((?P<available>[\d.]+[KMGT]?)\)",
    ):
        if match := re.search(pattern, message):
            return _bytes(match["needed"]), _bytes(match["available"])
    return None, None


def _bytes(text: str) -> int:
    unit = text[-1] if text[-1] in _UNITS else ""
    return int(float(text.removesuffix(unit)) * _UNITS[unit])


def mesh_of(strategy: Strategy) -> PodMesh:
    """Return the mesh with the devices in the order of the step's program."""
    for leaf in jax.tree.leaves(strategy.abstract_state()):
        if isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh.devices.size == strategy.pod.count:
            mesh = leaf.sharding.mesh
            return PodMesh(tuple(mesh.axis_names), np.asarray(mesh.devices))
    return PodMesh(("device",), np.array(strategy.pod.all))

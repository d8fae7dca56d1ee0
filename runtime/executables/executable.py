"""Compile, serialize and load one executable, by public calls of JAX."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from typing import Any

import jax
from jax.experimental.serialize_executable import deserialize_and_load, serialize

_PAST_CACHE = {
    "jax_persistent_cache_min_compile_time_secs": float("inf"),  # writes nothing
    "jax_compilation_cache_include_metadata_in_key": True,  # finds nothing that was written under the usual key
}

_log = logging.getLogger("podrun")


def compile_anew(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compile without JAX's cache: XLA for CPUs loses functions when it serializes an executable from the cache."""
    before = {name: jax.config.values[name] for name in _PAST_CACHE}
    try:
        for name, value in _PAST_CACHE.items():
            jax.config.update(name, value)
        return lowered.compile()
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def pack(executable: jax.stages.Compiled) -> bytes | None:
    """Return the executable's serialized form; None if it has none, as when it calls functions of this process."""
    packed: bytes | None = attempt(lambda: zlib.compress(serialize(executable)[0], 1))
    return packed


def load(
    packed: bytes | None, lowered: jax.stages.Lowered, device: jax.Device | None = None
) -> jax.stages.Compiled | None:
    """Return the executable from its serialized form; None if that fails.

    Args:
        packed: the result of `pack`. Loading it runs code.
        lowered: the program from which it was compiled.
        device: the device that the executable is for; None: all of the pod.
    """
    if packed is None:
        return None
    devices = None if device is None else [device]
    executable: jax.stages.Compiled | None = attempt(
        lambda: deserialize_and_load(
            zlib.decompress(packed), lowered.in_tree, lowered.out_tree, execution_devices=devices
        )
    )
    return executable


def attempt(action: Callable[[], Any]) -> Any:
    """Return the action's result; None if it fails. Then this process compiles itself, and only time is lost."""
    try:
        return action()
    except Exception as error:
        _log.warning("a compiled program is not shared or kept: %s: %s", type(error).__name__, error)
        return None

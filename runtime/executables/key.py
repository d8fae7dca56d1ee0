"""The key of an executable, a compiled program: a digest of everything that it depends on.

The devices may be real ones or those of a topology, so that an executable for a pod that is not here yet is found
when the pod is.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import jax

from ..devices import Devices

_COMPILES = r"optimization|memory_fitting"
"""Names of JAX's settings that change what the compiler makes of a program."""
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_COMPILERS = {
    "tpu": ("libtpu",),
    "gpu": ("jax-cuda13-plugin", "jax-cuda12-plugin", "jax-rocm7-plugin", "jax-rocm60-plugin"),
}
"""Packages that have the compiler, by platform; that for CPUs is in jaxlib. The client of a topology names no version."""


def executable_key(lowered: jax.stages.Lowered, built_for: Mapping[str, str], device: int | None = None) -> str:
    """Return the key of an executable.

    Args:
        lowered: the program that is compiled. Its text, without locations in source files, is part of the key.
        built_for: the result of `built_for`.
        device: id of the device that it is for; None: all of the pod.
    """
    digest = hashlib.sha256()
    for part in (lowered.as_text(), *built_for.values(), *([] if device is None else [str(device)])):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def built_for(pod: Devices) -> dict[str, str]:
    """Return all that determines an executable besides its program, by name."""
    settings = (f"{name}={value}" for name, value in sorted(jax.config.values.items()) if re.search(_COMPILES, name))
    return {
        "devices": "\n".join(_describe(device, pod.platform) for device in pod.all),
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "compiler": _compiler(pod),
        "settings": "\n".join(settings),
        **{name: os.environ.get(name, "") for name in _FLAGS},
        "processor": processor() if pod.is_cpu else "",
    }


_DIFFERS = {
    "devices": "it is for other devices",
    "jax": "it was compiled with JAX {}, and {} is installed on {host}",
    "jaxlib": "it was compiled with jaxlib {}, and {} is installed on {host}",
    "compiler": "it was compiled with {}, and {} is installed on {host}",
    "settings": "settings of JAX differ on {host}",
    "XLA_FLAGS": "XLA_FLAGS was {} and is {} on {host}",
    "LIBTPU_INIT_ARGS": "LIBTPU_INIT_ARGS was {} and is {} on {host}",
    "processor": "{host} has another processor than the machine that compiled it",
}


def difference(then: Mapping[str, str], now: Mapping[str, str], host: str) -> str | None:
    """Return why an executable built for `then` does not fit `now`, on `host`; None if everything but its program agrees."""
    for name, words in _DIFFERS.items():
        if (old := then.get(name, "")) != (new := now.get(name, "")):
            return words.format(old or "none", new or "none", host=host)
    return None


def _describe(device: jax.Device, platform: str) -> str:
    place = f" {tuple(device.coords)} slice {getattr(device, 'slice_index', 0)}" if platform == "tpu" else ""
    return f"{device.id}@{device.process_index}:{device.device_kind}{place}"


def _compiler(pod: Devices) -> str:
    """Return name and version of the compiler. They are equal for real devices and for the devices of a topology."""
    names = _COMPILERS.get(pod.platform, ())
    installed = [] if pod.platform == "tpu" and _is_another_libtpu() else _installed(names)
    if installed or pod.is_cpu:
        return " ".join(installed)
    client = pod.all[0].client
    return f"{client.platform} {client.platform_version}"


def _installed(names: tuple[str, ...]) -> list[str]:
    rows = []
    for name in names:
        try:
            rows.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return rows


def _is_another_libtpu() -> bool:
    """Return whether TPU_LIBRARY_PATH names a library other than the installed package's, which JAX sets."""
    path, spec = os.environ.get("TPU_LIBRARY_PATH"), find_spec("libtpu")
    return bool(path and spec and spec.origin and Path(spec.origin).parent not in Path(path).parents)


def processor() -> str:
    """Describe the CPU for the key: model, instruction sets, and number of threads."""
    threads = f"{platform.machine()} {os.cpu_count()} {os.environ.get('NPROC', '')}"
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            first = file.read().split("\n\n")[0]
    except OSError:
        return threads
    names = ("vendor_id", "cpu family", "model", "stepping", "flags", "Features", "CPU ")
    return "\n".join([threads, *(line for line in first.splitlines() if line.startswith(names))])

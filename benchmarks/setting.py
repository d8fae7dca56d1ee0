"""Print the versions and the machine that a benchmark's numbers belong to."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def print_setting() -> None:
    """Print two lines: versions, and the machine with its load at this moment."""
    packages = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    print(f"versions: podrun {_commit()}, Python {platform.python_version()}, {packages}")
    one, five, _ = os.getloadavg()
    cores = len(os.sched_getaffinity(0))
    total, free = (_memory(name) for name in ("MemTotal", "MemAvailable"))
    print(
        f"machine: {cores} {'core' if cores == 1 else 'cores'} ({_processor()}), {free:.1f} of {total:.1f} GiB memory "
        f"available, load {one:.2f} ({five:.2f} over five minutes)\n",
        flush=True,
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Return podrun's version, with the commit of a checkout and whether it was changed since."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=, changed", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return _version("podrun")
    return f"{_version('podrun')} ({done.stdout.strip()})" if done.returncode == 0 else _version("podrun")


def _processor() -> str:
    """Return the model as Linux names it; ARM has none there."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _memory(name: str) -> float:
    """Return a line of /proc/meminfo in GiB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines[name].split()[0]) / 2**20

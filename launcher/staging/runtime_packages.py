"""The packages that podrun's runtime imports, for `podrun init`, `podrun check` and a start."""

from __future__ import annotations

import re
import sys
from pathlib import PurePosixPath
from typing import NamedTuple

NEEDED = {
    "jax": "0.10",
    "jaxlib": "0.10",
    "flax": "0.12.1",
    "optax": "0.2.8",
    "orbax-checkpoint": "0.12.5",
    "numpy": "1.26",
    "pydantic": "2.10",
    "pyyaml": "6.0.1",
}
"""Minimum version of each package, as in setup.cfg for the oldest Python."""
BELOW = {
    "jax": "0.13",
    "jaxlib": "0.13",
    "flax": "0.13",
    "optax": "0.3",
    "orbax-checkpoint": "0.13",
    "numpy": "3",
    "pydantic": "3",
    "pyyaml": "7",
}
"""First untested version of each package, which setup.cfg excludes."""
NEW_JAX, NEW_FLAX = "0.11.1", "0.12.9"
"""First versions of JAX and flax that need each other: older flax fails with this JAX, and older JAX with this flax."""
TENSORBOARD = "tensorboardX"
"""Optional package; without it, training writes no TensorBoard files."""
_DEPENDENCIES = {
    "jax": ("jaxlib", "numpy"),
    "flax": ("jax", "optax", "orbax-checkpoint", "pyyaml"),
    "orbax-checkpoint": ("jax", "pyyaml"),
    "optax": ("jax",),
    "podrun": tuple(NEEDED),
}
_EXTRAS = {"gpu": "[cuda12]", "tpu": "[tpu]"}
_PLAIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*(\[[^\]]*\])?\s*([<>=!~;(].*)?")

_JAX_SPACE, _CUDA_SPACE, _BARE_SPACE = 900 * 10**6, 5500 * 10**6, 100 * 10**6


class Lack(NamedTuple):
    """Packages that the runtime needs and a requirements.txt does not name."""

    names: tuple[str, ...]
    certain: bool
    """True if no other line of the file can provide them."""

    @property
    def lines(self) -> str:
        """Return the lines for requirements.txt that would provide them."""
        return ", ".join(map(pin, self.names))


def lacking(requirements: str) -> Lack | None:
    """Return the packages that the runtime needs and a requirements.txt does not name; None if it names all."""
    names, certain = _named(requirements)
    provided = set(names)
    while more := {name for known in provided for name in _DEPENDENCIES.get(known, ())} - provided:
        provided |= more
    certain &= provided <= {*NEEDED, *_DEPENDENCIES, TENSORBOARD.lower(), "libtpu"}
    missing = tuple(name for name in NEEDED if name not in provided)
    return Lack(missing, certain) if missing else None


def space_needed(requirements: str) -> int:
    """Return an estimate of an environment's size on disk in bytes, including temporary files of its build."""
    if re.search(r"cuda1|nvidia-|^torch\b", requirements, re.MULTILINE):
        return _CUDA_SPACE
    return _JAX_SPACE if {"jax", "flax", "jaxlib", "podrun"} & set(_named(requirements)[0]) else _BARE_SPACE


def pinned(kind: str) -> str:
    """Return a requirements.txt with the versions that are installed here, for slices of a kind: cpu, gpu or tpu."""
    lines = [
        "# What podrun's runtime imports, in the versions that `podrun init` found. Add what your job needs: at the next",
        "# start the environment on the hosts is extended by the new lines.",
        f"# Written with Python 3.{sys.version_info.minor}: an older one on the hosts may need older versions.",
    ]
    extra = {"jax": _EXTRAS.get(kind, "")}
    lines += [pin(name, extra.get(name, "")) for name in (*NEEDED, TENSORBOARD)]
    return "\n".join([*lines, f"# {pin('scikit-learn')}    # data: digits and make_classification", ""])


def pin(name: str, extra: str = "") -> str:
    """Return `name==version` for a package that is installed here, otherwise its supported range."""
    from importlib.metadata import PackageNotFoundError, version  # slow import that few runs need

    try:
        return f"{name}{extra}=={version(name)}"
    except PackageNotFoundError:
        return f"{name}{extra}>={NEEDED[name]},<{BELOW[name]}" if name in NEEDED else f"{name}{extra}"


def least_pythons(requirements: str) -> dict[str, tuple[int, int]]:
    """Return the minimum Python, such as (3, 12), for each line `name==version` whose version is installed here.

    Hosts with an older Python may be unable to install such lines, which `podrun init` writes.
    """
    from importlib.metadata import metadata

    least = {}
    for line in lines_that_count(requirements):
        if (match := _PLAIN.fullmatch(line)) and pin(match[1], match[2] or "") == line and "==" in line:
            known = metadata(match[1])
            needs = known["Requires-Python"] if "Requires-Python" in known else ""  # noqa: SIM401 - has no get()
            if bound := re.search(r">=\s*(\d+)\.(\d+)", needs):
                least[line] = int(bound[1]), int(bound[2])
    return least


def lines_that_count(requirements: str) -> list[str]:
    """Return the lines of a requirements.txt without comments and blank lines."""
    lines = (re.sub(r"(^|\s)#.*", "", line).strip() for line in requirements.splitlines())
    return [line for line in lines if line]


def _named(requirements: str) -> tuple[list[str], bool]:
    """Return the named packages, and True if the file can provide no others, as a URL or another file could."""
    names: list[str] = []
    certain = True
    for line in lines_that_count(requirements):
        if match := _PLAIN.fullmatch(line.partition(" @ ")[0]):
            names.append(_normal(match[1]))
        elif line.endswith(".whl"):
            names.append(_normal(PurePosixPath(line).name.partition("-")[0]))
        elif not line.startswith("-") or line.startswith(("-r", "--requirement", "-e", "--editable")):
            certain = False
    return names, certain


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()

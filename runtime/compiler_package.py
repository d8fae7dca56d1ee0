"""The packages that have the compilers of TPUs and GPUs: which ones this JAX asks for, and those that podrun keeps itself.

Standard library only, and importlib.metadata only where it is needed: the launcher of every program imports this module.
`python -m podrun.runtime.compiler_package tpu` prints the package for this interpreter as JSON.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

KEPT_COMPILERS = "PODRUN_COMPILERS"
"""Environment variable: the folder in which `podrun compile --install` keeps compilers."""
_MODULES = {"tpu": "libtpu", "cuda": "jax_cuda13_plugin"}
"""By platform: the package that has the compiler."""


@dataclass(frozen=True)
class CompilerPackage:
    """The compiler of a platform that belongs to this interpreter's JAX."""

    platform: str
    """`tpu` or `cuda`, which is also the name of podrun's extra."""
    module: str
    version: str
    """The version that JAX asks for, or the beginning of it, such as `0.0.42`; empty: any."""
    jax: str
    """Version of JAX."""
    installed: str | None
    """The version that is installed; empty if its version is unknown, None if the package is not installed."""
    tag: str = sys.implementation.cache_tag
    """The kind of interpreter, which the package is built for."""

    @property
    def name(self) -> str:
        """Return the package's name on the package index."""
        return self.module.replace("_", "-")

    @property
    def requirements(self) -> list[str]:
        """Return the requirements to install with pip."""
        if self.platform == "cuda":
            return [f"{self.name}=={self.version}", f"jax-cuda13-pjrt=={self.version}"]
        return [f"{self.name}=={self.version}.*" if self.version else self.name]

    @property
    def folder(self) -> str:
        """Return the name of the package's folder, which is inside the folder that the variable `KEPT_COMPILERS` names."""
        return f"{self.name}-{self.version or 'any'}-{self.tag}"

    @property
    def is_installed(self) -> bool:
        """Return whether this interpreter has the package, in the version that JAX asks for."""
        return self.installed is not None and self.belongs(self.installed)

    def belongs(self, version: str) -> bool:
        """Return whether `version` is one that JAX asks for. An unknown version, given as an empty string, counts as such."""
        return not version or not self.version or f"{version}.".startswith(f"{self.version}.")

    def version_in(self, folder: Path) -> str | None:
        """Return the version of the package in a folder; None if the package is not there."""
        from importlib.metadata import distributions

        versions = [one.version for one in distributions(name=self.name, path=[str(folder)])]
        return versions[0] if versions and (folder / self.module).is_dir() else None


def compiler_package(platform: str) -> CompilerPackage:
    """Return the compiler of a platform. Raises PackageNotFoundError if this interpreter has no JAX."""
    from importlib.metadata import PackageNotFoundError, requires, version

    module = _MODULES[platform]
    pinned = re.search(r"^libtpu==([\d.]+)\.\*", "\n".join(requires("jax") or []), re.MULTILINE)
    wanted = version("jaxlib") if platform == "cuda" else pinned[1] if pinned else ""
    installed = None
    if find_spec(module) is not None:
        try:
            installed = version(module.replace("_", "-"))
        except PackageNotFoundError:
            installed = ""
    return CompilerPackage(platform, module, wanted, version("jax"), installed)


def use_kept(platform: str) -> None:
    """Let this process import the compiler that `podrun install-compiler` stored, if none of the right version is installed.

    Call it before JAX is imported, because JAX then decides which libtpu it loads.
    Raises PackageNotFoundError if this interpreter has no JAX.
    """
    assert "jax" not in sys.modules
    package = compiler_package(platform)
    folder = Path(os.environ.get(KEPT_COMPILERS, ""), package.folder)
    if package.is_installed or KEPT_COMPILERS not in os.environ or package.version_in(folder) is None:
        return
    with contextlib.suppress(OSError):
        used_marker(folder).touch()
    sys.path.insert(0, str(folder))  # before one of another version
    importlib.invalidate_caches()


def used_marker(folder: Path) -> Path:
    """Return the file beside a stored compiler whose modification time is the time of the last use."""
    return folder.with_name(f"{folder.name}.used")


if __name__ == "__main__":
    print(json.dumps(asdict(compiler_package(sys.argv[1]))))

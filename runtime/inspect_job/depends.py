"""The files that an answer depends on: code outside installed packages, other files that were read, folders of packages."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path

from ..compiler_package import KEPT_COMPILERS

_NO_FILES = ("/proc/", "/sys/", "/dev/", "/etc/", "/run/")


def recorded() -> Callable[[], list[str]]:
    """Record the files that this process reads from now on. Return a function that returns their paths so far."""
    opened: set[str] = set()

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event != "open":
            return
        path, _, flags = args
        if isinstance(path, str | bytes) and isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_RDWR):
            opened.add(os.fsdecode(path))

    sys.addaudithook(hook)

    def paths() -> list[str]:
        packages = {os.path.realpath(str(one.locate_file(""))) for one in distributions()} - {os.getcwd()}
        installed = {*packages, *(os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib"))}
        packages |= {
            path for path in [os.environ.get(KEPT_COMPILERS)] if path
        }  # the next answer may be of another compiler
        modules = [name for module in [*sys.modules.values()] if (name := getattr(module, "__file__", None))]
        # Without bytecode, which Python writes beside the source when that is imported for the first time.
        files = {os.path.abspath(name) for name in (*(one for one in opened if not one.endswith(".pyc")), *modules)}
        used = {name for name in files if not name.startswith(_NO_FILES) and os.path.isfile(name)}
        return sorted(
            {*packages, *(name for name in used if not installed & {*map(str, Path(name).resolve().parents)})}
        )

    return paths

"""Tiny wheels, for environments that are built without a network."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def make_wheel(
    folder: Path,
    name: str,
    files: Mapping[str, str],
    version: str = "1.0",
    tag: str = "py3-none-any",
    needs: Sequence[str] = (),
    python: str = "",
) -> Path:
    """Write a wheel that installs `files` into site-packages. `needs`: its dependencies; `python`: its versions of Python."""
    wheel = folder / f"{name}-{version}-{tag}.whl"
    requires = "".join(f"Requires-Dist: {line}\n" for line in needs)
    requires += f"Requires-Python: {python}\n" if python else ""
    info = f"{name}-{version}.dist-info"
    contents = {
        **files,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    record = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, text in {**contents, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return wheel


def packages_of_this_python(folder: Path) -> Path:
    """Write a wheel that makes what is installed here visible in the environment that it is installed into."""
    paths = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    return make_wheel(folder, "outerpod", {"outerpod.pth": "\n".join(paths) + "\n"})

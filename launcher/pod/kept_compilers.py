"""The compilers of TPUs and GPUs that `podrun compile --install` has stored in podrun's folder.

podrun_home()/compilers/NAME        packages for one version of JAX and Python (`runtime/compiler_package.py` gives the name)
podrun_home()/compilers/NAME.used   modified when the compiler was used
"""

from __future__ import annotations

from pathlib import Path

from podrun.runtime.compiler_package import compiler_package, used_marker

from .home import age_of, podrun_home, private_folder

FOLDER = "compilers"


def kept_compilers() -> Path | None:
    """Return the folder of stored compilers; None without one. Raises UserError if another user could change it."""
    if not (podrun_home() / FOLDER).is_dir():
        return None
    return private_folder(FOLDER)


def has_compiler(platform: str) -> bool:
    """Return whether the compiler for `tpu` or `cuda` is installed for this interpreter or stored. Raises UserError."""
    from importlib.metadata import PackageNotFoundError  # not at the start of every program

    try:
        package = compiler_package(platform)
    except PackageNotFoundError:  # no JAX here
        return False
    folder = kept_compilers()
    return package.is_installed or (folder is not None and package.version_in(folder / package.folder) is not None)


def compiler_folders(older_than: float) -> tuple[list[Path], list[Path]]:
    """Return all stored compilers with their markers, and those that were not used for `older_than` seconds."""
    paths = [path for path in (podrun_home() / FOLDER).glob("*-*") if path.is_dir()]
    due = [path for path in paths if (age := age_of(used_marker(path))) is None or age >= older_than]
    return [*_with_markers(paths)], [*_with_markers(due)]


def _with_markers(paths: list[Path]) -> list[Path]:
    return [*paths, *(marker for path in paths if (marker := used_marker(path)).exists())]

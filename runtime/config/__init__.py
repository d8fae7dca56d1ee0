"""The schema of train.yaml: one validated, frozen object that says everything about a training job.

Nothing here imports JAX: the launcher validates a job where JAX is not installed. A section with a `name` is a seam: the
name selects a built-in choice, which has its own keys, or is `package.module:attribute`, the user's own code, which gets
`options`. All choices of a seam are in one file. Files are imported on first use, because a user program needs few of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .base import PLUGIN_PATTERN, Plugin, Section
    from .checks import (
        NamedFiles,
        check_files,
        check_slice,
        files_of,
        shrinking_problem,
        with_files,
        with_files_beside,
        with_files_in,
    )
    from .job import Config, SavedConfig, load_config, saved_config, train_schema
    from .launch import Launch
    from .sections import Checkpoint, LaunchSection, Variable

_FILES = {
    "base": ("PLUGIN_PATTERN", "Plugin", "Section"),
    "checks": (
        *("NamedFiles", "check_files", "check_slice", "files_of"),
        *("shrinking_problem", "with_files", "with_files_beside", "with_files_in"),
    ),
    "job": ("Config", "SavedConfig", "load_config", "saved_config", "train_schema"),
    "launch": ("Launch",),
    "sections": ("Checkpoint", "LaunchSection", "Variable"),
}
_FILE_OF = {name: file for file, names in _FILES.items() for name in names}

__all__ = [
    "PLUGIN_PATTERN",
    "Checkpoint",
    "Config",
    "Launch",
    "LaunchSection",
    "NamedFiles",
    "Plugin",
    "SavedConfig",
    "Section",
    "Variable",
    "check_files",
    "check_slice",
    "files_of",
    "load_config",
    "saved_config",
    "shrinking_problem",
    "train_schema",
    "with_files",
    "with_files_beside",
    "with_files_in",
]


def __getattr__(name: str) -> Any:
    if name not in _FILE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_FILE_OF[name]}", __name__), name)

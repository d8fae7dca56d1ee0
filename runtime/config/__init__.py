"""The schema of train.yaml: one validated, frozen object that says everything about a training job.

Nothing here imports JAX: the launcher validates a job where JAX is not installed. Sections that have a `name` are seams:
a built-in choice has its own keys, and `package.module:attribute` names the user's own code, which gets `options`. The
choices of a seam are in its file.
"""

from .base import PLUGIN_PATTERN, Plugin, Section
from .checks import NamedFiles, check_files, check_slice, files_of, shrinking_problem, with_files, with_files_beside
from .job import Config, load_config, saved_config, train_schema
from .sections import Checkpoint, Launch, Variable

__all__ = [
    "PLUGIN_PATTERN",
    "Checkpoint",
    "Config",
    "Launch",
    "NamedFiles",
    "Plugin",
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
]

"""Where the results of a run are kept: a shared folder, or the disk of process 0. A file for each kind."""

from __future__ import annotations

from ..contract import WorkerEnv
from .base import Storage
from .process_disk import ProcessDisk
from .shared_folder import SHARED_FOLDER


def make_storage(env: WorkerEnv, is_shared: bool) -> Storage:
    """Return the storage of a folder which all processes see, or else only process 0."""
    return SHARED_FOLDER if is_shared else ProcessDisk(env.host)

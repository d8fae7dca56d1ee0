"""Where a run's results are stored: a shared folder, the disk of process 0, or a bucket. One file per kind."""

from __future__ import annotations

from ..contract import Workdir, WorkerEnv
from ..worker.progress import Reporter
from .base import Storage
from .bucket import BucketStorage, spool_of
from .bucket_claim import Claim
from .bucket_client import Bucket
from .process_disk import ProcessDisk
from .shared_folder import SHARED_FOLDER

__all__ = ["make_storage", "open_bucket", "spool_of"]


def make_storage(env: WorkerEnv, is_shared: bool) -> Storage:
    """Return the storage for a folder. `is_shared`: all processes see the folder; otherwise only process 0 does."""
    return SHARED_FOLDER if is_shared else ProcessDisk(env.host)


def open_bucket(url: str, workdir: Workdir, env: WorkerEnv, reporter: Reporter) -> Storage:
    """Return the storage for a workdir in a bucket, claimed for this run by process 0.

    Raises:
        UserError: another run has claimed the workdir, or the bucket refuses access.
        UnavailableError: the bucket cannot be reached.
    """
    claim = None
    if env.process_id == 0:
        claim = Claim(Bucket(url, reporter.note), env, workdir.path)
        claim.take(reporter.note)
    return BucketStorage(url, workdir.path, claim, reporter.note)

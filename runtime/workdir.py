"""Process 0's hold on the workdir: one run at a time, and a token by which the other processes recognise it."""

from __future__ import annotations

import errno
import fcntl
import os
import time

from .contract import UserError, Workdir, WorkerEnv
from .progress import Reporter

_PATIENCE = 15.0  # seconds: longer than the agents of a launcher that was killed go on


def claim(workdir: Workdir, env: WorkerEnv, reporter: Reporter) -> None:
    """Makes the workdir, locks it until this process ends, and writes the token.

    Raises UserError if it cannot be written, or if another run has it.
    """
    try:
        workdir.path.mkdir(parents=True, exist_ok=True)
        _lock(workdir, env, reporter)
        workdir.token(env.run_id, env.attempt).touch()
    except OSError as error:
        raise UserError(
            f"workdir {workdir.path}: cannot write there: {error.strerror}; choose another with --workdir DIR"
        ) from None


def _lock(workdir: Workdir, env: WorkerEnv, reporter: Reporter) -> None:
    fd = os.open(workdir.lock, os.O_RDWR | os.O_CREAT, 0o644)  # stays open, and locked, as long as the process lives
    deadline = time.monotonic() + _PATIENCE
    told = False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                return  # a file system without locks
        owner = os.pread(fd, 100, 0).decode(errors="replace").strip() or "another run"
        if time.monotonic() > deadline:
            raise UserError(
                f"workdir {workdir.path} is in use by run {owner}; stop that run, or choose another with --workdir DIR"
            )
        if not told:
            told = True
            reporter.note(f"run {owner} still uses the workdir: waiting up to {_PATIENCE:g} s for its end")
        time.sleep(0.1)
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{env.run_id} on {env.host}, pid {os.getpid()}".encode(), 0)

"""Compile a job in the background, while the run waits in a queue or for its machines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from podrun.runtime.contract import UserError

from ..pod.home import private, private_folder
from ..pod.kept_compilers import has_compiler
from ..pod.slices import Slice
from ..pod.target import target_of
from ..request.request import Request
from ..staging.stored_executables import FOLDER

_LOG = "ahead.log"


class Compiling(NamedTuple):
    """A `podrun compile` in the background."""

    process: subprocess.Popen[bytes]
    slice: str
    log: Path

    @property
    def words(self) -> str:
        return f"podrun: compiling for {self.slice} meanwhile; its output is in {self.log}"

    def end(self) -> str | None:
        """End the compilation: the hosts are ready. Returns why its executables are not used; None if they are complete."""
        code = self.process.poll()
        if code is None:
            os.killpg(self.process.pid, signal.SIGTERM)  # the process that compiles, too
            self.process.wait()
            return "the hosts were ready before everything was compiled, so they compile as usual"
        lines = self.log.read_text(errors="replace").splitlines()
        return f"nothing was compiled before: {lines[-1].removeprefix('podrun: ') if lines else code}" if code else None


def compile_ahead(request: Request, slice: Slice) -> Compiling | None:
    """Start to compile in the background if the user asks for it, or by default if the slice's compiler is installed.

    Returns None if nothing is compiled.

    Raises:
        UserError: the user asks for it, and the job is a program or the folder cannot be written.
    """
    if not (_is_possible(slice) if request.compile_ahead is None else request.compile_ahead) or request.dry_run:
        return None
    if request.train is None:
        if request.compile_ahead is None:
            return None
        raise UserError("--compile-ahead is for a train.yaml; podrun does not know what a program compiles")
    pod = ["--pod", str(request.where.pod)] if request.where.pod else []
    words = ["compile", str(request.train), *request.overrides, "--slice", slice.name, *pod]
    try:
        log = private_folder(FOLDER) / _LOG
        with open(log, "w", opener=private) as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "podrun.launcher.cli", *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # it goes on after the end of this process
            )
    except OSError as error:
        raise UserError(f"cannot compile while the run waits: {error.strerror}: {error.filename}") from None
    return Compiling(process, slice.name, log)


def _is_possible(slice: Slice) -> bool:
    """Return whether the compiler of the slice is installed here."""
    try:
        target = target_of(slice)
        return target is not None and has_compiler(target.platform)
    except UserError:  # a slice that the compiler knows otherwise, or compilers that another user could change
        return False

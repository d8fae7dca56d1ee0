"""`podrun compile --install`: put the compiler of TPUs or GPUs into podrun's own folder, so that no environment changes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from podrun.runtime.compiler_package import CompilerPackage, used_marker
from podrun.runtime.contract import ExitCode, UserError

from ..pod.home import install_command, private, private_folder
from ..pod.kept_compilers import FOLDER
from ..request.kept_answers import interpreter
from ..request.train_file import read_config
from ..view.waiting import lock_or_wait, waiting

_NEW = "new-"
"""Prefix of the names of folders into which pip is installing."""
_NEEDED = {"tpu": "680 MB", "cuda": "400 MB"}
_ELSEWHERE = "make room there, or set PODRUN_HOME to another folder"


def install_compiler(platform: str, train: Path | None, overrides: Sequence[str]) -> int:
    """Install the compiler that belongs to the JAX of a job's interpreter. Returns 0, or 1 if pip fails.

    Args:
        platform: `tpu` or `cuda`.
        train: the job whose `launch.python` compiles; None: this interpreter.
        overrides: overrides of the job.

    Raises:
        UserError: a mistake in the job, no JAX or pip in the interpreter, or no folder for the compiler.
    """
    python = interpreter(read_config(train, overrides).launch.python if train else None)
    package = _wanted(python, platform)
    if package.is_installed:
        print(f"{package.name} {package.installed} is installed for {python} already")
        return ExitCode.DONE
    pip = _pip(python)
    with _alone() as (folder, lock):
        target = folder / package.folder
        if (version := package.version_in(target)) is None:
            version = _install(pip, package, folder, lock)
            if version is None:
                return ExitCode.FAILED
            made = f"{package.name} {version}, for JAX {package.jax} and {package.tag}, is now in {target}"
        else:
            made = f"{package.name} {version} is in {target} already"
    print(f"{made}; inspect, fit and compile find it there")
    return ExitCode.DONE


def _wanted(python: str, platform: str) -> CompilerPackage:
    """Return the compiler package for the JAX of an interpreter. Raises UserError."""
    command = [python, "-m", "podrun.runtime.compiler_package", platform]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    except OSError as error:
        raise UserError(f"{python}: {error.strerror}") from None
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise UserError(f"{python} does not have podrun and JAX ({reason}); install them: {install_command(python)}")
    return CompilerPackage(**json.loads(done.stdout))


def _pip(python: str) -> list[str]:
    """Return the command that installs packages built for an interpreter. Raises UserError."""
    if subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0:
        return [python, "-m", "pip", "install", "--disable-pip-version-check", "--only-binary", ":all:"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", python, "--only-binary", ":all:"]
    raise UserError(f"{python} has no pip, and there is no uv in the PATH; `{python} -m ensurepip` installs pip")


@contextmanager
def _alone() -> Iterator[tuple[Path, TextIO]]:
    """Yield the folder of compilers and its lock; first wait for another podrun that is installing. Raises UserError."""
    try:
        folder = private_folder(FOLDER)
        lock = open(folder / "lock", "w", opener=private)
    except OSError as error:
        raise UserError(f"cannot keep a compiler in {error.filename}: {error.strerror}; {_ELSEWHERE}") from None
    with lock:
        lock_or_wait(lock, "installs a compiler")
        for rest in folder.glob(f"{_NEW}*"):  # of one that was killed
            shutil.rmtree(rest, ignore_errors=True)
        yield folder, lock


def _install(pip: list[str], package: CompilerPackage, folder: Path, lock: TextIO) -> str | None:
    """Let pip install the package. Returns its version; None if pip failed, after printing why."""
    needed = f"{package.name}, {_NEEDED[package.platform]}"
    try:
        with tempfile.TemporaryDirectory(prefix=_NEW, dir=folder) as work:
            new = Path(work, "packages")
            command = [*pip, "--quiet", "--no-deps", "--target", str(new), *package.requirements]
            # On the same disk as the folder; and a user's setting --user contradicts --target.
            env = {**os.environ, "TMPDIR": work, "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0"}
            with waiting(f"downloading {needed}"):
                # pip holds the lock as well, so that nobody touches its folder if podrun is killed.
                done = subprocess.run(
                    command, env=env, capture_output=True, text=True, errors="replace", pass_fds=[lock.fileno()]
                )
            version = package.version_in(new) if not done.returncode else None
            if version is None or not package.belongs(version):
                print(
                    f"podrun: {' and '.join(package.requirements)} cannot be installed: {_reason(done)}",
                    file=sys.stderr,
                )
                return None
            target = folder / package.folder
            shutil.rmtree(target, ignore_errors=True)  # damaged: without its version
            new.rename(target)
            used_marker(target).touch()
    except OSError as error:
        print(f"podrun: cannot keep {needed}, in {folder}: {error.strerror}; {_ELSEWHERE}", file=sys.stderr)
        return None
    return version


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """Return why pip failed, and what to do."""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("error:")]
    reason = errors[0] if errors else (lines or ["pip installed something else"])[-1]
    if "No space left" in done.stderr:
        return f"no space left on the disk; {_ELSEWHERE}"
    if "onnection" in done.stderr or "resolution" in done.stderr:
        return "no index of packages can be reached; pip's settings of index and proxy hold"
    return reason

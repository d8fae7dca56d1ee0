"""Wheels for hosts without a package index: this machine downloads them for the hosts' Python, and keeps them.

podrun_home()/wheels/KEY/     the wheels of a requirements.txt for one kind of interpreter; KEY is a digest of both
    wheels.json               their names
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from podrun.runtime.contract import UserError
from podrun.runtime.wording import megabytes

from ..pod.home import age_of, podrun_home, private_folder
from .find_data import set_of_files
from .runtime_packages import lines_that_count

if TYPE_CHECKING:
    from ..agent.base.from_agent import WheelTarget

FOLDER = "wheels"
_LIST = "wheels.json"
NEW = "new-"
"""Prefix of the names of folders into which pip is downloading."""
_ABANDONED = 24 * 3600.0  # seconds after which such a folder belongs to a podrun that was killed
_UNUSED = 30 * 24 * 3600.0  # seconds after which the wheels of a requirements.txt are removed
_LIMIT = 3600.0  # seconds for pip
_FOLDER = re.compile(r"(?:--find-links|-f)[\s=]*((?!\S*://)\S+)")
_FILE = re.compile(r"((?!\S*://)\S+\.whl)\b")
_WORD = re.compile(r"[A-Za-z0-9_]{1,40}")
_LIBC = re.compile(r"2\.(\d{1,3})|")
_OLDEST = 5  # manylinux_2_5 is the oldest tag of wheels
_OLD_NAMES = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
"""Tags from before glibc's version was part of them."""
_PROGRESS = re.compile(r"(Downloading|Using cached|Processing) (\S+\.whl)( \(\d[^)]*B\))?")
_NONE_FITS = re.compile(r"No matching distribution found for (\S+)")
_OTHERS = re.compile(r"\(from versions: ([^)]*)\)")
_NO_ANSWER = "Retrying (Retry(total=0,"
"""pip's last try to reach an index."""
_CONFLICT = "The conflict is caused by:"
_MOST_VERSIONS = 5
"""Versions that are named in an error."""


@dataclass(frozen=True)
class Target:
    """The interpreter for which wheels are downloaded."""

    python: str
    """Its version, such as `3.12.4`."""
    machine: str
    glibc: int | None
    """Minor version of glibc 2; None: another C library."""

    def __str__(self) -> str:
        libc = "" if self.glibc is None else f" with glibc 2.{self.glibc}"
        return f"Python {self._minor} on Linux {self.machine}{libc}"

    @property
    def _minor(self) -> str:
        return ".".join(self.python.split(".")[:2])

    @property
    def options(self) -> list[str]:
        """Return the options by which pip chooses wheels for it."""
        platforms = [f"linux_{self.machine}"]
        for minor in range(_OLDEST, (self.glibc or 0) + 1):
            platforms += [f"manylinux_2_{minor}_{self.machine}"]
            platforms += [f"{_OLD_NAMES[minor]}_{self.machine}"] if minor in _OLD_NAMES else []
        chosen = ["--python-version", self.python, "--implementation", "cp", "--only-binary", ":all:"]
        return [*chosen, *(option for name in reversed(platforms) for option in ("--platform", name))]

    @property
    def markers(self) -> dict[str, str]:
        """Return the values of the markers of requirements on it."""
        return {
            "implementation_name": "cpython",
            "implementation_version": self.python,
            "os_name": "posix",
            "platform_machine": self.machine,
            "platform_python_implementation": "CPython",
            "platform_system": "Linux",
            "python_full_version": self.python,
            "python_version": self._minor,
            "sys_platform": "linux",
        }


@dataclass(frozen=True)
class Wheels:
    """The wheels of a requirements.txt."""

    files: tuple[Path, ...]

    @property
    def pins(self) -> str:
        """Return a requirements.txt with the version of each wheel."""
        return "".join(f"{'=='.join(file.name.split('-')[:2])}\n" for file in self.files)

    def __str__(self) -> str:
        size = megabytes(sum(file.stat().st_size for file in self.files))
        return f"{len(self.files)} {'wheel' if len(self.files) == 1 else 'wheels'}, {size}"


def target_of(answer: WheelTarget) -> Target:
    """Check what a host says about its interpreter. Raises UserError."""
    libc = _LIBC.fullmatch(answer["libc"])
    if not _WORD.fullmatch(answer["machine"]) or libc is None:
        raise UserError(f"no wheels can be chosen for a host with {answer['machine']!r} and glibc {answer['libc']!r}")
    if answer["implementation"] != "cpython":
        raise UserError(
            f"the hosts' Python is {answer['implementation']}, and wheels are sent for CPython only; name one with `python:` "
            "in the pod file"
        )
    return Target(answer["version"], answer["machine"], int(libc[1]) if libc[1] else None)


def download_wheels(requirements: Path, target: Target, tell: Callable[[str], None]) -> Wheels:
    """Return the wheels of a requirements.txt with their dependencies. Downloads them, unless they were kept.

    Args:
        requirements: the file, whose options, such as an index, hold.
        target: the interpreter for which the wheels are.
        tell: called with the progress.

    Raises:
        UserError: a package has no wheel for the interpreter, or pip failed.
    """
    try:
        lines = lines_that_count(requirements.read_text(encoding="utf-8"))
        _remove_unused()
        folder = private_folder(FOLDER) / _key(lines, wheels_here(requirements), target)
        if _is_complete(folder):
            os.utime(folder)
        else:
            shutil.rmtree(folder, ignore_errors=True)
            _download(requirements, target, folder, tell)
        return Wheels(tuple(sorted(folder.glob("*.whl"))))
    except OSError as error:
        raise UserError(
            f"cannot keep the wheels of {requirements} in {error.filename or podrun_home()}: {error.strerror}; make room "
            "there, or set PODRUN_HOME to another folder"
        ) from None


def wheel_folders(older_than: float) -> tuple[list[Path], list[Path]]:
    """Return all folders of wheels, and those that were not used for `older_than` seconds."""
    folders = [*(podrun_home() / FOLDER).glob("*")]
    return folders, [path for path in folders if (age := age_of(path)) is not None and age >= older_than]


def wheels_here(requirements: Path) -> str:
    """Return a digest of the wheels on this machine that the lines of a requirements.txt name; empty: they name none.

    A wheel that is built again under the same version is another one. Raises UserError for a file that cannot be read.
    """
    files: list[Path] = []
    for line in lines_that_count(requirements.read_text(encoding="utf-8")):
        if match := _FOLDER.match(line):
            files += sorted((requirements.parent / Path(match[1]).expanduser()).glob("*.whl"))
        elif match := _FILE.match(line):
            files.append(requirements.parent / Path(match[1]).expanduser())
    return set_of_files(files).name if files else ""


def _is_complete(folder: Path) -> bool:
    """Return whether all wheels are there: a podrun that removed them may have been killed."""
    try:
        names: list[str] = json.loads((folder / _LIST).read_text())
    except (OSError, ValueError):
        return False
    return {path.name for path in folder.glob("*.whl")} == {*names}


def _key(lines: list[str], here: str, target: Target) -> str:
    wanted = json.dumps([lines, here, target.options, target.markers])
    return hashlib.sha256(wanted.encode()).hexdigest()[:32]


def _remove_unused() -> None:
    for folder in private_folder(FOLDER).iterdir():
        limit = _ABANDONED if folder.name.startswith(NEW) else _UNUSED
        if (age := age_of(folder)) is not None and age > limit:
            shutil.rmtree(folder, ignore_errors=True)


def _download(requirements: Path, target: Target, folder: Path, tell: Callable[[str], None]) -> None:
    """Download the wheels, and give `folder` its name when they are complete. Raises UserError, OSError."""
    if importlib.util.find_spec("pip") is None:
        raise UserError(
            f"{sys.executable} has no pip, which downloads packages for the hosts; `python -m ensurepip` adds it"
        )
    started = time.monotonic()
    tell(f"downloading the packages of {requirements.name} for {target}")
    with tempfile.TemporaryDirectory(prefix=NEW, dir=folder.parent, ignore_cleanup_errors=True) as work:
        new = Path(work, "wheels")
        arguments = ["download", "--dest", str(new), "-r", str(requirements.resolve()), *target.options]
        lines = run_pip(arguments, target, work, requirements.parent, tell)
        if lines is not None:
            raise UserError(_reason(lines, requirements, target))
        strange = [path.name for path in new.iterdir() if path.suffix != ".whl"]
        if strange:
            raise UserError(
                f"{requirements}: {', '.join(strange)} is source code, and hosts without a package index need wheels; build "
                "one with `pip wheel` on a machine like the hosts, and name its path"
            )
        (new / _LIST).write_text(json.dumps([path.name for path in new.iterdir()]))
        try:
            new.rename(folder)
        except OSError:
            if not _is_complete(folder):  # another podrun was faster
                raise
    tell(
        f"downloaded {Wheels(tuple(folder.glob('*.whl')))} in {time.monotonic() - started:.1f} s; they are kept in {folder}"
    )


def run_pip(
    arguments: list[str], target: Target, work: str, folder: Path, tell: Callable[[str], None]
) -> list[str] | None:
    """Run pip. Returns None, or its output if it failed. Raises OSError.

    Args:
        arguments: those of pip.
        target: the interpreter for which it chooses.
        work: folder for its temporary files.
        folder: the one that relative paths of wheels begin in: that of the requirements.
        tell: called with the progress.
    """
    options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    # -P: what lies in the folder is not imported.
    program = [sys.executable, "-P", "-m", "podrun.launcher.staging.pip_for_target", json.dumps(target.markers), "--"]
    env = {**os.environ, "TMPDIR": work, "PIP_REQUIRE_VIRTUALENV": "0", "PYTHONUNBUFFERED": "1"}
    lines: list[str] = []
    with subprocess.Popen(
        [*program, *arguments, *options],
        env=env,
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        limit = threading.Timer(_LIMIT, process.kill)
        limit.start()
        try:
            for line in process.stdout:
                lines.append(line.strip())
                if match := _PROGRESS.match(line.strip()):
                    tell(f"{match[1].lower()} {match[2].rpartition('/')[2]}{match[3] or ''}")
        finally:
            limit.cancel()
    return lines if process.returncode else None


def _reason(lines: list[str], requirements: Path, target: Target) -> str:
    """Return why pip could not download the packages, and what to do."""
    text = "\n".join(lines)
    if "No space left" in text:
        return f"no space is left for the packages of {requirements} in {podrun_home()}; make room, or set PODRUN_HOME"
    match, others = _NONE_FITS.search(text), _OTHERS.search(text)
    versions = [] if others is None or others[1] == "none" else others[1].split(", ")
    if _NO_ANSWER in text and not versions:
        return (
            f"this machine cannot download the packages of {requirements}: no package index can be reached (pip's settings "
            "of index and proxy hold); call podrun where one can be"
        )
    if match is not None:
        package, name = match[1], re.split(r"[^A-Za-z0-9._-]", match[1])[0]
        only = f", only of {', '.join(versions[-_MOST_VERSIONS:])}" if versions else ", or there is no such package"
        return (
            f"{package} of {requirements} has no wheel for {target}{only}; choose another version, another Python with "
            f"`python:` in the pod file, or build a wheel with `pip wheel {name}` on a machine like the hosts, and add "
            f"a line `--find-links FOLDER` with its folder here to {requirements.name}"
        )
    if _CONFLICT in lines:
        conflict = [
            line
            for line in takewhile(lambda line: not line.startswith("To fix"), lines[lines.index(_CONFLICT) :])
            if line
        ]
        return "\n  ".join(
            [f"the packages of {requirements} contradict each other; change one of these lines:", *conflict[1:]]
        )
    errors = [line for line in lines if line.startswith("ERROR:") and line != "ERROR: Exception:"]
    errors = errors or [line for line in lines if line]
    return f"pip cannot download the packages of {requirements} for {target}:\n" + "\n".join(
        f"  {e}" for e in errors[-4:]
    )

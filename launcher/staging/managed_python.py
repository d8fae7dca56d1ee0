"""uv, and a Python for hosts without a network: this machine downloads them for the hosts' kind of machine, and keeps them.

podrun_home()/wheels/KEY/    uv's wheel, or the archive of one Python
    pythons.json             what uv needs to know of the archive: its name and its digest

uv is the one version whose digests are written here. It knows the digest of every Python that it installs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from podrun.runtime.contract import UserError
from podrun.runtime.wording import megabytes

from ..agent.base.from_agent import WheelTarget
from ..agent.base.places import DOWNLOADS
from ..pod.home import podrun_home, private_folder
from .wheels import FOLDER, NEW, Target, run_pip

_UV = "0.13.9"
_DIGESTS = {
    "x86_64": "d7f459fe4fd247d830351c75686d3996ace3c6f3f728eb0e85a30b7ada0cef19",
    "aarch64": "5435c5ce14a56431208ca0996416d310f1598e8c2c8ba707688985a16bb82dbe",
}
"""SHA-256 of uv's wheel for each kind of machine."""
_GLIBC = 17  # minor version of the glibc that these wheels need
_LIMIT = 1800.0  # seconds for uv
_MIRRORS = ("UV_PYTHON_INSTALL_MIRROR", "UV_PYTHON_DOWNLOADS_JSON_URL")
_PATH = "name an interpreter that the hosts have by its path, with `python:` in the pod file"
Tell = Callable[[str], None]


@dataclass(frozen=True)
class PythonFiles:
    """Files from which a host can install a Python."""

    files: tuple[Path, ...]
    version: str | None
    """Its version, such as 3.12.4; None: the host downloads the newest one itself."""


class _Download(TypedDict):
    """A Python that uv can download, as `uv python list` prints it. Other keys are ignored."""

    key: str
    """Its name, such as cpython-3.12.4-linux-x86_64-gnu."""
    version: str
    version_parts: dict[str, int]
    arch: str
    os: str
    libc: str
    url: str


def fetch_python(version: str, target: WheelTarget, *, archive: bool, tell: Tell) -> PythonFiles:
    """Return uv for a host, and the archive of a Python if the host has no network. Downloads them, unless they were kept.

    Args:
        version: such as 3.12 or 3.12.4.
        target: any interpreter of the host, which tells its machine and its C library.
        archive: whether the host needs the archive.
        tell: called with the progress.

    Raises:
        UserError: there is no such Python for the host, or this machine cannot download it.
    """
    machine, libc = target["machine"], target["libc"]
    if machine not in _DIGESTS:
        raise UserError(
            f"podrun brings Python to machines of type {' and '.join(_DIGESTS)}, and this is {machine[:40]!r}; {_PATH}"
        )
    if not libc:
        raise UserError(f"podrun brings Python to machines with glibc, and this one has another C library; {_PATH}")
    try:
        uv = _fetch_uv(machine, tell)
        if not archive:
            return PythonFiles((uv,), None)
        folder = _fetch_archive(version, machine, tell)
        [about] = json.loads((folder / DOWNLOADS).read_text()).values()
        full = f"{about['major']}.{about['minor']}.{about['patch']}"
        return PythonFiles((uv, *sorted(folder.iterdir())), full)
    except OSError as error:
        raise UserError(
            f"cannot keep Python {version} for the hosts in {error.filename or podrun_home()}: {error.strerror}; make room "
            "there, or set PODRUN_HOME to another folder"
        ) from None


def _fetch_uv(machine: str, tell: Tell) -> Path:
    """Return the wheel of uv. Raises UserError, OSError."""
    folder = private_folder(FOLDER) / f"uv-{_UV}-{machine}"
    wheel = _wheel_in(folder)
    if wheel is not None and _digest(wheel) == _DIGESTS[machine]:
        os.utime(folder)
        return wheel
    _remove_broken(folder)
    if importlib.util.find_spec("pip") is None:
        raise UserError(f"{sys.executable} has no pip, which downloads uv for the hosts; `python -m ensurepip` adds it")
    target = Target("3.12.0", machine, _GLIBC)
    with tempfile.TemporaryDirectory(prefix=NEW, dir=folder.parent, ignore_cleanup_errors=True) as work:
        new = Path(work, "uv")
        arguments = ["download", "--dest", str(new), "--no-deps", f"uv=={_UV}", *target.options]
        lines = run_pip(arguments, target, work, Path(work), tell)
        wheel = None if lines else _wheel_in(new)
        if wheel is None:
            errors = [line for line in lines or [] if line.startswith("ERROR:")]
            raise UserError(
                f"this machine cannot download uv {_UV}, which installs Python on the hosts: "
                f"{errors[0].removeprefix('ERROR: ') if errors else 'pip has no wheel of it'}; pip's settings of index and "
                f"proxy hold; or {_PATH}"
            )
        digest = _digest(wheel)
        if digest != _DIGESTS[machine]:
            raise UserError(
                f"{wheel.name}, as pip has downloaded it, is not the published one: its SHA-256 is {digest}, not "
                f"{_DIGESTS[machine]}; look at pip's settings of index and proxy, or {_PATH}"
            )
        _keep(new, folder)
    return next(folder.glob("uv-*.whl"))


def _wheel_in(folder: Path) -> Path | None:
    return next(folder.glob("uv-*.whl"), None)


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_whole(folder: Path) -> bool:
    """Return whether the folder has the archive of a Python, with its digest. Raises OSError."""
    try:
        [about] = json.loads((folder / DOWNLOADS).read_text()).values()
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return any(_digest(path) == about["sha256"] for path in folder.iterdir() if path.name != DOWNLOADS)


def _remove_broken(folder: Path) -> None:
    """Remove a folder, of which an interrupted removal has left a part, if it exists. Raises OSError."""
    if folder.is_dir():
        with tempfile.TemporaryDirectory(prefix=NEW, dir=folder.parent, ignore_cleanup_errors=True) as work:
            folder.rename(Path(work, folder.name))  # at once: no other podrun sees half of it


def _keep(new: Path, folder: Path) -> None:
    """Give a complete folder its name. Another podrun may have been faster. Raises OSError."""
    try:
        new.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _fetch_archive(version: str, machine: str, tell: Tell) -> Path:
    """Return the folder with the archive of a Python and with what uv must know of it. Raises UserError, OSError."""
    wanted = json.dumps([_UV, version, machine, *(os.environ.get(name) for name in _MIRRORS)])
    folder = private_folder(FOLDER) / hashlib.sha256(wanted.encode()).hexdigest()[:32]
    if _is_whole(folder):
        os.utime(folder)
        return folder
    _remove_broken(folder)
    here = platform.machine()
    if here not in _DIGESTS:
        raise UserError(f"this machine is of type {here}, for which there is no uv to download Python with; {_PATH}")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=NEW, dir=folder.parent, ignore_cleanup_errors=True) as work:
        uv = _Uv(_fetch_uv(here, tell), Path(work))
        about = uv.find(version, machine)
        full = f"{about['version']} for Linux {machine}"
        tell(f"downloading Python {full}")
        new = Path(work, "python")
        archive = uv.download(about["key"], new)
        digest = _digest(archive)
        (new / DOWNLOADS).write_text(json.dumps({about["key"]: _entry(about, digest)}))
        size = archive.stat().st_size
        _keep(new, folder)
    tell(f"downloaded Python {full}, {megabytes(size)}, in {time.monotonic() - started:.1f} s; it is kept in {folder}")
    return folder


def _entry(about: _Download, digest: str) -> dict[str, object]:
    """Return the entry for a Python in uv's table of downloads."""
    return {
        "name": "cpython",
        "arch": {"family": about["arch"], "variant": None},
        "os": about["os"],
        "libc": about["libc"],
        **about["version_parts"],
        "prerelease": "",
        "url": about["url"],
        "sha256": digest,
        "variant": None,
        "build": "",
    }


class _Uv:
    """uv on this machine, unpacked for one download."""

    def __init__(self, wheel: Path, work: Path) -> None:
        self._work = work
        self._program = work / "program"
        with zipfile.ZipFile(wheel) as archive:
            inside = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
            with archive.open(inside) as program, self._program.open("wb") as file:
                shutil.copyfileobj(program, file)
        self._program.chmod(0o700)

    def find(self, version: str, machine: str) -> _Download:
        """Return what uv knows of the newest such Python. Raises UserError."""
        key = f"cpython-{version}-linux-{machine}-gnu"
        answer = self._run("python", "list", key, "--only-downloads", "--output-format", "json")
        rows = json.loads(answer.stdout) if answer.returncode == 0 else []
        if answer.returncode or not rows:
            why = "" if answer.returncode == 0 else f": {_causes(answer.stderr)}"
            raise UserError(
                f"there is no Python {version} to bring to a machine of type {machine}{why}; choose another version with "
                f"`python:` in the pod file, or {_PATH}"
            )
        row: _Download = rows[0]
        return row

    def download(self, key: str, folder: Path) -> Path:
        """Download the archive of a Python into a new folder; uv compares its digest. Returns its path. Raises UserError."""
        folder.mkdir()
        target = self._work / "installed"
        install = ("python", "install", key, "--no-bin", "--install-dir", str(target))
        answer = self._run(*install, UV_PYTHON_CACHE_DIR=str(folder))
        if answer.returncode:
            raise UserError(
                f"this machine cannot download {key}: {_causes(answer.stderr)}; uv's own settings hold, such as "
                f"{_MIRRORS[0]}; or {_PATH}"
            )
        return next(path for path in folder.iterdir() if not path.name.startswith("."))

    def _run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        cache = {"UV_CACHE_DIR": str(self._work / "cache"), "UV_NO_PROGRESS": "1"}
        try:
            return subprocess.run(
                [self._program, *arguments],
                env={**os.environ, **cache, **env},
                cwd=self._work,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LIMIT,
            )
        except subprocess.TimeoutExpired:
            raise UserError(f"uv has downloaded no Python within {_LIMIT / 60:g} minutes; run podrun again") from None


def _causes(output: str) -> str:
    """Return the errors of uv in one line: the first two, and the last. uv wraps its lines."""
    causes = [" ".join(part.split()) for part in re.split(r"^\s*(?:cause|error): ", output, flags=re.MULTILINE)[1:]]
    return ": ".join(causes if len(causes) < 4 else [*causes[:2], causes[-1]])

"""Managed Pythons: a version that the pod file asks for, kept once on a host that has no such interpreter.

home/pythons/VERSION-MACHINE/       one Python
    uv                              the program that installed it, and that builds its environments
    cpython-.../bin/python3.12      the interpreter
    podrun.json                     marks the folder as complete

The launcher sends uv as a data set. uv downloads Python, whose digest it knows, or takes the archive that was sent with it.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
import zipfile
from typing import TYPE_CHECKING, Dict, List, NamedTuple, Optional, Tuple

from ..base.disk import check_space, names_in
from ..base.places import DOWNLOADS, data_set_folder, pythons_folder
from ..base.private import is_private, private_path
from ..base.problem import Problem, cannot_write
from ..base.python_version import minor_of
from ..base.tool import Say, ToolError, Tools
from .build_lock import LOCK_LIMIT, BuildLock, full_disk_problem, write_whole
from .environment import BUILD_LIMIT, LacksWheelsError
from .packages import InterpreterError, ask_target
from .store import DONE, environments_of, flush, in_use, lock_path

if TYPE_CHECKING:
    from ..base.from_agent import WheelTarget

SPACE = 250 * 10**6  # bytes of uv and one Python, measured with 3.12
_ASK_LIMIT = 20.0  # seconds for an interpreter to import venv
_CHECK = "import sys, venv, ensurepip; print('.'.join(map(str, sys.version_info[:3])))"
_NAME = "name an interpreter that the hosts have by its path"

REMEDY_NO_PYTHON = (
    "write `offline: true` in the pod file, and the machine on which podrun was called downloads Python and the packages "
    "and sends them; or name a mirror (`env: {UV_PYTHON_INSTALL_MIRROR: ...}`); or " + _NAME
)


class ManagedPython(NamedTuple):
    """An interpreter of the version that was asked for."""

    python: str
    uv: Optional[str]
    """The uv that was brought with it; None: the host has this Python by itself."""


def find_version(home: str, version: str, env: Dict[str, str]) -> Optional[ManagedPython]:
    """Return a Python of this version that the host has by itself, or that was brought before; None if there is none."""
    of_the_host = _on_path(version, env)
    return ManagedPython(of_the_host, None) if of_the_host else _installed(_folder(home, version))


class ManagedPythons:
    """The managed Pythons below `home`."""

    def __init__(self, home: str, tools: Tools, say: Say) -> None:
        self._home = home
        self._tools = tools
        self._say = say

    def ensure(self, version: str, sent: str) -> ManagedPython:
        """Return a Python of this version. Installs it if there is none.

        Args:
            version: such as 3.12 or 3.12.4.
            sent: data set with uv; empty: the launcher has not sent it yet.

        Raises:
            LacksWheelsError: it is missing, and the launcher must first send uv.
            Problem: it cannot be installed.
        """
        ready = find_version(self._home, version, self._tools.env)
        if ready is None or ready.uv is not None:
            folder = _folder(self._home, version)
            with BuildLock(lock_path(*os.path.split(folder)), "Python", self._tools, self._say):
                ready = _installed(folder)
                if ready is None:
                    if not sent:
                        raise LacksWheelsError(_target(), python=True)
                    ready = self._install(folder, version, sent)
                in_use(folder)
        return ready

    def _install(self, folder: str, version: str, sent: str) -> ManagedPython:
        shutil.rmtree(folder, ignore_errors=True)
        source = data_set_folder(self._home, sent)
        try:
            private_path(folder)
            check_space(folder, SPACE, "Python %s" % version)
            uv = _unpack_uv(source, folder)
            self._run_uv(uv, folder, version, source)
            python = _interpreter_in(folder, version)
            if python is None:
                raise Problem("uv has installed no Python %s in %s" % (version, folder), _NAME)
            self._try(python, version)
            flush(folder)
        except OSError as error:
            raise cannot_write(folder, error)
        write_whole(os.path.join(folder, DONE), json.dumps({"python": os.path.relpath(python, folder)}))
        return ManagedPython(python, uv)

    def _run_uv(self, uv: str, folder: str, version: str, source: str) -> None:
        env = {**self._tools.env, "UV_CACHE_DIR": os.path.join(folder, "cache"), "UV_NO_PROGRESS": "1"}
        downloads = os.path.join(source, DOWNLOADS)
        if os.path.exists(downloads):  # the archive is here, under the name by which uv keeps it
            env.update(UV_PYTHON_DOWNLOADS_JSON_URL=downloads, UV_PYTHON_CACHE_DIR=source, UV_OFFLINE="1")
            self._say("installing Python %s, as it was sent" % version)
        else:
            self._say("downloading Python %s" % version)
        argv = [uv, "python", "install", "cpython-%s" % version, "--no-bin", "--install-dir", folder]
        try:
            self._tools.run(argv, self._say, BUILD_LIMIT, env)
        except ToolError as error:
            raise full_disk_problem(folder, argv, str(error)) or _why_not_installed(version, str(error))
        finally:
            shutil.rmtree(env["UV_CACHE_DIR"], ignore_errors=True)

    def _try(self, python: str, version: str) -> None:
        try:
            self._tools.run([python, "-I", "-c", _CHECK], self._say, _ASK_LIMIT)
        except ToolError as error:
            raise Problem("Python %s was brought, and does not work here: %s" % (version, error), _NAME)


def _folder(home: str, version: str) -> str:
    return os.path.join(pythons_folder(home), "%s-%s" % (version, platform.machine()))


def _installed(folder: str) -> Optional[ManagedPython]:
    """Return the Python that was installed completely in a folder; None if there is none."""
    try:
        with open(os.path.join(folder, DONE), encoding="utf-8") as file:
            python = os.path.join(folder, str(json.load(file)["python"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not (is_private(folder) and os.access(python, os.X_OK)):
        return None
    return ManagedPython(python, os.path.join(folder, "uv"))


def _on_path(version: str, env: Dict[str, str]) -> Optional[str]:
    """Return an interpreter in PATH that has this version and can make virtual environments; None if there is none."""
    python = shutil.which("python%s" % minor_of(version), path=env.get("PATH"))
    if python is None:
        return None
    clean = {name: value for name, value in env.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    try:
        asked = subprocess.run(
            [python, "-I", "-c", _CHECK],
            env=clean,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_ASK_LIMIT,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = asked.stdout.decode(errors="replace").split() if asked.returncode == 0 else []
    here = words[-1] if words else ""
    return os.path.abspath(python) if version in (here, minor_of(here)) else None


def _target() -> WheelTarget:
    try:
        return ask_target(sys.executable, dict(os.environ))
    except InterpreterError as error:
        raise Problem("no Python can be chosen for this host: %s" % error, _NAME)


def _unpack_uv(source: str, folder: str) -> str:
    """Unpack uv from its wheel, whose digest was checked when it arrived. Returns the program. Raises Problem, OSError."""
    target = os.path.join(folder, "uv")
    try:
        wheel = next(name for name in sorted(os.listdir(source)) if name.startswith("uv-") and name.endswith(".whl"))
        with zipfile.ZipFile(os.path.join(source, wheel)) as archive:
            inside = next(name for name in archive.namelist() if name.endswith(".data/scripts/uv"))
            with archive.open(inside) as program, open(target, "wb") as file:
                shutil.copyfileobj(program, file)
    except (StopIteration, zipfile.BadZipFile, FileNotFoundError):
        raise Problem("there is no uv in %s, which was sent" % source, "run podrun again")
    os.chmod(target, 0o700)
    return target


def _interpreter_in(folder: str, version: str) -> Optional[str]:
    """Return the interpreter that uv has installed in the folder. Links stand for the newest of a minor version."""
    for name in sorted(os.listdir(folder)):
        inside = os.path.join(folder, name)
        python = os.path.join(inside, "bin", "python%s" % minor_of(version))
        if name.startswith("cpython-") and not os.path.islink(inside) and os.access(python, os.X_OK):
            return python
    return None


_UNREACHED = ("dns error", "tcp connect error", "error sending request", "timed out", "client error (Connect)")
"""Texts that uv prints if it cannot reach the server."""
_CAUSE = re.compile(r"^\s*(?:cause|error): ", re.MULTILINE)


def _why_not_installed(version: str, output: str) -> Problem:
    # uv wraps its lines
    causes: List[str] = [" ".join(part.split()) for part in _CAUSE.split(output)[1:]]
    if "No download found" in output:
        return Problem(
            "there is no Python %s to bring to a machine of type %s" % (version, platform.machine()),
            "choose another version with `python:` in the pod file, or " + _NAME,
        )
    mismatch = [cause for cause in causes if "Hash mismatch" in cause]
    if mismatch:
        return Problem(
            "Python %s did not arrive as it was published: %s" % (version, mismatch[0]),
            "run podrun again; if that does not help, look at the server that UV_PYTHON_INSTALL_MIRROR or "
            "UV_PYTHON_DOWNLOADS_JSON_URL names, or at the proxy in between",
        )
    if causes and any(sign in " ".join(causes) for sign in _UNREACHED):
        where = next((cause for cause in causes if "Failed to download" in cause), causes[0])
        return Problem("Python %s cannot be downloaded: %s: %s" % (version, where, causes[-1]), REMEDY_NO_PYTHON)
    return Problem("Python %s cannot be installed: uv %s" % (version, output), _NAME)


# --- old Pythons ------------------------------------------------------------------------------------------------------


def pythons_of(home: str) -> List[Tuple[str, float]]:
    """Return (folder, time of the last use) of the managed Pythons. A Python is used whenever one of its environments is."""
    uses = [(_base_of(folder), used) for folder, used in environments_of(home)]
    parent = pythons_folder(home)
    rows: List[Tuple[str, float]] = []
    for name in names_in(parent):
        folder = os.path.join(parent, name)
        if not os.path.isdir(folder) or os.path.islink(folder):
            continue
        used = max([os.stat(folder).st_mtime, *(last for base, last in uses if base.startswith(folder + os.sep))])
        if _installed(folder) is not None or time.time() - used > BUILD_LIMIT + LOCK_LIMIT:  # an unfinished one
            rows.append((folder, used))
    return rows


def _base_of(environment: str) -> str:
    """Return the folder of the interpreter that an environment was made with; empty if it is unknown."""
    try:
        with open(os.path.join(environment, "pyvenv.cfg"), encoding="utf-8") as file:
            pairs = [line.partition("=") for line in file]
    except (OSError, ValueError):
        return ""
    return next((value.strip() for name, _, value in pairs if name.strip() == "home"), "")

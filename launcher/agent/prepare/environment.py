"""Virtual environments for the requirements of runs. Runs with the same requirements share one."""

from __future__ import annotations

import json
import os
import shutil
from typing import TYPE_CHECKING, Dict, List, Optional, Set, Tuple

from ..base.disk import check_space
from ..base.places import data_set_folder, environments_folder
from ..base.private import is_private
from ..base.problem import Problem
from ..base.protocol import EXTENSION
from ..base.tool import Say, ToolError, Tools
from .build_lock import BuildLock, full_disk_problem, write_whole
from .copy_environment import COPYABLE, copy_environment
from .packages import InterpreterError, ask_target, no_python
from .store import DONE, beside, in_use, lock_path

if TYPE_CHECKING:
    from ..base.from_agent import WheelTarget
    from ..base.to_agent import EnvironmentRequest

BUILD_LIMIT = 1800.0  # seconds for one command of a build
_ASK_LIMIT = 60.0  # seconds for an interpreter to report its version
_VERSION = "import sys; print('.'.join(map(str, sys.version_info[:3])), sys.implementation.name)"


class LacksWheelsError(Exception):
    """The environment must be built from wheels, or with a Python, that the launcher has not sent yet."""

    def __init__(self, target: WheelTarget, python: bool = False) -> None:
        super().__init__("nothing to build from")
        self.target = target
        self.python = python
        """True: Python itself is missing, and `target` is the interpreter of the agent."""


class Environments:
    """The environments below `home`."""

    def __init__(self, home: str, tools: Tools, say: Say, brought_uv: Optional[str] = None) -> None:
        """`brought_uv`: the uv that builds environments on a host without one of its own; None: pip builds them."""
        self._home = home
        self._brought_uv = brought_uv
        self._folder = environments_folder(home)
        self._tools = tools
        self._say = say
        for_workers = ("PYTHONPATH", "PYTHONHOME")  # pip would count the packages there as installed
        self._env = {name: value for name, value in tools.env.items() if name not in for_workers}
        self._env.update(PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", GIT_TERMINAL_PROMPT="0")

    def folder(self, key: str) -> str:
        return os.path.join(self._folder, key)

    def ensure(self, request: EnvironmentRequest, python: str) -> str:
        """Return the interpreter of an environment. Builds it if it is missing, unfinished, or of another Python.

        Args:
            request: the environment.
            python: interpreter that creates it.

        Raises:
            LacksWheelsError: it is missing, and the launcher must first send the wheels.
            Problem: it cannot be built.
        """
        key = request["key"]
        folder = self.folder(key)
        with BuildLock(lock_path(self._folder, key), "environment", self._tools, self._say):
            version = self._version(python)
            if version is None:
                raise no_python(python)
            inside = os.path.join(folder, "bin", "python")
            if not (is_private(folder) and _built_with(folder) == version == self._version(inside)):
                if request["wheels"] == "":
                    raise LacksWheelsError(self._target(python))
                self._build(folder, request, python, version)
                write_whole(os.path.join(folder, DONE), json.dumps({"python": version}))
            in_use(folder)
            return inside

    def _version(self, python: str) -> Optional[str]:
        try:
            return self._tools.run([python, "-I", "-S", "-c", _VERSION], _silent, _ASK_LIMIT)
        except ToolError:
            return None

    def _target(self, python: str) -> WheelTarget:
        try:
            return ask_target(python, self._env)
        except InterpreterError as error:
            raise Problem(
                "no wheels can be chosen: %s" % error, "name another Python with `python:` in a pod file for --pod"
            )

    def _build(self, folder: str, request: EnvironmentRequest, python: str, version: str) -> None:
        text, space, wheels = request["text"], request["space"], request["wheels"]
        shutil.rmtree(folder, ignore_errors=True)
        wanted = folder + ".txt"
        write_whole(wanted, text)
        inside = os.path.join(folder, "bin", "python")
        uv = find_uv(self._env) or self._brought_uv
        install = [uv, "pip", "install", "--python", inside] if uv else [inside, "-m", "pip", "install"]
        if wheels is not None:
            install += ["--no-index", "--find-links", data_set_folder(self._home, wheels)]
        smaller = self._smaller(text, version)
        if smaller is not None:
            check_space(self._folder, min(space, EXTENSION), "an extended virtual environment")
            self._say("extending a virtual environment with fewer requirements")
            copy_environment(smaller, folder, leave_out=DONE)
        else:
            check_space(self._folder, space, "the virtual environment")
            self._say("building the virtual environment with %s" % ("uv" if uv else "pip"))
            make = [uv, "venv", "--python", python, folder] if uv else [python, "-m", "venv", folder]
            self._step("cannot make a virtual environment with %s" % python, make, REMEDY_VENV)
        self._step("cannot install the requirements", [*install, "-r", wanted], _REMEDY_INSTALL)
        os.replace(wanted, os.path.join(folder, "requirements.txt"))

    def _smaller(self, text: str, version: str) -> Optional[str]:
        """Return an environment of the same Python with a subset of these requirements; None if there is none."""
        for built_with, folder in extendable(self._folder, text):
            if built_with == version == self._version(os.path.join(folder, "bin", "python")):
                in_use(folder)
                return folder
        return None

    def _step(self, failure: str, argv: List[str], remedy: str) -> None:
        env = self._env
        cache = beside(self._folder + "/cache", "new")
        if argv[0] == self._brought_uv:  # its cache would stay outside podrun's folder, where nothing removes it
            env = {**env, "UV_CACHE_DIR": cache}
        try:
            self._tools.run(argv, self._say, BUILD_LIMIT, env)
        except ToolError as error:
            text = str(error)
            full = full_disk_problem(self._folder, argv, text)
            if full is not None:
                raise full
            if any(sign in text for sign in _NO_INDEX):
                text, remedy = _unreachable(text), REMEDY_INDEX
            raise Problem("%s: %s %s" % (failure, " ".join(argv[:4]), text), remedy)
        finally:
            shutil.rmtree(cache, ignore_errors=True)


REMEDY_VENV = "install uv, or Python's venv (on Debian and Ubuntu the package python3-venv), on the host"
REMEDY_INDEX = (
    "this host does not reach the package index; write `offline: true` in the pod file, and the machine on which podrun was "
    "called downloads the packages and sends them; or name a Python that has them (`python:`), a mirror "
    "(`env: {PIP_INDEX_URL: ...}`, for uv UV_DEFAULT_INDEX), or files that the hosts see (a line `--find-links FOLDER` in "
    "the requirements)"
)
_NO_INDEX = ("name resolution", "Name or service not known", "NewConnectionError", "ConnectTimeoutError", "dns error")
"""Texts that pip and uv print if they cannot reach the index."""


def _unreachable(text: str) -> str:
    """Return the output of pip or uv without the lines about retries, which repeat the error."""
    lines = text.splitlines()
    return "\n".join([line for line in lines if "Retrying (" not in line] or lines[-1:])


_REMEDY_INSTALL = "see the last lines above; try the same requirements in a fresh environment on one host"


def extendable(envs: str, text: str) -> List[Tuple[str, str]]:
    """Return (Python, folder) of complete environments whose requirements are a subset of `text`, the largest first."""
    wanted = {line.rstrip() for line in text.splitlines()}
    candidates = []
    for name in os.listdir(envs) if os.path.isdir(envs) else []:
        folder = os.path.join(envs, name)
        built_with = _built_with(folder)
        if built_with is not None and is_private(folder):
            lines = _read_lines(os.path.join(folder, "requirements.txt"))
            if lines and lines < wanted and all(map(COPYABLE.match, lines)):
                candidates.append((len(lines), built_with, folder))
    return [(built_with, folder) for _, built_with, folder in sorted(candidates, reverse=True)]


def find_uv(env: Dict[str, str]) -> Optional[str]:
    """Return the path of uv; None if it is not installed. Its install folders may be missing from a non-interactive PATH."""
    install_folders = [os.path.expanduser(folder) for folder in ("~/.local/bin", "~/.cargo/bin")]
    return shutil.which("uv", path=os.pathsep.join([env.get("PATH", os.defpath), *install_folders]))


def _built_with(folder: str) -> Optional[str]:
    try:
        with open(os.path.join(folder, DONE), encoding="utf-8") as file:
            version: str = json.load(file)["python"]
            return version
    except (OSError, ValueError, KeyError):
        return None


def _read_lines(path: str) -> Set[str]:
    """Return the lines of a requirements.txt without comments and blanks; empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return {line.rstrip() for line in file if line.strip() and not line.lstrip().startswith("#")}
    except (OSError, ValueError):
        return set()


def _silent(line: str) -> None:
    pass

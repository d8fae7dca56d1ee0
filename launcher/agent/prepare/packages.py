"""Ask the workers' interpreter, which may differ from the agent's, for its version and installed packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from ..base.container import container_env, inside
from ..base.problem import Problem

if TYPE_CHECKING:
    from ..base.from_agent import Interpreter, WheelTarget
    from ..base.to_agent import Container

PACKAGES = [
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "numpy",
    "pydantic",
    "pyyaml",
    "tensorboardX",
    "libtpu",
    "jax-cuda12-plugin",
    "jax-cuda12-pjrt",
    "jax-cuda13-plugin",
    "jax-cuda13-pjrt",
]
_LIMIT = 12.0  # seconds; a network file system may be slow, and a dead one never answers
# Reads the names of pip's records: importing JAX would take seconds and touch the accelerators, and importlib.metadata takes
# more than twice as long as the interpreter's start, so it is used only for folders with other records. Any Python runs it.
_SCRIPT = """
import json, os, re, sys

def plain(name):
    return re.sub("[-_.]+", "-", name).lower()

def by_pip(folder):
    names = {}
    try:
        entries = os.listdir(folder)
    except EnvironmentError as error:
        if error.errno == 13:
            sys.exit("this user may not read " + folder)
        raise
    for entry in entries:
        stem, kind = os.path.splitext(entry)
        name, _, release = stem.rpartition("-")
        if kind in (".egg", ".egg-info", ".egg-link"):
            raise EnvironmentError
        if kind == ".dist-info" and os.path.isfile(os.path.join(folder, entry, "METADATA")):
            names[plain(name)] = release
    return names

packages = {}
for folder in filter(os.path.exists, sys.path):
    try:
        names = by_pip(folder)
    except EnvironmentError:
        try:
            from importlib.metadata import version
        except ImportError:
            break
        for name in set(sys.argv[1:]).difference(packages):
            try:
                packages[name] = version(name) or "unknown"
            except Exception:
                pass
        break
    for name in sys.argv[1:]:
        if plain(name) in names:
            packages.setdefault(name, names[plain(name)])
packages = dict((name, packages.get(name, "missing")) for name in sys.argv[1:])
print("")
print(json.dumps({"version": "%d.%d.%d" % sys.version_info[:3], "executable": sys.executable, "packages": packages}))
"""

_TARGET = """
import json, os, platform, sys
try:
    libc = os.confstr("CS_GNU_LIBC_VERSION") or ""
except (ValueError, OSError, AttributeError):
    libc = ""
print("")
print(json.dumps({
    "version": "%d.%d.%d" % sys.version_info[:3],
    "implementation": sys.implementation.name,
    "machine": platform.machine(),
    "libc": libc.replace("glibc", "").strip(),
}))
"""

_MODULES = """
import json, sys
from importlib.util import find_spec

def lacks(name):
    try:
        return find_spec(name) is None
    except Exception:
        return False

missing = [name for name in sys.argv[1:] if lacks(name)]
print("")
print(json.dumps(missing))
"""


class InterpreterError(Exception):
    """The interpreter does not work; the message says why."""


def find_python(python: str, env: Dict[str, str]) -> str:
    """Return the absolute path of the workers' interpreter. Raises Problem if there is none."""
    program = shutil.which(os.path.expanduser(python), path=env.get("PATH"))
    if program is None:
        raise no_python(python)
    return os.path.abspath(program)


def no_python(python: str) -> Problem:
    """Return the error about an interpreter that is missing."""
    return Problem("there is no Python at %r" % python, "give its absolute path with `python:` in a pod file for --pod")


def ask_interpreter(python: str, env: Dict[str, str], container: Optional[Container] = None) -> Interpreter:
    """Return version, executable and packages (name to version or `missing`) of `python`, in the container if there is one.

    Raises InterpreterError.
    """
    process = _run(python, env, container, [_SCRIPT, *PACKAGES])
    try:
        answer: Dict[str, Any] = json.loads(process.stdout.decode(errors="replace").splitlines()[-1])
        return {
            "version": answer["version"],
            "executable": answer["executable"],
            "packages": dict(answer["packages"]),
        }
    except (ValueError, IndexError, KeyError, TypeError):
        program = _find(python, container, dict(os.environ, **env))[1]
        raise InterpreterError("%s does not work: %s" % (program, _error_line(process)))


def ask_target(python: str, env: Dict[str, str]) -> WheelTarget:
    """Return what the wheels for an interpreter must fit. Raises InterpreterError."""
    process = _run(python, env, None, [_TARGET])
    try:
        answer: Dict[str, Any] = json.loads(process.stdout.decode(errors="replace").splitlines()[-1])
        return {
            "version": answer["version"],
            "implementation": answer["implementation"],
            "machine": answer["machine"],
            "libc": answer["libc"],
        }
    except (ValueError, IndexError, KeyError, TypeError):
        raise InterpreterError("%s does not work: %s" % (python, _error_line(process)))


def _run(
    python: str, env: Dict[str, str], container: Optional[Container], script: List[str]
) -> "subprocess.CompletedProcess[bytes]":
    """Run a script with the interpreter. Raises InterpreterError if the interpreter does not start or end.

    `script`: its text, followed by its arguments.
    """
    full_env = dict(os.environ, **env)
    command, program = _find(python, container, full_env)
    try:
        # From /, because Python also imports from its current folder.
        return subprocess.run(
            [*command, "-c", *script],
            cwd="/",
            env=container_env(container, full_env, env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=_LIMIT,
        )
    except OSError as error:
        raise InterpreterError("%s cannot be started: %s" % (program, error.strerror))
    except subprocess.TimeoutExpired:
        raise InterpreterError("%s does not answer within %g s" % (program, _LIMIT))


def missing_modules(python: str, env: Dict[str, str], container: Optional[Container], modules: List[str]) -> List[str]:
    """Return the top-level modules that `python` does not find, without importing any. Raises InterpreterError."""
    answer = _run(python, env, container, [_MODULES, *modules])
    try:
        missing = json.loads(answer.stdout.decode(errors="replace").splitlines()[-1])
        return [name for name in modules if name in missing]
    except (ValueError, IndexError, TypeError):
        raise InterpreterError("%s does not work: %s" % (python, _error_line(answer)))


def _find(python: str, container: Optional[Container], env: Dict[str, str]) -> Tuple[List[str], str]:
    """Return the command of the interpreter, and its name in messages. Raises InterpreterError."""
    first = container["command"][0] if container else os.path.expanduser(python)
    program = shutil.which(first, path=env.get("PATH"))
    if program is None:
        raise InterpreterError(_missing_reason(first))
    if container is None:
        return [program], program
    return inside(container, [python]), "%s of %s" % (python, container["command"][-1])


def _missing_reason(path: str) -> str:
    if os.sep not in path:
        return "there is no %r in PATH" % path
    hidden = _unreadable_folder(path)
    if hidden is not None:
        return "%s cannot be used: this user may not look into %s" % (path, hidden)
    if os.path.isdir(path):
        return "%s is a folder" % path
    if os.path.exists(path):
        return "%s may not be executed by this user" % path
    if os.path.islink(path):
        return "%s is a link to %s, which does not exist" % (path, os.path.realpath(path))
    return "%s does not exist" % path


def _unreadable_folder(path: str) -> Optional[str]:
    """Return the first folder on the way to `path`, or to the target of a link, that this user may not enter; or None."""
    for target in (os.path.abspath(path), os.path.realpath(path)):
        folder = os.sep
        for name in target.split(os.sep)[1:]:
            if not os.path.isdir(folder):
                break
            if not os.access(folder, os.X_OK):
                return folder
            folder = os.path.join(folder, name)
    return None


def _error_line(process: "subprocess.CompletedProcess[bytes]") -> str:
    lines: List[str] = process.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it ended with exit code %d" % process.returncode

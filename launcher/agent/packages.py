"""What the workers' interpreter is, and what is installed for it: asked of that interpreter, for it may not be ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Any, Dict, List

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
_LIMIT = 12.0  # seconds; a network file system may be slow, and one that is gone does not answer
# Reads what pip recorded: importing JAX would take seconds and touch the accelerators. Runs on any Python.
_SCRIPT = """
import json, sys
try:
    from importlib.metadata import version
except ImportError:
    version = None
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name) or "unknown"
    except Exception:
        found[name] = "missing"
print("")
print(json.dumps({"version": "%d.%d.%d" % sys.version_info[:3], "executable": sys.executable, "packages": found}))
"""


class InterpreterError(Exception):
    """The interpreter cannot be asked; the text says why."""


def ask_interpreter(python: str, env: Dict[str, str]) -> Dict[str, Any]:
    """version, executable, packages (name to version or `missing`). Raises InterpreterError."""
    full_env = dict(os.environ, **env)
    program = shutil.which(os.path.expanduser(python), path=full_env.get("PATH"))
    if program is None:
        raise InterpreterError(_why_not_there(os.path.expanduser(python)))
    try:
        # From /, for the folder that it is started in is searched, too.
        done = subprocess.run(
            [program, "-c", _SCRIPT] + PACKAGES,
            cwd="/",
            env=full_env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=_LIMIT,
        )
    except OSError as error:
        raise InterpreterError("%s cannot be started: %s" % (program, error.strerror))
    except subprocess.TimeoutExpired:
        raise InterpreterError("%s does not answer within %g s" % (program, _LIMIT))
    try:
        answer: Dict[str, Any] = json.loads(done.stdout.decode(errors="replace").splitlines()[-1])
        return dict(answer, packages=dict(answer["packages"]))
    except (ValueError, IndexError, KeyError, TypeError):
        raise InterpreterError("%s does not work: %s" % (program, _last_words(done)))


def _why_not_there(path: str) -> str:
    if os.sep not in path:
        return "there is no %r in PATH" % path
    if os.path.isdir(path):
        return "%s is a folder" % path
    if os.path.exists(path):
        return "%s may not be executed by this user" % path
    if os.path.islink(path):
        return "%s is a link to %s, which does not exist" % (path, os.path.realpath(path))
    return "%s does not exist" % path


def _last_words(done: "subprocess.CompletedProcess[bytes]") -> str:
    lines: List[str] = done.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "it ended with exit code %d" % done.returncode

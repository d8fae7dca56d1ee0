"""Other versions of Python on this machine, beside the one that runs the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest


@cache
def other_python(version: str) -> str:
    """Return an interpreter of another version, from PATH or pyenv's folder; skip the test where there is none."""
    pyenv = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    beside = sorted(pyenv.glob(f"{version}.*/bin/python{version}"))
    for python in filter(None, (shutil.which(f"python{version}"), *beside)):
        # A shim of pyenv's stands for a version that may not be the chosen one.
        asked = subprocess.run([python, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
        if asked.returncode == 0:
            return asked.stdout.strip()
    pytest.skip(f"no python{version} here")

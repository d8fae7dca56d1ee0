"""The worker of a held pod has done what needs no device, and has touched none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from podrun.runtime.worker import prewarm

WARM_UP = """
from podrun.runtime.__main__ import warm_up
warm_up()
from jax._src import xla_bridge
print(xla_bridge.backends_are_initialized())
"""


def test_no_backend_is_initialized() -> None:
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", WARM_UP], env=env, capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


def test_what_makes_imported_modules_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = tmp_path / "job"
    job.mkdir()
    monkeypatch.chdir(job)
    module = tmp_path / "package.py"
    module.write_text("x = 1\n")
    files = {str(module): prewarm._version(str(module))}
    assert prewarm._why_stale(files) == ""
    (job / "mine.py").write_text("")
    (job / "json").mkdir()  # a folder without __init__.py comes after the standard library
    assert prewarm._why_stale(files) == ""
    (job / "json.py").write_text("")
    assert "json.py in the job's folder has the name of a module" in prewarm._why_stale(files)
    (job / "json.py").unlink()
    module.write_text("x = 22\n")
    assert prewarm._why_stale(files) == f"{module} has changed since this pod was held"
    module.unlink()
    assert "has changed" in prewarm._why_stale(files)

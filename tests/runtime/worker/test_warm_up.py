"""The worker of a held pod has done what needs no device, and has touched none."""

from __future__ import annotations

import json
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
    packages = prewarm._packages()
    folder = tmp_path / "folder of PYTHONPATH"
    folder.mkdir()
    monkeypatch.setattr(sys, "path", ["/", str(folder), *sys.path[1:]])
    origins = prewarm._origins(sys.path[1:])
    start = 1 << 63  # long after all changes

    def why_stale() -> str:
        return prewarm._why_stale(files, packages, origins, start)

    assert why_stale() == ""
    (job / "mine.py").write_text("")
    (job / "json").mkdir()  # a folder without __init__.py comes after the standard library
    assert why_stale() == ""
    (job / "json.py").write_text("")
    assert why_stale() == f"{job}/json.py has the name of a module that was imported before"
    (job / "json.py").unlink()
    (folder / "jax.py").write_text("")
    assert why_stale() == f"{folder}/jax.py has the name of a module that was imported before"
    (folder / "jax.py").unlink()
    assert why_stale() == ""
    module.write_text("x = 22\n")
    assert why_stale() == f"{module} has changed since this pod was held"
    module.unlink()
    assert "has changed" in why_stale()


def test_a_file_that_changed_while_the_modules_were_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows which version of it was read."""
    monkeypatch.chdir(tmp_path)
    start = prewarm._start_time()
    assert prewarm._why_stale({}, prewarm._packages(), prewarm._origins(sys.path[1:]), start) == ""
    module = tmp_path / "package.py"
    module.write_text("x = 1\n")
    os.utime(module, (0, 0))  # as `cp -p` does
    assert prewarm._why_stale({str(module): prewarm._version(str(module))}, prewarm._packages(), {}, start) == (
        f"{module} has changed since this pod was held"
    )


def test_a_link_to_a_file_is_no_change(tmp_path: Path) -> None:
    """Package managers link files of one environment into the next."""
    file = tmp_path / "file"
    file.write_text("")
    (tmp_path / "first").hardlink_to(file)
    before = prewarm._version(str(file))
    (tmp_path / "second").hardlink_to(file)
    assert prewarm._version(str(file)) == before


def test_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new package, a `.pth` file, and a place that appears are noticed; compiled files are not."""
    place = tmp_path / "site-packages"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(prewarm.site, "getsitepackages", lambda: [str(place)])

    def why_stale() -> str:
        return prewarm._why_stale({}, packages, origins, 1 << 63)

    packages, origins = prewarm._packages(), prewarm._origins(sys.path)
    place.mkdir()
    assert why_stale() == f"{place} has changed since this pod was held"
    packages = prewarm._packages()
    (place / "__pycache__").mkdir()
    assert why_stale() == ""
    (place / "installed").mkdir()
    assert f"{place}/installed has changed" in why_stale()
    (place / "editable.pth").write_text("/a\n")
    packages = prewarm._packages()
    (place / "editable.pth").write_text("/another\n")
    assert f"{place}/editable.pth has changed" in why_stale()


BECOME = """
import os, sys, tempfile
from podrun.runtime.worker import prewarm
tempfile.gettempdir()
prewarm.wait_to_start(lambda: None, prewarm.HOLD)
import appeared
print(sys.argv[1:], tempfile.gettempdir())
"""


def test_a_job_finds_what_it_would_find_in_a_new_process(tmp_path: Path) -> None:
    """Folders of Python's path that have appeared, the folder for temporary files, and no argument of podrun's."""
    (tmp_path / "job").mkdir()
    output = tmp_path / "output"
    output.touch()
    late = tmp_path / "late"
    env = {
        **os.environ,
        "PYTHONPATH": f"{late}:{os.environ.get('PYTHONPATH', '')}",
        "PODRUN_PID": "1",
        "PODRUN_MAIN_PID": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-c", BECOME, prewarm.HOLD], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.read() == b""  # at its end when the imports are done
        late.mkdir()
        (late / "appeared.py").write_text("")
        orders = {
            "env": {**env, "TMPDIR": str(late)},
            "cwd": str(tmp_path / "job"),
            "output": str(output),
            "folder": str(tmp_path),
        }
        process.communicate(json.dumps(orders).encode() + b"\n", timeout=100)
    assert output.read_text() == f"[] {late}\n"

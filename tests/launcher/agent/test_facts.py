"""Facts of a host about itself: its interpreter, its disks, its limits; a fact that fails costs only itself."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.prepare import facts
from podrun.launcher.agent.prepare import packages as packages_module

from ...pythons import other_python
from ..powerless import POWERLESS
from ..preflight.pods import VERSION, healthy


def test_facts_of_this_machine(tmp_path: Path) -> None:
    request = {"python": sys.executable, "workdir": f"{tmp_path}/not/yet", "home": str(tmp_path), "env": {}}
    before = time.time()
    found = facts.gather(request)
    assert set(found) == set(healthy())
    assert not [name for name, value in found.items() if isinstance(value, dict) and "error" in value]
    assert json.loads(json.dumps(found)) == found
    assert found["interpreter"]["version"] == VERSION
    assert found["interpreter"]["packages"]["jax"].startswith("0.")
    has_libtpu = importlib.util.find_spec("libtpu") is not None  # after `make compilers`
    assert (found["interpreter"]["packages"]["libtpu"] == "missing") != has_libtpu
    assert found["disk_workdir"]["folder"] == str(tmp_path)
    assert 0 < found["disk_home"]["free"] < found["disk_home"]["total"]
    assert 0 < found["memory"]["available"] < found["memory"]["total"]
    assert before <= found["clock"]["answered"] <= time.time()


def test_the_workers_environment_counts(tmp_path: Path) -> None:
    """Packages are those that the workers will see, with PYTHONPATH and all."""
    fake_package(tmp_path, "jax", "9.9.9")
    found = facts.gather(
        {"python": sys.executable, "env": {"PYTHONPATH": str(tmp_path), "HTTPS_PROXY": "http://u:hidden-word@x"}}
    )
    assert found["interpreter"]["packages"]["jax"] == "9.9.9"
    assert "HTTPS_PROXY" in found["proxies"]["set"]
    assert "hidden-word" not in json.dumps(found)


def egg_info(folder: Path, name: str, version: str) -> None:
    """Record a package as Debian does, and setuptools did: a folder, or a file of that name."""
    folder.mkdir(parents=True, exist_ok=True)
    record = f"Metadata-Version: 1.1\nName: {name}\nVersion: {version}\n"
    if name == "jax":
        (folder / f"{name}-{version}.egg-info").write_text(record)
    else:
        (folder / f"{name}.egg-info").mkdir()
        (folder / f"{name}.egg-info" / "PKG-INFO").write_text(record)


def wheel(folder: Path, name: str, version: str) -> None:
    """Record a package in an archive, from which Python imports as well."""
    with zipfile.ZipFile(folder, "w") as archive:
        info = f"{name}-{version}.dist-info/METADATA"
        archive.writestr(info, f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize("form", [lambda *args: fake_package(*args), egg_info, wheel], ids=["pip", "egg", "wheel"])
def test_packages_are_found_as_python_finds_them(form: Callable[[Path, str, str], None], tmp_path: Path) -> None:
    """The first in its path counts, in every form in which a package is recorded; a folder without its record does not."""
    names = ("jax", "orbax-checkpoint", "tensorboardX")
    paths: dict[str, list[Path]] = {"broken": [], "first": [], "second": []}
    for name in names:
        broken, first, second = (tmp_path / name / folder for folder in paths)
        fake_package(broken, name.replace("-", "_"), "1.1.1")
        (broken / f"{name.replace('-', '_')}-1.1.1.dist-info" / "METADATA").unlink()
        form(first, name.replace("-", "_"), "7.7.7")
        fake_package(second, name, "8.8.8")
        for folder, path in zip(paths, (broken, first, second), strict=True):
            paths[folder].append(path)
    for folders, version in (
        (("first", "second"), "7.7.7"),
        (("second", "first"), "8.8.8"),
        (("broken", "second"), "8.8.8"),
        (("broken",), "missing"),
    ):
        env = {"PYTHONPATH": ":".join(str(path) for folder in folders for path in paths[folder])}
        packages = packages_module.ask_interpreter(other_python("3.12"), env)["packages"]
        assert {packages[name] for name in names} == {version}
        assert {*packages.values()} == {version, "missing"}


def fake_package(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("x"), "may not be executed"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.symlink_to("/nowhere/python"), "is a link to /nowhere/python, which does not exist"),
        (lambda path: script(path, "echo broken >&2; exit 3"), "does not work: broken"),
        (lambda path: script(path, "exit 3"), "ended with exit code 3"),
        (lambda path: script(path, "echo '[]'"), "does not work"),
    ],
)
def test_an_interpreter_that_cannot_be_used_is_a_fact(make: Callable[[Path], Any], why: str, tmp_path: Path) -> None:
    path = tmp_path / "python"
    make(path)
    found = facts.gather({"python": str(path)})
    assert why in found["interpreter"]["error"]
    assert str(path) in found["interpreter"]["error"]
    assert found["memory"]["total"] > 0


def test_a_python_that_is_not_in_path() -> None:
    assert facts.gather({"python": "python9"})["interpreter"] == {"error": "there is no 'python9' in PATH"}


def test_an_interpreter_that_a_run_will_make(tmp_path: Path) -> None:
    found = facts.gather({"python": str(tmp_path / "env/bin/python"), "python_before": sys.executable})
    assert found["interpreter"]["packages"] is None
    assert found["interpreter"]["version"] == VERSION


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_fact_that_hangs_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(facts, "LIMIT", 1.0)
    monkeypatch.setattr(facts, "_memory", lambda: answered.wait(200))
    monkeypatch.setattr(facts, "_huge_pages", lambda: 1 / 0)
    found = facts.gather({"python": sys.executable})
    answered.set()  # all others have not waited for it
    assert found["memory"] == {"error": "no answer within 1 s"}
    assert found["huge_pages"] == {"error": "division by zero"}
    assert found["limits"]["nofile"] > 0


def test_a_python_that_this_user_may_not_reach(tmp_path: Path) -> None:
    """A venv in another user's folder exists, and so do its packages: neither is called missing."""
    venv = tmp_path / "hidden" / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    ask = (
        "import json, sys; from podrun.launcher.agent.prepare import facts; "
        "print(json.dumps(facts.gather({'python': sys.argv[1]})))"
    )

    def told() -> str:
        command = [*POWERLESS, sys.executable, "-c", ask, str(venv / "bin" / "python")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return str(json.loads(done.stdout)["interpreter"].get("error"))

    for folder, why in (
        (venv.parent, f"{venv}/bin/python cannot be used: this user may not look into {venv.parent}"),
        (site, f"{venv}/bin/python does not work: this user may not read {site}"),
    ):
        folder.chmod(0)
        try:
            assert told() == why
        finally:
            folder.chmod(0o700)
    assert told() == "None"

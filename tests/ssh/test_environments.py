"""Virtual environments on real hosts, in the login directory, where podrun keeps its files by default."""

from __future__ import annotations

import sys

import pytest

from ..wheels import packages_of_this_python
from .pod import PodSandbox


@pytest.mark.long
def test_requirements_in_the_default_home(pod: PodSandbox) -> None:
    """podrun's runtime finds in the environment what `podrun check` has seen there."""
    wheel = packages_of_this_python(pod.path)
    (pod.path / "requirements.txt").write_text(f"--no-index\n{wheel}\n")
    option = pod.write_pod(["h0"], requirements="requirements.txt")
    done = pod.podrun(option, "small.yaml", "steps=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(pod.losses("shared/small")) == [1, 2]


@pytest.mark.long
def test_an_interpreter_below_the_login_directory(pod: PodSandbox) -> None:
    """`python: ~/venv/bin/python` is the environment, not the interpreter that it was made with."""
    wheel = packages_of_this_python(pod.path)
    venv = str(pod.hosts.home_inside() / "venv")
    pod.hosts.run_on("h1", sys.executable, "-m", "venv", venv)
    pod.hosts.run_on("h1", f"{venv}/bin/python", "-m", "pip", "install", "-q", "--no-index", str(wheel))
    done = pod.podrun(pod.write_pod(["h1"], python="~/venv/bin/python"), "small.yaml", "steps=2")
    assert done.returncode == 0, done.stdout + done.stderr

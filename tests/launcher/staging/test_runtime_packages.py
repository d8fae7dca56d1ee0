"""The imports of podrun's runtime are judged by the requirements.txt, before an environment is built."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.staging.runtime_packages import NEEDED, TENSORBOARD, lacking, pinned, space_needed

from ...conftest import Podrun, Sandbox

ALL_BUT_PYDANTIC = "jax>=0.10\nflax\noptax\norbax-checkpoint\n"


@pytest.mark.parametrize(
    ("requirements", "missing", "certain"),
    [
        (ALL_BUT_PYDANTIC, ("pydantic",), True),
        (ALL_BUT_PYDANTIC + "# pydantic\n--index-url https://x/simple\n", ("pydantic",), True),
        (ALL_BUT_PYDANTIC + "Pydantic >= 2.10 ; python_version > '3'  # why\n", (), True),
        ("jax[cuda12]==0.10.2\nflax @ https://example.org/flax.whl\n/wheels/pydantic-2.11-py3-none-any.whl", (), True),
        (ALL_BUT_PYDANTIC + "our_tools==1.0\n", ("pydantic",), False),
        (ALL_BUT_PYDANTIC + "-r https://example.org/more.txt\n", ("pydantic",), False),
        ("podrun\n", (), True),
        ("", tuple(NEEDED), True),
    ],
)
def test_what_requirements_lack(requirements: str, missing: tuple[str, ...], certain: bool) -> None:
    lack = lacking(requirements)
    assert (lack.names if lack else ()) == missing
    assert lack is None or lack.certain == certain


@pytest.mark.parametrize("kind", ["cpu", "gpu", "tpu"])
def test_what_init_writes_is_enough(kind: str) -> None:
    """All in the versions that are installed here."""
    text = pinned(kind)
    assert lacking(text) is None
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(lines) == len(NEEDED) + 1
    assert all("==" in line for line in lines)
    assert space_needed(text) > (5e9 if kind == "gpu" else 0.7e9)


def test_a_start_is_refused_before_any_host_is_reached(sandbox: Sandbox, in_process: Podrun) -> None:
    """With what to add, instead of an error after the environment has been built."""
    (sandbox.path / "requirements.txt").write_text(ALL_BUT_PYDANTIC)
    (sandbox.path / "pod.yaml").write_text("slice: cpu-1x1\nhosts: nobody.invalid\nrequirements: requirements.txt\n")
    done = in_process("--pod=pod.yaml", "train.yaml")
    assert done.returncode == 2, done.stderr
    assert "requirements.txt lacks pydantic, which podrun's runtime imports; add: pydantic==" in done.stderr


def test_the_workdir_that_nobody_chose_belongs_to_its_train_yaml(sandbox: Sandbox, in_process: Podrun) -> None:
    """Below the folder that all projects share, `train` may be anybody's."""
    (sandbox.path / "pod.yaml").write_text("slice: cpu-1x1\nhosts: nobody.invalid\nworkdir: /mnt/runs\n")
    plan = in_process("--pod=pod.yaml", "--dry-run", "train.yaml").stdout
    assert f":{sandbox.path}/train.yaml" in next(line for line in plan.splitlines() if "PODRUN_OWNER=" in line)
    assert "PODRUN_OWNER" not in in_process("--pod=pod.yaml", "--dry-run", "--workdir=mine", "train.yaml").stdout


def test_init_writes_requirements(sandbox: Sandbox, in_process: Podrun) -> None:
    """Unless the hosts have an interpreter for podrun's runtime; a file of the user's is not written over."""
    hosts = ("--slice=cpu-2x1", "--hosts=a,b", "--yes")
    assert in_process("init", "python.yaml", *hosts, "--python=/venv/bin/python").returncode == 0
    assert not (sandbox.path / "requirements.txt").exists()
    done = in_process("init", "pod.yaml", *hosts)
    assert f"wrote {Path('requirements.txt')}" in done.stdout
    assert (sandbox.path / "requirements.txt").read_text() == pinned("cpu")
    assert "\nrequirements: requirements.txt" in (sandbox.path / "pod.yaml").read_text()
    (sandbox.path / "requirements.txt").write_text("mine\n")
    assert "using requirements.txt" in in_process("init", "again.yaml", *hosts).stdout
    assert (sandbox.path / "requirements.txt").read_text() == "mine\n"


def test_documentation_names_them() -> None:
    text = (Path(__file__).parents[3] / "docs" / "hosts.md").read_text()
    assert not [name for name in (*NEEDED, TENSORBOARD) if name not in text]

"""Programs that `podrun compile` has made, as a bundle for the hosts of the same job."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.run.pack import with_executables
from podrun.launcher.staging import stored_executables as module
from podrun.launcher.staging.stored_executables import stored_executables
from podrun.runtime.config import Config, Launch
from podrun.runtime.executable_list import ExecutableList, StoredExecutable, compiled_beside

from .projects import members

JOB = Config(steps=3, batch_size=64)


@pytest.fixture(autouse=True)
def folder() -> Path:
    """Return the folder of the programs, in which there are two of JOB on cpu-2x1."""
    path = stored_executables(JOB, "cpu-2x1").path
    for key in ("k1", "k2"):
        compiled_beside(path).store(key, b"program " + key.encode())
    executables = tuple(StoredExecutable("step", key, 10, 0.1) for key in ("k1", "k2"))
    ExecutableList("cpu-2x1", {"jax": "1"}, executables).write(path)
    return path.parent


def spec_of(slice: str = "cpu-2x1", job: Config | Program = JOB, transport: str = "ssh") -> RunSpec:
    pod = replace(simulated_pod(parse_slice(slice)), transport=transport, home="~/.podrun")
    return RunSpec("r", pod, job, Path("/work"), Path("/cwd"))


def test_the_programs_of_the_job_go_to_its_hosts() -> None:
    """Only those of this job and slice; where and how it is launched, logged and saved makes no difference."""
    spec, (bundle,) = with_executables(spec_of())
    name = stored_executables(JOB, "cpu-2x1").path.name
    assert set(members(bundle)) == {"compiled/k1", "compiled/k2", name}
    assert spec.executables == f"~/.podrun/bundles/{bundle.name}/{name}"
    other = Config.model_validate({"steps": 3, "batch_size": 64, "log": {"every": 1}, "launch": {"env": {"A": "b"}}})
    assert with_executables(spec_of(job=other))[1] == (bundle,)
    for none in (
        spec_of("cpu-4x1"),
        spec_of(job=JOB.model_copy(update={"steps": 4})),
        spec_of(job=Program(("true",), Launch())),
    ):
        spec, bundles = with_executables(none)
        assert (spec.executables, bundles) == ("", ())


def test_a_simulated_pod_reads_them_where_they_are(folder: Path) -> None:
    spec, bundles = with_executables(spec_of(transport="local"))
    assert (spec.executables, bundles) == (str(stored_executables(JOB, "cpu-2x1").path), ())


def give_away(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file away")
    os.chown(path, 65534, -1)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.write_bytes(b"x" * 100), "k1 is damaged; `podrun compile` makes them again"),
        (lambda path: path.chmod(0o622), "other users may write "),
        (give_away, "k1 belongs to another user"),
        (Path.unlink, "k1: No such file or directory; `podrun compile` makes them again"),
    ],
)
def test_what_is_not_sent(
    folder: Path, spoil: Callable[[Path], None], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run starts without them, and one line says why."""
    spoil(folder / "compiled" / "k1")
    spec, bundles = with_executables(spec_of())
    assert (spec.executables, bundles) == ("", ())
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("podrun: the compiled programs are not sent to the hosts: ") and why in line


def test_too_much_to_send(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 15)
    assert with_executables(spec_of())[1] == ()
    assert "at most 0 MB are sent" in capsys.readouterr().err

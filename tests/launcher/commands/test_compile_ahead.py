"""Programs are compiled in the background while a run waits for its hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.commands.compile_ahead import compile_ahead
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.request.request import Request
from podrun.runtime.contract import UserError

from ...conftest import Sandbox
from .conftest import Podrun


@pytest.fixture
def programs(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the programs. podrun works in the sandbox."""
    monkeypatch.chdir(sandbox.path)
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "true")
    return sandbox.path / "home" / "programs"


def test_it_compiles_what_the_run_will_ask_for(programs: Path) -> None:
    request = Request(Path("small.yaml"), ("steps=3",), compile_ahead=True)
    compiling = compile_ahead(request, parse_slice("cpu-1x2"))
    assert compiling and str(compiling.log) in compiling.words
    assert compiling.process.wait(120) == 0, compiling.log.read_text()
    assert compiling.end() is None
    assert "small.yaml for cpu-1x2: 3 of 3 compiled" in compiling.log.read_text()
    assert len(list(programs.glob("*.json"))) == 1


def test_hosts_that_are_there_before(programs: Path) -> None:
    compiling = compile_ahead(Request(Path("small.yaml"), compile_ahead=True), parse_slice("cpu-1x2"))
    assert compiling
    assert compiling.end() == "the hosts were ready before everything was compiled, so they compile as usual"
    assert compiling.process.returncode
    assert not list(programs.glob("*.json"))


def test_a_slice_that_nothing_can_be_compiled_for(programs: Path) -> None:
    compiling = compile_ahead(Request(Path("small.yaml"), compile_ahead=True), parse_slice("v4-8"))
    assert compiling and compiling.process.wait(120) == 2
    assert str(compiling.end()).startswith("nothing was compiled before: v4-8: the TPU compiler treats a chip of v4")


def test_when_nothing_is_compiled(programs: Path, podrun: Podrun) -> None:
    """Without the compiler, or if the user says so. CPUs only if the user wants it."""
    for slice, wanted in (("cpu-1x2", None), ("v4-8", None), ("gpu-1x2", None), ("v5e-4", False)):
        assert compile_ahead(Request(Path("small.yaml"), compile_ahead=wanted), parse_slice(slice)) is None
    with pytest.raises(UserError, match=r"--compile-ahead is for a train.yaml"):
        compile_ahead(Request(None, program=("true",), compile_ahead=True), parse_slice("v5e-4"))
    done = podrun("--simulate", "--slice=cpu-1x1", "--compile-ahead", "small.yaml")
    assert done.code == 2 and "--compile-ahead is for a run that waits in a queue (--slurm)" in done.err

"""Bad input, through the real command line: each kind gets a short message that says what, where and what to do."""

from __future__ import annotations

import subprocess

import pytest

from ....conftest import Sandbox
from ....tiers import mostly_long
from .buckets import BUCKETS
from .case import LINES, Case, Podrun
from .files import BY_A_WORKER, FILES
from .jobs import MODEL_AND_SIZES, OVERRIDES, PARALLEL, TRAIN_YAML
from .options import OPTIONS
from .pods import HOSTS, INIT, POD, POD_FILE
from .programs import PROGRAMS
from .sweeps import EARLY_STOPPING, SWEEPS

JOBS = [*TRAIN_YAML, *OVERRIDES, *MODEL_AND_SIZES, *PARALLEL, *FILES, *PROGRAMS]
EARLY = [*JOBS, *POD, *POD_FILE, *HOSTS, *INIT, *OPTIONS, *BUCKETS, *SWEEPS, *EARLY_STOPPING]


def explain(sandbox: Sandbox, podrun: Podrun, case: Case) -> subprocess.CompletedProcess[str]:
    """Run podrun on the case and check its message."""
    train = sandbox.path / "train.yaml"
    if isinstance(case.yaml, bytes):
        train.write_bytes(case.yaml)
    elif case.yaml is not None:
        train.write_text(case.yaml)
    for name, text in case.files.items():
        (sandbox.path / name).write_text(text)
    done = podrun(*case.args)
    output = done.stdout + done.stderr
    assert done.returncode == 2, output
    assert "Traceback" not in output
    assert len(output.splitlines()) <= LINES, output
    for part in (case.what, case.where, case.remedy, *case.also):
        assert part in done.stderr, f"{part!r} is not in:\n{output}"
    return done


@pytest.mark.parametrize("case", EARLY, ids=lambda case: case.name)
def test_bad_input_is_explained_before_anything_starts(sandbox: Sandbox, podrun: Podrun, case: Case) -> None:
    """Exit code 2 and a short message on stderr; nothing on stdout, and no run directory."""
    done = explain(sandbox, podrun, case)
    assert done.stdout == ""
    assert not (sandbox.path / "home" / "runs").exists()


@pytest.mark.parametrize("case", mostly_long(BY_A_WORKER, lambda number, _: number == 0), ids=lambda case: case.name)
def test_bad_input_that_only_a_worker_can_see_is_explained(sandbox: Sandbox, case: Case) -> None:
    """The worker's message arrives whole, and podrun's last line repeats it with the process and the exit code."""
    done = explain(sandbox, sandbox.podrun, case)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"podrun: failed: host-0 (process 0): {case.where}")
    assert last.endswith("[exit code 2]")


def test_a_mistake_does_not_hide_another(sandbox: Sandbox) -> None:
    """Slice, files, interpreter and workdir are checked together, and each problem has a line of its own."""
    args = (
        "-s",
        "cpu-1x3",
        "--simulate",
        "train.yaml",
        "-w",
        "text.txt",
        "data.path=a.txt",
        "launch.python=/no/python",
    )
    done = sandbox.podrun(*args)
    assert done.returncode == 2
    starts = [line.removeprefix("podrun: ").partition(" ")[0] for line in done.stderr.splitlines()]
    assert starts == ["workdir", "batch_size", "data.path:", "launch.python:"]

"""The log of a training: it says how the training goes, and nothing that says nothing."""

from __future__ import annotations

import re
import sys

import pytest

from ..conftest import SMALL, Sandbox, make_sandbox

EVERY = 2
STEPS = range(EVERY, 21, EVERY)
FSDP = "parallel={name: jit, mesh: {fsdp: 2}}"


@pytest.fixture(scope="module", params=[FSDP, pytest.param("pmap", marks=pytest.mark.nightly)], ids=["fsdp", "pmap"])
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """Return what podrun printed of a run on two hosts, and each host's log."""
    sandbox = make_sandbox(tmp_path_factory.mktemp("logs"))
    (sandbox.path / "small.yaml").write_text(SMALL.replace("width: 16", "width: 160"))  # large enough to be divided
    parallel = request.param if "=" in request.param else f"parallel={request.param}"
    options = (parallel, "steps=20", f"log.every={EVERY}", "eval.every=10", "checkpoint.every=10")
    done = sandbox.podrun("--slice", "cpu-2x1", "--simulate", "small.yaml", *options)
    assert done.returncode == 0, done.stderr
    (folder,) = (sandbox.path / "home" / "runs").glob("*/logs")
    return done.stdout, {path.stem: path.read_text() for path in folder.glob("*.log")}


def test_the_log_says_how_the_training_goes(shown: tuple[str, dict[str, str]]) -> None:
    """The first step and each that `log.every` asks for, with loss and times; evaluations and checkpoints."""
    log = shown[1]["host-0"]
    pattern = r"^step (\d+)/20  loss [\d.]+  .*elapsed \d+:\d\d(?:  eta \d+:\d\d)?$"
    assert [int(step) for step in re.findall(pattern, log, re.MULTILINE)] == [1, *STEPS]
    assert len(re.findall(r"^validation at step \d+: loss ", log, re.MULTILINE)) == 2
    assert "checkpoint of step 20 complete" in log.splitlines()
    assert log.index("compiling the step") < log.index("step 1/20")


def test_the_log_has_no_noise(shown: tuple[str, dict[str, str]]) -> None:
    """Neither gloo's connections nor orbax's warnings: the other process's log has its phases and no more."""
    logs = shown[1]
    for word in ("Gloo", "absl", "WARNING"):
        assert not any(word in text for text in logs.values()), logs
    phases = ["joining the pod", "preparing data and model", "compiling the step", "done"]
    assert logs["host-1"].splitlines() == phases


def test_plain_output_is_what_log_every_says(shown: tuple[str, dict[str, str]]) -> None:
    """Each of those steps once, and the first, however fast they are, in the words of the log."""
    steps = [line for line in shown[0].splitlines() if line.startswith("step ")]
    assert steps == [line for line in shown[1]["host-0"].splitlines() if line.startswith("step ")]
    assert len(steps) == 1 + len(STEPS)


def test_what_a_program_prints_while_gloo_connects_is_kept(sandbox: Sandbox) -> None:
    """Only gloo's own line is left out, and of the program's output nothing."""
    (sandbox.path / "talk.py").write_text(TALK)
    done = sandbox.podrun("--slice", "cpu-1x1", "--simulate", "--", sys.executable, "talk.py")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith(("say", "[Gloo]", "1"))] == [
        "say before",
        "say [Gloo] inside",
        "[Gloo] Rank 0 is not connected",
        "say the last without an end",
    ]


TALK = """
import os
from podrun.runtime.worker.quiet import without_gloo_lines
print("say before")
with without_gloo_lines():
    os.write(1, b"say [Gloo] inside\\n")
    os.write(1, b"[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\\n")
    os.write(1, b"[Gloo] Rank [Gloo] Rank 3 is connected to 3 peer ranks. ")
    os.write(1, b"Expected number of connected peer ranks is : 3\\n")
    os.write(1, b"1 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\\n")
    os.write(1, b"[Gloo] Rank 0 is not connected\\n")
    os.write(1, b"say the last without an end")
"""

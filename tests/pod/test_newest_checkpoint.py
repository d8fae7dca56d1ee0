"""The end of a run names the newest checkpoint that is complete at that moment."""

from __future__ import annotations

import pytest

from ..conftest import Sandbox
from .conftest import Run

pytestmark = pytest.mark.long

PROGRAM = """
import os, signal, threading, time
import numpy as np
import podrun

train = podrun.steps(1000, {"w": np.zeros(2)}, save_every=5)
for step in train:
    train.state = {"w": train.state["w"] + 1}
    if step == 11:
        while any(thread.name == "save" for thread in threading.enumerate()):
            time.sleep(0.01)
        END
"""


@pytest.mark.parametrize("end", ["raise ValueError('boom')", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_save_that_was_completed_in_the_last_step(sandbox: Sandbox, end: str) -> None:
    """The program fails before it makes another step, in which it could look at the save."""
    (sandbox.path / "last.py").write_text(PROGRAM.replace("END", end))
    run = Run(sandbox, "--slice", "cpu-1x1", "--simulate", "--workdir", "w", "--", "python", "last.py")
    assert run.end() != 0
    assert [event["step"] for event in run.of("checkpoint")] == [5, 10]
    assert "the checkpoint of step 10 is complete; the same command resumes the run" in run.stderr
    assert (sandbox.path / "w" / "checkpoints" / "10").is_dir()

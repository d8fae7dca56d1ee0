"""SIGTERM to a process that has nothing to save ends it at once; later it is passed on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes, os, signal, sys
from pathlib import Path
from podrun.runtime.contract import Phase
from podrun.runtime.worker.progress import Reporter
from podrun.runtime.worker.sigterm import leave_on_sigterm
reporter = Reporter(Path(sys.argv[1]))
leave_on_sigterm(reporter)
if sys.argv[2] != "none":
    reporter.phase(Phase(sys.argv[2]))
os.kill(os.getpid(), signal.SIGTERM)
if sys.argv[2] != "train":
    ctypes.CDLL(None).sleep(60)
while not reporter.stopping:
    pass
sys.exit(3)
"""


@pytest.mark.parametrize(("phase", "code"), [("none", 75), ("connect", 75), ("compile", 75), ("train", 3)])
def test_a_process_that_has_nothing_to_save(tmp_path: Path, phase: str, code: int) -> None:
    """It leaves with exit code 75, also while its main thread is in C; one that trains goes on."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "0.events"), phase]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stderr
    events = [json.loads(line) for line in (tmp_path / "0.events").read_text().splitlines()]
    assert events[-1]["event"] == "signal"
    assert ("there is nothing to save" in done.stdout) == (code == 75)

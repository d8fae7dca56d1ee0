"""A user program that writes nonsense where podrun's runtime reports: it harms nobody, and its own run goes on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..conftest import Sandbox
from .conftest import Run, processes_of

Start = Callable[..., Run]
PROGRAM = """\
import math, os, struct, time
from podrun.runtime.contract import WorkerEnv
path = WorkerEnv.from_env().events_path
with open(path, "ab") as file:
    file.write(b'{"event": "step", "time": NaN, "step": 1, "steps": 9}\\n')
    file.write(b'{"event": "checkpoint", "time": 1.0, "step": -3}\\n')
    file.write(b'{"event": "end", "time": 1.0}\\n[[[[\\n\\xff\\xfe\\n' + b"[" * 100_000 + b"\\n")
with open(path, "ab") as file:
    file.truncate(file.tell() + (1 << 26))  # a line of 64 MB
    file.write(b'\\n{"event": "note", "time": 1.0, "message": "after all that"}\\n')
beat = path.with_suffix(".beat")
for bad in (b"", b"\\xff" * 128, struct.pack("=6Q4dQ", 1, 5, 1, 0, 1, 1, math.nan, 0.0, 0.0, math.inf, 0)):
    beat.write_bytes(bad)
    time.sleep(1.5)
beat.unlink()
os.mkfifo(beat)
time.sleep(1.5)
print("done with that")
"""


@pytest.mark.long
def test_nonsense_in_the_place_of_events_and_beats(start: Start, sandbox: Sandbox) -> None:
    """It is told once of each kind and ignored, what follows it is read, and the run ends as the program does."""
    (sandbox.path / "hostile.py").write_text(PROGRAM)
    run = start("--simulate", "--slice", "cpu-2x1", "launch.stall_timeout=60", "--", "python", "hostile.py")
    assert run.end(timeout=300) == 0, run.stderr
    notes = [event["message"] for event in run.of("note")]
    assert sum("reported something that is not an event" in note for note in notes) == 2, notes
    assert notes.count("after all that") == 2, notes
    assert run.of("step") == [] and run.of("checkpoint") == []
    assert processes_of(sandbox) == {}

"""The programs that tests run on pods."""

from __future__ import annotations

import sys
from pathlib import Path

from ..conftest import Sandbox

FAILING = Path(__file__).with_name("failing_program.py")
FAULTY = Path(__file__).with_name("faulty.py")
OWN_LOOP = Path(__file__).parents[2] / "examples" / "own_loop.py"
ENDLESS = 10_000_000


def own_loop_command(sandbox: Sandbox, steps: int) -> list[str]:
    """Return the command line of the example with that many steps."""
    text = OWN_LOOP.read_text()
    assert text.count("podrun.steps(300, ") == 1
    # A program that runs alone calls its workdir by its file's name.
    file = sandbox.path / f"{steps}_steps" / OWN_LOOP.name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text.replace("podrun.steps(300, ", f"podrun.steps({steps}, "))
    return [sys.executable, str(file)]

"""The code of docs/parallel.md runs as it stands, and prints what is shown below it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "parallel.md"
MARK = "-- block {} --"


def test_code_blocks() -> None:
    """In order, in one fresh interpreter with the devices that conftest.py sets."""
    blocks = re.findall(r"^```(python|text)\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    program, shown = "", ""
    for number, (kind, text) in enumerate(blocks):
        if kind == "python":
            program += f"print({MARK.format(number)!r})\n{text}"
            shown += MARK.format(number) + "\n"
        else:
            shown += text
    assert program.count("np.testing.assert_allclose") == 6  # every way but the one that they are compared with
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout == shown

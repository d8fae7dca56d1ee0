"""Programs that know nothing of podrun, run as the agent runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[3] / "launcher" / "instrument"


def run(path: Path, program: str, python: str = sys.executable, main: bool = True, **env: str) -> tuple[Any, list[Any]]:
    """Run a program as the agent does; return how it ended and the events that it reported."""
    (path / "train.py").write_text(program)
    variables = {
        "PODRUN_DIR": str(path),
        "PODRUN_PROCESS_ID": "1",
        "PODRUN_NUM_PROCESSES": "2",
        "PYTHONPATH": str(FOLDER),
    }
    script = 'PODRUN_MAIN_PID=$$ exec "$0" train.py' if main else '"$0" train.py'
    command = ["sh", "-c", script, python]
    done = subprocess.run(
        command, cwd=path, env={**os.environ, **variables, **env}, capture_output=True, text=True, timeout=60
    )
    events = path / "1.events"
    return done, [json.loads(line) for line in events.read_text().splitlines()] if events.exists() else []

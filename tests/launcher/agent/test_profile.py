"""`agent profile`: an order for a worker is written whole, once, and taken back by whom it belongs to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

FIRST, SECOND = "aaaa", "bbbb"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of an agent that runs, three levels below a home."""
    folder = tmp_path / "run" / "hosts" / "host-0.0"
    folder.mkdir(parents=True)
    (folder / "agent.sock").touch()
    return folder


def ask(folder: Path, profile: str, steps: int) -> str | None:
    request = {"dir": str(folder), "order": "0.profile", "trace": f"0.profile-{profile}", "id": profile, "steps": steps}
    program = "from podrun.launcher.agent.run.profile_order import profile; profile()"
    done = subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(request) + "\n", capture_output=True, text=True, check=True
    )
    answer: dict[str, Any] = json.loads(done.stdout)
    error: str | None = answer["error"]
    return error


def test_one_order_at_a_time(folder: Path) -> None:
    assert ask(folder, FIRST, 5) is None
    assert json.loads((folder / "0.profile").read_text()) == {"id": FIRST, "steps": 5}
    assert "already" in str(ask(folder, SECOND, 5))
    assert ask(folder, SECOND, 0) is None  # takes nothing of another's back
    assert json.loads((folder / "0.profile").read_text())["id"] == FIRST
    (folder / f"0.profile-{FIRST}").mkdir()
    assert ask(folder, FIRST, 0) is None
    assert [path.name for path in folder.iterdir()] == ["agent.sock"]


def test_after_the_end_of_the_run_its_folder_is_removed(folder: Path) -> None:
    (folder / "agent.sock").unlink()
    (folder / f"0.profile-{FIRST}").mkdir()
    assert "no agent" in str(ask(folder, SECOND, 5))
    assert ask(folder, FIRST, 0) is None
    assert not folder.parent.parent.exists()
    assert "No such file" in str(ask(folder, FIRST, 5))

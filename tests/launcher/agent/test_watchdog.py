"""A command of the agent ends with its connection, whatever it is doing."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from podrun.launcher.agent.main import MARK
from podrun.launcher.plan.agent_file import agent_file

START = """
import sys
sys.path.insert(0, sys.argv[1])
from podrun_agent.base import watchdog
from podrun_agent.main import main
watchdog.GRACE = 0.5
main(sys.argv[2:])
"""
HOLE = 1 << 42  # bytes of a file that takes hours to read
LIMIT = 60.0  # seconds

Agent = subprocess.Popen[bytes]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    file = tmp_path / agent_file()[0]
    file.write_bytes(agent_file()[1])
    argv = [sys.executable, "-c", START, str(file), "checkpoints"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.read(len(MARK)) == MARK
        try:
            yield process
        finally:
            process.kill()


def is_reading(process: Agent, path: Path) -> bool:
    return any(_target(link) == str(path) for link in Path(f"/proc/{process.pid}/fd").iterdir())


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:  # closed meanwhile
        return ""


@pytest.mark.parametrize("end", ["stdin", "stdout"])
def test_a_command_that_reads_for_hours(agent: Agent, tmp_path: Path, end: str) -> None:
    folder = tmp_path / "checkpoints" / "10"
    (folder / "state").mkdir(parents=True)
    with (folder / "state" / "hole").open("wb") as hole:
        hole.truncate(HOLE)
    files = {"state/hole": [HOLE, hashlib.sha256().hexdigest()]}
    (folder / "podrun-manifest.json").write_text(json.dumps({"files": files}))
    assert agent.stdin is not None and agent.stdout is not None
    agent.stdin.write(json.dumps({"workdir": str(tmp_path), "action": None, "names": []}).encode() + b"\n")
    agent.stdin.flush()
    deadline = time.monotonic() + LIMIT
    while not is_reading(agent, folder / "state" / "hole"):
        assert agent.poll() is None and time.monotonic() < deadline
    {"stdin": agent.stdin, "stdout": agent.stdout}[end].close()
    assert agent.wait(LIMIT) == 1

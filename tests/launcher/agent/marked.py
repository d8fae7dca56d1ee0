"""Processes that a test can find again, wherever they go: they carry a mark in their environment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

IMPORTS = "import json, os, signal, subprocess, sys, time\nfrom podrun.launcher.agent.base.processes import *\n"


def wait_until(true: Callable[[], object], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


class Marked:
    """Processes that carry a mark of the test's own in their environment."""

    def __init__(self) -> None:
        self.name = f"PODRUN_TEST_{uuid.uuid4().hex}"
        self._started: list[subprocess.Popen[str]] = []

    def start(self, code: str, *args: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Python code with the agent's functions imported."""
        self._started.append(
            subprocess.Popen(
                [*before, sys.executable, "-c", IMPORTS + code, *args],
                env={**os.environ, self.name: "1"},
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        return self._started[-1]

    def alive(self) -> set[int]:
        found = set()
        for folder in Path("/proc").iterdir():
            try:
                marked = folder.name.isdigit() and f"{self.name}=1".encode() in (folder / "environ").read_bytes()
                if marked and (folder / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                    found.add(int(folder.name))
            except OSError:
                continue
        return found

    def end(self) -> None:
        while left := self.alive():
            for pid in left:
                try:
                    os.kill(pid, 9)
                except ProcessLookupError:
                    pass
        for process in self._started:
            process.wait(10)
            assert process.stdout is not None
            process.stdout.close()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()

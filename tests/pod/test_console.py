"""The view of a person: in a terminal, and in a file."""

from __future__ import annotations

import os
import pty
import subprocess

import pytest

from ..conftest import Sandbox

JOB = ("--slice", "cpu-2x1", "--simulate", "train.yaml", "steps=300", "eval.every=100")


def in_terminal(sandbox: Sandbox, *args: str) -> str:
    """Return what a terminal gets from podrun, which must succeed."""
    terminal, inside = pty.openpty()
    run = subprocess.Popen(
        [*sandbox.command, *args],
        cwd=sandbox.path,
        env={**sandbox.env, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"},
        stdout=inside,
        stderr=subprocess.STDOUT,
    )
    os.close(inside)
    shown = b""
    while True:
        try:
            data = os.read(terminal, 65536)
        except OSError:  # how Linux says that nobody has the other end open
            break
        if not data:
            break
        shown += data
    os.close(terminal)
    text = shown.decode()
    assert run.wait(60) == 0, text
    assert "Traceback" not in text
    return text


@pytest.mark.long
def test_terminal(sandbox: Sandbox) -> None:
    """In a terminal the hosts are shown until all train, then how it goes; the news stay above it."""
    text = in_terminal(sandbox, *JOB)
    for part in (
        "cpu-2x1 = 2 hosts x 1 device",
        "host-1",
        "/300",
        "eta",
        "phase       training",
        "grad norm   ",
        "step time   ",
        "validation at step 100",
    ):
        assert part in text
    assert text.rstrip().splitlines()[-1] == "podrun: done"


@pytest.mark.long
def test_file(sandbox: Sandbox) -> None:
    """In a file there are plain lines only, and the last one says how it ended."""
    done = sandbox.podrun(*JOB)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "all 2 processes: " in done.stdout  # which phases all have at the same time is chance
    assert "step 300/300" in done.stdout
    assert done.stdout.splitlines()[-1] == "podrun: done"
    assert done.stderr == ""


def test_closed_pipe(sandbox: Sandbox) -> None:
    """`podrun ... | head -1` ends the run instead of printing a traceback."""
    job = ("--slice", "cpu-1x1", "--simulate", "small.yaml", "steps=10000000")
    command = " ".join([*sandbox.command, *job])
    done = subprocess.run(
        f"{command} | head -1",
        shell=True,
        cwd=sandbox.path,
        env=sandbox.env,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.startswith("podrun ")
    assert "Traceback" not in done.stderr


@pytest.mark.long
def test_inspect_shows_that_it_works(sandbox: Sandbox) -> None:
    """In a terminal: the step of a large model takes minutes to compile."""
    text = in_terminal(sandbox, "inspect", "small.yaml", "--slice", "cpu-1x2")
    line = text.index("compiling the step for 2 devices")
    assert line < text.index("small.yaml on cpu-1x2")

"""However much a program prints, and in whatever shape: all of it is in its log, and podrun still listens."""

from __future__ import annotations

import hashlib
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import Sandbox
from .conftest import Run, kill, peak, processes_of, relays_of

Start = Callable[..., Run]
ONE = ("--simulate", "--slice", "cpu-1x1")
PRINT = """
import os, sys
piece = (sys.argv[2] * 65536).encode()[:65536]
left = int(sys.argv[1])
while left:
    left -= os.write(1, piece[:left])
"""
MEMORY = 200 << 20  # bytes that the launcher may have at most


def log_of(run: Run) -> Path:
    return Path(run.of("start")[0]["logs"]) / "host-0.log"


def digest(size: int, word: str) -> str:
    """Return the digest of the log, where a last line without an end gets one."""
    piece = (word * 65536).encode()[:65536]
    whole = hashlib.sha256()
    for _ in range(size // len(piece)):
        whole.update(piece)
    last = piece[: size % len(piece)]
    whole.update(last if last.endswith(b"\n") else last + b"\n")
    return whole.hexdigest()


@pytest.mark.parametrize(
    ("size", "word"),
    [
        pytest.param(20_000_000, "x", id="20 MB without an end of line"),
        pytest.param(40_000_000, "a line of output\n", id="40 MB of lines"),
        pytest.param(300_000_000, "a line of output\n", id="300 MB of lines", marks=pytest.mark.long),
    ],
)
def test_all_output_arrives(start: Start, sandbox: Sandbox, size: int, word: str) -> None:
    """Byte for byte, with exit code 0, and without being kept in the launcher's memory."""
    run = start(*ONE, "--", sys.executable, "-c", PRINT, str(size), word)
    most = 0
    while run.process.poll() is None:
        most = max(most, peak(run.process.pid))
        time.sleep(0.02)
    assert run.end(600) == 0, run.stderr
    with log_of(run).open("rb") as data:
        assert hashlib.file_digest(data, "sha256").hexdigest() == digest(size, word)
    assert 0 < most < MEMORY
    assert processes_of(sandbox) == {}


COUNT = """
import pathlib, time
lines = 0
while not pathlib.Path("enough").exists():
    for lines in range(lines + 1, lines + 5001):
        print(lines)
    time.sleep(0.005)
pathlib.Path("lines").write_text(str(lines))
"""


@pytest.mark.long
def test_relays_killed_under_heavy_output(start: Start, sandbox: Sandbox) -> None:
    """Twenty connections are killed with output on its way: no line is missing, none comes twice."""
    run = start(*ONE, "--", sys.executable, "-c", COUNT)
    run.wait_for(lambda e: e["event"] == "host" and e["phase"] == "started")
    killed: set[int] = set()

    def relays() -> set[int]:
        return relays_of(sandbox, run, 1) - killed

    for _ in range(20):
        wait_until(lambda: relays() or run.process.poll() is not None)
        size = size_of(log_of(run))
        wait_until(lambda size=size: size_of(log_of(run)) > size or run.process.poll() is not None)  # type: ignore[misc]
        for pid in relays():
            killed.add(pid)
            kill(pid)
    (sandbox.path / "enough").touch()
    assert run.end() == 0, run.stderr
    assert len(killed) == 20
    lines = int((sandbox.path / "lines").read_text())
    assert log_of(run).read_bytes() == b"".join(b"%d\n" % n for n in range(1, lines + 1))
    assert processes_of(sandbox) == {}


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def on_terminal(sandbox: Sandbox, script: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start a run of a shell script on a terminal of its own; return it and the other end of the terminal."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [*sandbox.command, *ONE, "--", "sh", "-c", script],
        cwd=sandbox.path,
        env=sandbox.env,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    return process, controller


@pytest.mark.long
def test_ctrl_c_on_a_slow_terminal(sandbox: Sandbox) -> None:
    """A slow terminal, of 64 KB a second, says at once that podrun stops, and the run ends, however much is printed."""
    process, controller = on_terminal(sandbox, "yes some line of output")
    shown = bytearray()
    reads = threading.Event()
    reads.set()

    def read_slowly() -> None:
        while reads.wait():
            try:
                data = os.read(controller, 640)
            except OSError:  # nobody has the other end open
                return
            shown.extend(data)
            time.sleep(0.01)

    reader = threading.Thread(target=read_slowly, daemon=True)
    reader.start()
    try:
        wait_until(lambda: shown.count(b"some line of output") > 1000)
        reads.clear()  # however long podrun takes to hear the signal, it is what waits to be shown that counts
        before = len(shown)
        process.send_signal(signal.SIGINT)
        wait_until(
            lambda: any("stopping" in path.read_text() for path in sandbox.path.glob("home/runs/*/events.jsonl"))
        )
        reads.set()
        wait_until(lambda: b"stopping" in shown[before:])
        behind = bytes(shown[before:]).index(b"stopping")
        print(f"{behind} bytes were shown before the note")
        assert behind < 64_000, "the note waits for output"
        assert process.wait(60) == 130
    finally:
        reads.set()
        process.kill()
        process.wait()
        reader.join()  # before the number of its file may be another's
        os.close(controller)


@pytest.mark.long
def test_a_failed_run_on_a_terminal_that_takes_nothing(sandbox: Sandbox) -> None:
    """Ctrl-C ends podrun although the report of the failure goes to the same terminal."""
    process, controller = on_terminal(sandbox, "yes some line of output | head -n 200000; exit 3")
    try:
        wait_until(lambda: any('"exit"' in path.read_text() for path in sandbox.path.glob("home/runs/*/events.jsonl")))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 3
    finally:
        process.kill()
        process.wait()
        os.close(controller)
    assert processes_of(sandbox) == {}


def wait_until(true: Callable[[], object], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)

"""`podrun prepare` on the command line: what it prints, its exit codes, Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PODRUN = [sys.executable, "-m", "podrun", "prepare"]


def prepare(*args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PODRUN, *map(str, args)], capture_output=True, text=True, cwd=cwd)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two documents, one bad line."""
    path = tmp_path / "a.jsonl"
    path.write_text('{"q": "one", "a": "1"}\n{"q": "two\\u001b[2J", "a": "22"}\n{"q": 3}\n')
    return path


def test_a_folder_is_written_and_shown(source: Path, tmp_path: Path) -> None:
    done = prepare("a.jsonl", "-o", "tokens", "--tokenizer", "byte", "--template", r"{q}\n{a}", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 file, 0.0 MB, in 1 part; tokenizer byte; documents end with id 256" in done.stdout
    assert f"{tmp_path / 'tokens'}: 2 documents, 17 tokens (uint16, vocabulary 257), 1 shard" in done.stdout
    assert "left out: 1 bad (lines, rows or files):\n    a.jsonl, line 3: it has no column a" in done.stdout
    shown = prepare("--show", "tokens", "--verify", cwd=tmp_path)
    assert shown.returncode == 0
    assert "every file is as it was written" in shown.stdout
    assert "--- a.jsonl, number 1: 6 tokens\none\n1\n" in shown.stdout
    assert "\x1b[2J" not in shown.stdout
    assert r"two\x1b[2J" in shown.stdout
    (tmp_path / "tokens" / "00000.tokens").write_bytes(bytes(34))
    damaged = prepare("--show", "tokens", "--verify", cwd=tmp_path)
    assert damaged.returncode == 2
    assert "1 files of tokens have changed since they were written:\n  00000.tokens: its SHA-256 is" in damaged.stderr
    strict = prepare("a.jsonl", "-o", "b", "--tokenizer", "byte", "--column", "q", "--strict", cwd=tmp_path)
    assert (strict.returncode, strict.stderr) == (
        2,
        "podrun: --strict: a.jsonl, line 3: column q is a number, not text\n",
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("a.jsonl",), "podrun prepare SOURCES... -o FOLDER --tokenizer T"),
        (("a.jsonl", "--show", "tokens"), "--show goes alone"),
        (("--verify",), "--verify is for --show"),
        (("--show", "tokens"), "there is no folder"),
        (("a.jsonl", "-o", "a.jsonl", "--tokenizer", "byte", "--column", "q"), "-o .*a.jsonl: Not a directory"),
        (("a.jsonl", "-o", "tokens", "--tokenizer", "byte"), "a.jsonl has no column text; it has q, a: name those"),
    ],
)
def test_mistakes_are_named(source: Path, tmp_path: Path, args: tuple[str, ...], message: str) -> None:
    done = prepare(*args, cwd=tmp_path)
    assert done.returncode == 2
    assert message.replace(".*", f"{tmp_path}/") in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    """On a terminal, which shows the rate and the time left."""
    (tmp_path / "a.jsonl").write_text(f"{json.dumps({'text': 'x' * 1000})}\n" * 30_000)
    control, terminal = pty.openpty()
    command = [*PODRUN, "a.jsonl", "-o", "tokens", "--tokenizer", "byte", "--workers=1"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=terminal)
    os.close(terminal)
    shown = b""
    while b" MB of 30.4" not in shown:
        shown += os.read(control, 4096)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    try:
        while part := os.read(control, 4096):
            shown += part
    except OSError:  # the terminal is closed
        pass
    os.close(control)
    assert b"are kept, and the same command goes on" in shown
    assert b"Traceback" not in shown
    done = prepare("a.jsonl", "-o", "tokens", "--tokenizer", "byte", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "30,000 documents" in done.stdout

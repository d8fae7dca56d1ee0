"""No failure ends with exit code 0, whoever turns it into one."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from podrun.launcher.cli import root
from podrun.launcher.cli.guard import guard
from podrun.launcher.cli.process import PIPE_CLOSED
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.transport.local import LocalTransport
from podrun.runtime.contract import ExitCode, failure_code

from ...conftest import Sandbox
from ...tiers import nightly

ROOT = Path(__file__).parents[3]
CODES = [(1, 1), (255, 255), (256, 1), (300, 44), (-1, 255), (-256, 1), (0, 1), (1 << 80, 1)]


@pytest.mark.parametrize(("chosen", "code"), CODES)
def test_codes_of_failures(chosen: int, code: int) -> None:
    """The lowest 8 bits, as the operating system keeps them, and 1 where they are 0."""
    assert failure_code(chosen) == code


@pytest.mark.parametrize(("chosen", "code"), [(0, 0), *CODES[:-2]])
def test_every_command_ends_with_such_a_code(chosen: int, code: int) -> None:
    """0 is the only number that ends with 0."""
    with pytest.raises(SystemExit) as ended:
        guard(lambda: chosen)
    assert ended.value.code == code


def test_a_command_that_is_killed_on_this_machine() -> None:
    """128 + N for signal N, as on other hosts: a negative code would be less than another host's 0."""
    pod = Pod(parse_slice("cpu-1x1"), (), transport="local", platform="cpu")
    channel = LocalTransport(pod).open(Host("here", "here"), ["sh", "-c", "kill -9 $$"])
    assert channel.receive() == b""
    assert channel.exit_code() == 137
    channel.close()


@pytest.mark.parametrize(("chosen", "code"), [(300, 44), (256, 0)])
def test_a_user_programs_code_is_what_the_system_says(sandbox: Sandbox, chosen: int, code: int) -> None:
    """A program whose code is 256 has exited with 0: nobody outside of it can tell."""
    program = (sys.executable, "-c", f"import sys; sys.exit({chosen})")
    done = sandbox.podrun("--simulate", "--slice", "cpu-1x1", "--", *program)
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize("args", [("--help",), ("slices",), *nightly((("data", "--help"),), (("--version",),))])
def test_output_that_nobody_reads(sandbox: Sandbox, args: tuple[str, ...]) -> None:
    """141, as of a program that SIGPIPE has ended, also where click would choose the code."""
    assert _unread(sandbox, *args) == 141


def test_a_run_that_nobody_reads(sandbox: Sandbox) -> None:
    """It is stopped as by Ctrl-C, and ends as `podrun | head` is documented to."""
    program = (sys.executable, "-c", "while True: print('x' * 1000, flush=True)")
    assert _unread(sandbox, "--simulate", "--slice", "cpu-1x1", "--", *program) == 141


def _unread(sandbox: Sandbox, *args: str) -> int:
    """Run podrun with a stdout that has no reader, and return its exit code."""
    read, write = os.pipe()
    os.close(read)
    try:
        command = [*sandbox.command, *args]
        return subprocess.run(command, cwd=sandbox.path, env=sandbox.env, stdout=write, timeout=120).returncode
    finally:
        os.close(write)


@pytest.mark.parametrize("table", ["README", "podrun --help"])
def test_every_exit_code_is_in_the_tables(table: str) -> None:
    text = (ROOT / "README.md").read_text() if table == "README" else root._EXIT_CODES
    named = set(re.findall(r"^\| (\d+) \|" if table == "README" else r"(?<!\S)(\d+)(?= )", text, re.MULTILINE))
    assert named == {str(int(code)) for code in (*ExitCode, PIPE_CLOSED)}


def test_no_help_shows_a_control_character() -> None:
    """Two of click's marks for paragraphs that stay as they are, without an empty line between, leave one."""
    assert "\b" not in runpy.run_path(str(ROOT / "docs" / "write_pages.py"))["pages"]()["commands.md"]

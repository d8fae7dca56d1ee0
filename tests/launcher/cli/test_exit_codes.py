"""No failure ends with exit code 0, whoever turns it into one."""

from __future__ import annotations

import sys

import pytest

from podrun.launcher.cli.guard import guard
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.transport.local import LocalTransport
from podrun.runtime.contract import failure_code

from ...conftest import Sandbox

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

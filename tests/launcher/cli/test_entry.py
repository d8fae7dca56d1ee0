"""podrun ends with one of its exit codes, whatever signals come last and whatever became of its outputs."""

from __future__ import annotations

import signal
import subprocess

import pytest

from ...conftest import Sandbox
from ...tiers import mostly_long

GOOD = ("slices", "v5")
BAD = ("inspect", "nothing.yaml")


def shell(sandbox: Sandbox, arguments: tuple[str, ...], how: str, buffered: bool) -> subprocess.CompletedProcess[str]:
    """podrun in bash, with its outputs as `how` says; `code N` on stderr is its exit code."""
    command = " ".join([*sandbox.command, *arguments])
    env = {key: value for key, value in sandbox.env.items() if not (buffered and key == "PYTHONUNBUFFERED")}
    script = f'{command} {how}; echo "code ${{PIPESTATUS[0]}}" >&3'
    return subprocess.run(
        ["bash", "-c", f"exec 3>&1; {script}"],
        cwd=sandbox.path,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )


OUTPUTS: list[tuple[tuple[str, ...], str, int, str]] = [
    (GOOD, ">&-", 0, ""),
    (GOOD, "2>&-", 0, ""),
    (GOOD, "<&- >&- 2>&-", 0, ""),
    (GOOD, "| sleep 0", 128 + signal.SIGPIPE, ""),
    (GOOD, ">/dev/full", 1, "podrun: cannot write to the output: No space left on device\n"),
    (BAD, ">&-", 2, "podrun: nothing.yaml: cannot read the job"),
    (BAD, "2>&-", 2, ""),
    (BAD, ">&- 2>&-", 2, ""),
    (BAD, "2>/dev/full", 2, ""),
    (BAD, "2>&1 | sleep 0", 2, ""),
]


@pytest.mark.parametrize(
    ("arguments", "how", "code", "message", "buffered"),
    mostly_long(
        ((*outputs, buffered) for outputs in OUTPUTS for buffered in (True, False)),
        quick=lambda number, case: case[-1] or case[0] is GOOD,
        ci=lambda number, case: False,
    ),
)
def test_outputs_that_are_gone(
    sandbox: Sandbox, arguments: tuple[str, ...], how: str, code: int, message: str, buffered: bool
) -> None:
    """The exit code is the right one, what failed is said where it can be, and there is no traceback."""
    done = shell(sandbox, arguments, how, buffered)
    assert done.stdout.splitlines()[-1] == f"code {code}", done.stderr
    assert done.stderr.startswith(message)
    assert message or not done.stderr
    assert "Traceback" not in done.stderr


LATE = """
import atexit, os, signal, sys, threading

def interrupt(*_, kill=os.kill, pid=os.getpid()):
    kill(pid, 2)

class Late:
    __del__ = interrupt

def wait():
    threading.main_thread().join()
    interrupt()

if os.path.basename(sys.orig_argv[-1]) == "v5":
    atexit.register(interrupt)
    sys.late = Late()
    threading.Thread(target=wait).start()
"""


def test_ctrl_c_while_podrun_ends(sandbox: Sandbox) -> None:
    """A Ctrl-C when the work is done changes nothing, at any stage of Python's own end."""
    (sandbox.path / "sitecustomize.py").write_text(LATE)
    env = {**sandbox.env, "PYTHONPATH": str(sandbox.path)}
    done = subprocess.run([*sandbox.command, *GOOD], env=env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "v5" in done.stdout


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_in_the_middle(sandbox: Sandbox, times: int) -> None:
    """130, also if the second comes while the first is being answered."""
    (sandbox.path / "impatient.py").write_text(
        "import os, sys\n"
        "from podrun.launcher.cli import guard, process\n"
        "def interrupt(text=None):\n"
        f"    for _ in range({times}):\n"
        "        os.kill(os.getpid(), 2)\n"
        "process.tell = guard.tell = interrupt\n"
        "process.run(lambda: guard.guard(interrupt))\n"
    )
    command = [sandbox.command[0], "impatient.py"]
    done = subprocess.run(command, cwd=sandbox.path, env=sandbox.env, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (130, "")

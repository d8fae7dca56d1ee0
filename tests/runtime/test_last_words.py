"""The last acts of a worker's process when it ends by os._exit, and what it takes for the loss of another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from podrun.runtime.__main__ import classify
from podrun.runtime.contract import ErrorKind, ExitCode

WORKER = """
import sys
from podrun.runtime import __main__ as module

def run(env, reporter):
    sys.stdout.write("last words")
    sys.stderr.write("and more")
    return 7

module.run = run
module.main()
"""


def worker_env(folder: Path) -> dict[str, str]:
    names = ("RUN_ID", "HOST", "SLICE")
    numbers = {"ATTEMPT": "0", "PROCESS_ID": "0", "NUM_PROCESSES": "1", "LOCAL_DEVICE_IDS": "0"}
    env = {**dict.fromkeys(names, "x"), **numbers, "DIR": str(folder), "COORDINATOR": "127.0.0.1:1"}
    return {**os.environ, **{f"PODRUN_{name}": value for name, value in env.items()}}


def test_nothing_that_was_printed_is_lost(tmp_path: Path) -> None:
    """An unfinished line is still in Python's buffer when the process leaves."""
    env = {name: value for name, value in worker_env(tmp_path).items() if name != "PYTHONUNBUFFERED"}
    with (tmp_path / "out").open("w") as out:
        done = subprocess.run([sys.executable, "-c", WORKER], env=env, stdout=out, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, (tmp_path / "out").read_text(), done.stderr) == (7, "last words", "and more")


def test_a_worker_that_podrun_has_not_started() -> None:
    """It says so in place of a traceback."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PODRUN_")}
    done = subprocess.run([sys.executable, "-c", WORKER], env=env, capture_output=True, text=True)
    assert done.returncode == ExitCode.BAD_CONFIG
    assert done.stderr.startswith("the environment variable PODRUN_") and "Traceback" not in done.stderr


class OtherError(ValueError):
    """An error of the user's code."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("Gloo all-reduce failed: x"), ErrorKind.PEER_LOST),
        (OtherError("Gloo all-reduce failed: x"), ErrorKind.EXCEPTION),
        (RuntimeError("Gloo all-reduce failed: x"), ErrorKind.EXCEPTION),
        (ValueError("Connection reset by peer"), ErrorKind.EXCEPTION),
    ],
)
def test_whose_words_are_the_loss_of_another_process(error: Exception, kind: ErrorKind) -> None:
    """Only a plain ValueError comes from gloo; a user's own class may have words like these."""
    assert classify(error) is kind

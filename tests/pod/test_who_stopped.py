"""The end of a run says who has stopped it."""

from __future__ import annotations

import re

from ..conftest import Sandbox


def test_stop_now_of_a_program_that_ignores_sigterm(sandbox: Sandbox) -> None:
    """Nobody has pressed Ctrl-C."""
    program = ("--", "sh", "-c", "trap '' TERM; sleep 600")
    done = sandbox.podrun("--slice", "cpu-1x1", "--simulate", "--detach", "launch.stop_grace=500", *program)
    assert done.returncode == 0, done.stderr
    stopped = sandbox.podrun("stop", "--now")
    assert stopped.returncode == 0, stopped.stderr
    told = r"podrun: stopped by `podrun stop --now` \(\S+ on \S+\), at once; no process is left \[exit code 143\]"
    assert re.fullmatch(told, stopped.stdout.splitlines()[-1]), stopped.stdout

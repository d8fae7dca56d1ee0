"""`podrun watch`: what it prints, how it ends, and what it cannot serve."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator

import pytest

from podrun.launcher.commands.watch import watch
from podrun.runtime.contract import UserError

from ..report.made import run_with_restart


@pytest.fixture
def taken() -> Iterator[int]:
    """Return a port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_ctrl_c_ends_it_at_once() -> None:
    """Also while a browser listens to the news. What it has printed leads to the page."""
    run = run_with_restart().run_id
    command = [sys.executable, "-m", "podrun.launcher.cli", "watch", run[-4:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        lines = [process.stdout.readline().strip() for _ in range(7)]
        assert lines[0] == f"podrun: {run} is shown at" and lines[1].startswith("http://127.0.0.1:")
        address, port = lines[1], lines[1].split("/")[2].rpartition(":")[2]
        assert lines[3] == address.removesuffix(f"run/{run}")
        assert lines[5] == f"ssh -L {port}:127.0.0.1:{port} {socket.gethostname()}"
        with urllib.request.urlopen(address, timeout=60) as page:
            assert b"<h2>Done</h2>" in page.read()
        with urllib.request.urlopen(f"{address}/news?after=0", timeout=60) as news:
            assert news.readline().startswith(b"id: ")
            os.kill(process.pid, signal.SIGINT)
            assert (process.wait(60), process.stderr.read()) == (130, "podrun: interrupted\n")


def test_an_unknown_run_is_refused_as_by_the_other_commands() -> None:
    with pytest.raises(UserError, match="there are no runs in"):
        watch(None, 0, open_browser=False)
    run = run_with_restart().run_id
    with pytest.raises(UserError, match=rf"there is no run 'nowhere'; `podrun ps --all` lists them; .* {run}"):
        watch("nowhere", 0, open_browser=False)


def test_a_port_that_is_taken(taken: int) -> None:
    run_with_restart()
    with pytest.raises(UserError, match=rf"cannot listen on 127.0.0.1:{taken}: Address already in use; give another"):
        watch(None, taken, open_browser=False)

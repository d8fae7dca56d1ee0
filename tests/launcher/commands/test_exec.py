"""`podrun exec`: a command on every host, which leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ...conftest import Sandbox
from ...hosts import wait_until
from ...tiers import nightly
from .conftest import HERE, Make, Podrun

OWN = os.getpid()
"""Part of the seconds that the commands sleep: other tests may run on this machine."""


def live(mark: str) -> list[str]:
    """Command lines of live processes with `mark` in them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in text and int(folder.name) != os.getpid():
            found.append(text)
    return found


def wait_until_gone(mark: str) -> None:
    wait_until(lambda: not live(mark), f"the end of {mark}")


def test_exec_shows_equal_outputs_once(podrun: Podrun) -> None:
    """The header names the hosts; arguments arrive as they are."""
    words = ["a  b", "$HOME", "*", "q'uote", 'd"ouble', "back\\slash", "new\nline", "", "-x", "ümläut", "~/x", ";"]
    code = "import sys; print(sys.argv[1:])"
    done = podrun("exec", *HERE, "--", sys.executable, "-c", code, *words)
    assert (done.code, done.err) == (0, "")
    assert done.out == f"--- host-[0-2] (3 hosts)\n{words}\n"


def test_exec_ends_with_the_largest_code(podrun: Podrun, tmp_path: Path) -> None:
    """Hosts that differ are shown apart, and those that failed are named last."""
    once = f"mkdir {tmp_path}/once 2>/dev/null && {{ echo odd; exit 3; }}; echo even"
    done = podrun("exec", *HERE, "--", "sh", "-c", once)
    odd = re.search(r"--- (host-\d): exit code 3\nodd\n", done.out)
    assert done.code == 3 and odd and "(2 hosts)\neven\n" in done.out
    assert done.err == f"podrun: {odd[1]}: exit code 3\n"
    killed = podrun("exec", *HERE, "--json", "--", "sh", "-c", "echo last words; kill -9 $$")
    assert killed.code == killed.json["code"] == 137
    assert killed.json["hosts"]["host-1"] == {"code": 137, "output": "last words\n", "left_out": 0, "error": None}


def test_exec_of_what_is_not_there(podrun: Podrun) -> None:
    """As a shell would say it."""
    done = podrun("exec", *HERE, "--", "no-such-command", "-x")
    assert done.code == 127
    assert "podrun: cannot start no-such-command: No such file or directory" in done.out
    assert "exit code 127" in done.err


def test_exec_leaves_nothing_after_its_timeout(podrun: Podrun) -> None:
    """The command is killed with what it started, also in a session of its own."""
    done = podrun(
        "exec", *HERE, "--timeout", "1", "--", "sh", "-c", f"echo begun; setsid sleep 4711.{OWN} & sleep 4711.{OWN}"
    )
    assert done.code == 124
    assert "(3 hosts)\nbegun\n" in done.out
    assert done.err == "podrun: host-[0-2]: was killed after 1 s (--timeout)\n"
    wait_until_gone(f"sleep 4711.{OWN}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, *nightly(signal.SIGTERM)])
def test_exec_leaves_nothing_when_it_is_ended(sandbox: Sandbox, number: int) -> None:
    """By Ctrl-C, and also when podrun itself is killed and cannot tell anybody."""
    mark = f"sleep 4712.{OWN}{number}"
    command = [*sandbox.command, "exec", *HERE, "--", "sh", "-c", f"{mark} & {mark}"]
    process = subprocess.Popen(command, env=sandbox.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: sum(text.startswith("sleep") for text in live(mark)) >= 6, "two on each host")
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    wait_until_gone(mark)
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        assert err == (
            "podrun: killing it on host-0, host-1, host-2\npodrun: host-[0-2]: was killed when you interrupted podrun\n"
        )


def test_exec_does_not_wait_for_what_is_left_in_the_background(podrun: Podrun) -> None:
    """A server started by a command stays, though it holds the command's output."""
    done = podrun("exec", "--simulate", "-s", "cpu-1x1", "--", "sh", "-c", f"sleep 4713.{OWN} & echo $!")
    pid = int(done.out.splitlines()[1])
    assert live(f"sleep 4713.{OWN}")
    os.kill(pid, signal.SIGKILL)


def test_exec_keeps_the_ends_of_much_output(podrun: Podrun) -> None:
    """The command is not held up, and it is said how much is missing."""
    code = "import sys; [sys.stdout.write('%09d\\n' % n) for n in range(500000)]"
    found = podrun("exec", "--simulate", "-s", "cpu-1x1", "--json", "--", sys.executable, "-c", code).json
    row = found["hosts"]["host-0"]
    assert row["code"] == 0 and row["left_out"] == 5_000_000 - (1 << 20)
    assert row["output"].startswith("000000000\n") and row["output"].endswith("000499999\n")
    assert f"... {row['left_out']} bytes are left out here ..." in row["output"]


def test_exec_gives_no_input(podrun: Podrun) -> None:
    """A command gets the end of its input when it asks something."""
    done = podrun("exec", "--simulate", "-s", "cpu-1x1", "--", "cat")
    assert (done.code, done.out) == (0, "--- host-0: no output\n")


def test_exec_names_hosts_that_it_cannot_reach(podrun: Podrun, tmp_path: Path) -> None:
    """69, and the others have run it: here nobody can be reached."""
    (tmp_path / "known_hosts").touch()
    pod = tmp_path / "pod.yaml"
    pod.write_text("hosts: [127.0.0.1]\nssh: {port: 1, known_hosts: known_hosts}\n")
    done = podrun("exec", "--pod", str(pod), "--", "true")
    assert (done.code, done.out) == (69, "")
    assert done.err.startswith("podrun: 127.0.0.1: ") and "refused" in done.err


def test_exec_on_the_hosts_of_a_run(podrun: Podrun, make: Make) -> None:
    """--run takes the pod from the run's record."""
    make("20260101-000001-aaaa")
    assert podrun("exec", "--run", "aaaa", "--", "echo", "hi").out == "--- host-[0-1] (2 hosts)\nhi\n"

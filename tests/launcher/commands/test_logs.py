"""`podrun logs`: of which hosts, since when, how many lines, and as which bytes."""

from __future__ import annotations

import subprocess
import time

from podrun.launcher.rundir.logs import index_path

from ...conftest import Sandbox
from .conftest import Make, Podrun


def test_logs_in_the_order_of_arrival(podrun: Podrun, make: Make) -> None:
    """By the index, to the second; lines stay whole where a mark falls into one."""
    run = make("20260101-000001-aaaa")
    run.log("host-0", b"zero a\nzero b\nzero c\n", "100 0\n102 10\n")
    run.log("host-1", b"one a\none b", "101 0\n103 6\n")
    run.end()
    assert podrun("logs").out.splitlines() == [
        "host-0 | zero a",
        "host-0 | zero b",
        "host-1 | one a",
        "host-0 | zero c",
        "host-1 | one b",
    ]


def test_logs_of_chosen_hosts(podrun: Podrun, make: Make) -> None:
    """One file needs no prefix; a host may have several processes."""
    run = make("20260101-000001-aaaa", hosts={"gpu-0": [0, 1], "gpu-1": [2, 3], "10.0.0.5": [4]})
    for name in ("gpu-0.0", "gpu-0.1", "gpu-1.2", "gpu-1.3", "10.0.0.5"):
        run.log(name, f"I am {name}\n".encode())
    assert podrun("logs", "--host", "10.0.0.5").out == "I am 10.0.0.5\n"
    assert podrun("logs", "--host", "gpu-1.3").out == "I am gpu-1.3\n"
    assert podrun("logs", "--host", "gpu-0").out == "gpu-0.0 | I am gpu-0.0\ngpu-0.1 | I am gpu-0.1\n"
    assert len(podrun("logs", "--host", "gpu-[0-1]").out.splitlines()) == 4
    assert len(podrun("logs", "--host", "gpu-0.0", "--host", "10.0.0.5").out.splitlines()) == 2
    wrong = podrun("logs", "--host", "gpu-[1-2]")
    assert wrong.code == 2
    assert wrong.err == "podrun: --host gpu-[1-2]: gpu-2 is no host of this run; it has gpu-[0-1],10.0.0.5\n"


def test_the_last_lines_of_each(podrun: Podrun, make: Make) -> None:
    """-n counts lines of each process, an unfinished one too."""
    run = make("20260101-000001-aaaa")
    run.log("host-0", b"a\nb\nc\n")
    run.log("host-1", b"d\ne\nf")
    assert podrun("logs", "-n", "2").out.splitlines() == ["host-0 | b", "host-0 | c", "host-1 | e", "host-1 | f"]
    assert podrun("logs", "-n", "0").out == ""
    assert len(podrun("logs", "-n", "99").out.splitlines()) == 6


def test_logs_since_a_time(podrun: Podrun, make: Make) -> None:
    """Shows lines that arrived after that: whole ones, at most a second's too many, never one too few."""
    run = make("20260101-000001-aaaa")
    now = time.time()
    run.log("host-0", b"old\nnew\nnewer\n", f"{now - 3600:.3f} 0\n{now - 100:.3f} 5\n{now - 50:.3f} 8\n")
    assert podrun("logs", "--since", "2h").out == "host-0 | old\nhost-0 | new\nhost-0 | newer\n"
    assert podrun("logs", "--since", "2m").out == "host-0 | new\nhost-0 | newer\n"  # the mark is inside of its line
    assert podrun("logs", "--since", "1m").out == "host-0 | newer\n"
    assert podrun("logs", "--since", "1m", "-n", "5").out == "host-0 | newer\n"
    assert podrun("logs", "--since", "10s").out == ""
    index_path(run.directory.logs, "host-0").unlink()
    assert "logs have no times" in podrun("logs", "--since", "10s").err


def test_logs_are_told_as_text_and_raw_byte_for_byte(sandbox: Sandbox, make: Make) -> None:
    """Bytes that are no text are shown as \\xff; of a progress bar its last state; Windows' ends of lines are none."""
    run = make("20260101-000001-aaaa")
    run.log("host-0", b"\xff\xfe\n 10%\r 50%\r100%\nfrom windows\r\n")
    command = [*sandbox.command, "logs", "--host", "host-0"]
    out = subprocess.run(command, env=sandbox.env, capture_output=True, check=True).stdout
    assert out == b"\\xff\\xfe\n100%\nfrom windows\n"
    raw = subprocess.run([*command, "--raw"], env=sandbox.env, capture_output=True, check=True).stdout
    assert raw == b"\xff\xfe\n 10%\r 50%\r100%\nfrom windows\r\n"


def test_logs_of_a_run_that_printed_nothing(podrun: Podrun, make: Make) -> None:
    """It is said on stderr, so that a pipe gets nothing."""
    run = make("20260101-000001-aaaa")
    done = podrun("logs")
    assert (done.code, done.out) == (0, "")
    assert "nothing was printed" in done.err and f"`podrun status {run.id}`" in done.err

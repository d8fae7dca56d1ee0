"""`podrun logs -f`: all that comes, until the run ends, its launcher is gone, or the user has seen enough."""

from __future__ import annotations

import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from podrun.launcher.rundir.logs import Logs

from ...conftest import Sandbox
from .conftest import Make


@dataclass
class Following:
    """`podrun logs -f` in another process."""

    process: subprocess.Popen[bytes]
    first: threading.Event

    def end(self) -> tuple[int, list[bytes], str]:
        code = self.process.wait(120)
        self.reader.join(60)
        assert self.process.stderr
        return code, self.lines, self.process.stderr.read().decode()

    def __post_init__(self) -> None:
        self.lines: list[bytes] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(line.rstrip(b"\n"))
            self.first.set()


@pytest.fixture
def follow(sandbox: Sandbox) -> Iterator[Callable[..., Following]]:
    started: list[Following] = []

    def start(*args: str) -> Following:
        command = [*sandbox.command, "logs", "-f", *args]
        pipe = subprocess.PIPE
        started.append(
            Following(subprocess.Popen(command, env=sandbox.env, stdout=pipe, stderr=pipe), threading.Event())
        )
        return started[-1]

    yield start
    for following in started:
        following.process.kill()
        following.process.wait()


def test_following_loses_nothing_and_mixes_nothing(make: Make, follow: Callable[..., Following]) -> None:
    """Several hosts, pieces that end anywhere, lines that come with the end of the run."""
    chance = random.Random(1)
    run = make("20260101-000001-aaaa")
    run.log("host-0", b"before\n")
    wanted = {
        name: [f"{name} says {n} {'x' * chance.randrange(90)}".encode() for n in range(400)] for name in run.hosts
    }
    rest = {name: b"\n".join(lines) for name, lines in wanted.items()}  # the last line has no end
    with run.directory.supervise(), Logs(run.directory.logs) as logs:
        following = follow()
        assert following.first.wait(120)
        while any(rest.values()):
            name = chance.choice(list(rest))
            size = chance.randrange(1, 900)
            logs.write(name, rest[name][:size])
            rest[name] = rest[name][size:]
            time.sleep(0.005)
        run.end()
    code, lines, err = following.end()
    assert (code, err) == (0, "podrun: done\n")
    assert lines[0] == b"host-0 | before"
    for name, texts in wanted.items():
        mine = [line for line in lines[1:] if line.startswith(f"{name} | ".encode())]
        assert mine == [f"{name} | ".encode() + text for text in texts]
    assert len(lines) == 801


def test_following_begins_with_the_last_lines(make: Make, follow: Callable[..., Following]) -> None:
    """As many as -n says; the run has ended already."""
    run = make("20260101-000001-aaaa")
    run.log("host-0", b"".join(b"%d\n" % n for n in range(100)))
    run.end(0)
    assert follow("-n", "2").end() == (0, [b"host-0 | 98", b"host-0 | 99"], "podrun: done\n")
    assert len(follow().end()[1]) == 20


def test_ctrl_c_ends_following_quietly(make: Make, follow: Callable[..., Following]) -> None:
    """130, and not a word; the run goes on."""
    run = make("20260101-000001-aaaa")
    run.log("host-0", b"hello\n")
    with run.directory.supervise():
        following = follow()
        assert following.first.wait(120)
        following.process.send_signal(signal.SIGINT)
        assert following.end() == (130, [b"host-0 | hello"], "")


def test_following_notices_that_nobody_supervises_the_run_any_more(
    make: Make, follow: Callable[..., Following]
) -> None:
    """Nothing will come: it says so, and what to do, instead of waiting for ever."""
    run = make("20260101-000001-aaaa")
    run.log("host-0", b"hello\n")
    with run.directory.supervise():
        following = follow()
        assert following.first.wait(120)
    code, lines, err = following.end()
    assert (code, lines) == (69, [b"host-0 | hello"])
    assert "its launcher is gone" in err and f"`podrun attach {run.id}`" in err

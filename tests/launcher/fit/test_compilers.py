"""The processes that compile: how many at once, and what becomes of them. Here each is a small program of its own."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.fit import compilers
from podrun.launcher.fit.compilers import Compilers, Stopped
from podrun.launcher.request.query_process import QueryError
from podrun.runtime.contract import UserError
from podrun.runtime.layout_facts import Measured
from podrun.runtime.queries import LayoutsAnswer

PROGRAM = """
import json, os, pathlib, sys, time
folder = pathlib.Path(__file__).parent
question = json.loads(sys.stdin.readline())
mine = folder / f"running-{os.getpid()}"
mine.touch()
running = len([*folder.glob("running-*")])
with (folder / "most").open("a") as file:
    file.write(f"{running}\\n")
if "wait" in question:
    time.sleep(question["wait"])
if question.get("together") and running > 1 or question.get("kill"):
    mine.unlink()
    os.kill(os.getpid(), 9)
mine.unlink()
if "say" in question:
    print(question["say"])
if "err" in question:
    print(question["err"], file=sys.stderr)
sys.exit(question.get("code", 0))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_text(f"#!{sys.executable} -IS{PROGRAM}")  # without site: it is started often
    path.chmod(0o700)
    return path


def most(program: Path) -> int:
    """Return the number of processes that ran at once."""
    return max(int(line) for line in (program.parent / "most").read_text().splitlines())


def ask(some: Compilers, question: dict[str, Any]) -> LayoutsAnswer:
    return some.ask(question, {})


def answer(memory: int) -> LayoutsAnswer:
    """Return an answer of the compiler that took that much memory."""
    return LayoutsAnswer(Measured(True, 1, 2, {}, 0, 0, 1.0, memory), [])


def said(memory: int) -> dict[str, Any]:
    return {"say": json.dumps(asdict(answer(memory)))}


def questions(*texts: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"wait": 0.5, **said(1000), **text} for text in texts]


def test_an_answer_and_the_ways_to_fail(program: Path) -> None:
    with Compilers(str(program)) as some:
        assert ask(some, said(5)) == answer(5)
        with pytest.raises(UserError, match=r"^batch_size: is wrong$"):
            ask(some, {"say": "batch_size: is wrong", "code": 2})
        with pytest.raises(QueryError, match=r"^ValueError: no\nin mine.py$"):
            ask(some, {"say": "ValueError: no\nin mine.py", "code": 1, "err": "Traceback"})
        with pytest.raises(
            QueryError, match=r"^the process that compiled a layout ended with exit code 1: the last line$"
        ):
            ask(some, {"code": 1, "err": "a line\nthe last line"})


def test_as_many_at_once_as_there_are_processors(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "_AT_FIRST", 1000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    with Compilers(str(program)) as some, ThreadPoolExecutor() as threads:
        assert len([*threads.map(partial(ask, some), questions({}, {}, {}, {}))]) == 4
    assert most(program) == 2


def test_one_at_a_time_if_memory_is_short(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once one has ended, it is known how much they take."""
    monkeypatch.setattr(compilers, "_AT_FIRST", 2**60)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    huge = said(2**50)
    with Compilers(str(program)) as some, ThreadPoolExecutor() as threads:
        [*threads.map(partial(ask, some), questions(huge, huge, huge))]
        assert most(program) == 1
    with Compilers(str(program)) as some, ThreadPoolExecutor() as threads:
        ask(some, questions({})[0])
        [*threads.map(partial(ask, some), questions({}, {}))]
    assert most(program) == 2


def test_one_that_is_killed_is_started_again_alone(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel kills a process when memory is exhausted."""
    monkeypatch.setattr(compilers, "_AT_FIRST", 1000)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    with Compilers(str(program)) as some, ThreadPoolExecutor() as threads:
        answers = [*threads.map(partial(ask, some), questions({"together": True}, {"together": True}))]
        assert answers == [answer(1000)] * 2
        assert most(program) == 2
        with pytest.raises(QueryError, match=r"^the process .* was ended by signal 9, probably .* no memory left"):
            ask(some, {"kill": True})


def test_stop_leaves_no_process(program: Path) -> None:
    some = Compilers(str(program))
    with ThreadPoolExecutor() as threads:
        asked = [threads.submit(ask, some, {"wait": 60}) for _ in range(5)]
        deadline = time.monotonic() + 20
        while not [*program.parent.glob("running-*")] and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        started = [int(path.name.rpartition("-")[2]) for path in program.parent.glob("running-*")]
        some.stop()
        for one in asked:
            with pytest.raises(Stopped):
                one.result(timeout=20)
    assert started and not any(Path(f"/proc/{pid}").exists() for pid in started)

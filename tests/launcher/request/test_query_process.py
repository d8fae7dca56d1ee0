"""The process that answers one question: how it ends, and what is said about it. Here it is a small program of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from podrun.launcher.request.query_process import QueryError, QueryProcess, query_environment
from podrun.runtime.contract import UserError

from ...hosts import wait_until

PROGRAM = """
import json, os, subprocess, sys, time
from podrun.runtime.contract import UserError
from podrun.runtime.worker.query import answer_query

def work(query):
    if "start" in query:
        child = subprocess.Popen(["sleep", "600"])
        with open(query["start"] + ".part", "w") as file:
            file.write(f"{os.getpid()} {child.pid}")
        os.rename(query["start"] + ".part", query["start"])
    if "err" in query:
        print(query["err"], file=sys.stderr, flush=True)
    if "mistake" in query:
        raise UserError(query["mistake"])
    if "raise" in query:
        raise ValueError(query["raise"])
    if "exhaust" in query:
        raise MemoryError
    if "kill" in query:
        os.kill(os.getpid(), query["kill"])
    if "exit" in query:
        os._exit(query["exit"])
    if "wait" in query:
        time.sleep(600)
    return query["say"]

answer_query(work)
"""
ASK = """
from podrun.launcher.request.query_process import *
QueryProcess({!r}, "answering", query_environment({{}}), "worked").ask({!r})
"""
GLOG = "F1125 22:17:42.502257   32544 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --a=1"


@pytest.fixture(autouse=True)
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "answering.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def ask(**query: object) -> str:
    return QueryProcess(sys.executable, "answering", query_environment({}), "worked").ask(query)


def are_alive(pids: list[int]) -> bool:
    """Return whether one of them is neither gone nor a zombie."""
    states = [subprocess.run(["ps", "-o", "stat=", str(pid)], capture_output=True, text=True).stdout for pid in pids]
    return any(state.strip() and not state.startswith("Z") for state in states)


def test_an_answer() -> None:
    assert ask(say="two\nlines", err="a warning") == "two\nlines"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"raise": "no"}, r"^ValueError: no\nin answering.py, line \d+: raise ValueError\(query\[.raise.\]\)$"),
        ({"exit": 1}, "^the process that worked ended with exit code 1: it said nothing$"),
        (
            {"exit": 3, "err": "a line\nthe last line"},
            "^the process that worked ended with exit code 3: the last line$",
        ),
        ({"exit": 1, "err": f"W1 a\n{GLOG}\n*** stack"}, "exit code 1: Unknown flag in XLA_FLAGS: --a=1$"),
        ({"exit": 1, "err": "ERROR: Unknown command line flag 'a'\nbye"}, "flag 'a' in LIBTPU_INIT_ARGS$"),
        ({"kill": signal.SIGABRT, "err": GLOG}, "^the process that worked was ended by signal 6: Unknown flag in XLA"),
        (
            {"kill": signal.SIGKILL},
            "^the process that worked was ended by signal 9, probably because .* no memory left\n",
        ),
        (
            {"kill": signal.SIGSEGV, "err": "RAW: mmap error: 12\nstack"},
            "^the process that worked was ended by signal 11, probably because .* no memory left\n",
        ),
        ({"exhaust": True}, "^the process that worked ended with exit code 1, probably because .* no memory left\n"),
    ],
)
def test_failures(query: dict[str, object], message: str) -> None:
    """The line that says why the process ended, without the compiler's other messages."""
    with pytest.raises(QueryError, match=message) as failed:
        ask(**query)
    assert failed.value.is_raised == ("raise" in query)
    assert failed.value.is_killed == ("no memory left" in message)


def test_a_mistake_of_the_user() -> None:
    with pytest.raises(UserError, match=r"^batch_size: is wrong$"):
        ask(mistake="batch_size: is wrong")


def test_what_it_started_ends_with_it(tmp_path: Path) -> None:
    assert ask(start=str(tmp_path / "pids"), say="done") == "done"
    pids = [*map(int, (tmp_path / "pids").read_text().split())]
    wait_until(lambda: not are_alive(pids), "the end of what it started")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_podrun(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C, and a kill that podrun cannot notice."""
    query = {"start": str(tmp_path / "pids"), "wait": True}
    asking = subprocess.Popen([sys.executable, "-c", ASK.format(sys.executable, query)], stderr=subprocess.DEVNULL)
    try:
        wait_until((tmp_path / "pids").exists, "the process works")
        pids = [*map(int, (tmp_path / "pids").read_text().split())]
        assert are_alive(pids)
        asking.send_signal(number)
        asking.wait(30)
    finally:
        asking.kill()
        asking.wait()
    wait_until(lambda: not are_alive(pids), "the end of what it started")


def test_the_flags_of_this_user_are_not_those_of_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--mine")
    assert query_environment({})["XLA_FLAGS"] == "--mine"
    assert "XLA_FLAGS" not in query_environment({}, is_for_hosts=True)
    assert query_environment({"XLA_FLAGS": "--a"}, is_for_hosts=True)["XLA_FLAGS"] == "--a"
    assert (
        query_environment({}, is_for_hosts=True).items() >= {"JAX_PLATFORMS": "cpu", "PATH": os.environ["PATH"]}.items()
    )

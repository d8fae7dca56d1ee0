"""News of a run, sent to those who look at it: steps, ends, and what is done for many at once."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from podrun.launcher.commands.stop import stop
from podrun.launcher.report import records
from podrun.launcher.report.records import Reading
from podrun.launcher.watch.feed import Feed
from podrun.launcher.watch.follower import Follower
from podrun.launcher.watch.run_source import RunSource
from podrun.runtime.contract import UserError

from ..report.made import BEGIN
from ..rundir.made import ID, event, make
from .conftest import LIMIT, Client, LiveRun, data_of


def losses(message: dict[str, Any]) -> list[tuple[float, float]]:
    """Return steps and losses that a message brings."""
    drawn = message.get("points") or message.get("data") or {"charts": []}
    for chart in drawn["charts"]:
        if chart["key"] == "loss":
            x = array("d", base64.b64decode(drawn["places"][chart["series"][0]["x"]]))
            return list(zip(x, array("f", base64.b64decode(chart["series"][0]["y"])), strict=True))
    return []


def first(news: Iterator[dict[str, Any]], is_it: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
    """Return the first message that is the one; the connection's limit ends the wait."""
    return next(message for message in news if is_it(message))


def readers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("watch ")]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_new_steps_come_once_and_in_order(client: Client, run: LiveRun) -> None:
    """Those on record are on the page; the first news of a curve brings all of it, the others what is new."""
    run.step(1, 4.0)
    page = client.ask(f"run/{ID}").text
    assert losses({"data": data_of(page)}) == [(1, 4.0)]
    news = client.news(f"run/{ID}", data_of(page)["live"]["after"])
    received: list[tuple[float, float]] = []
    for step in (2, 3, 4):
        run.step(step, 8.0 / step)
        message = first(news, losses)
        received += losses(message)
        assert f"<dt>step</dt><dd>{step}/<wbr>9</dd>" in message["parts"]["tiles"]
    assert received == [(2, 4.0), (3, pytest.approx(8 / 3)), (4, 2.0)]
    assert losses({"data": data_of(client.ask(f"run/{ID}").text)}) == [(1, 4.0), *received]


def test_a_page_from_before_the_first_step_gets_its_curves(client: Client, run: LiveRun) -> None:
    news = client.news(f"run/{ID}")
    run.step(1)
    message = first(news, losses)
    assert "metrics" in message["parts"] and message["order"][:3] == ["verdict", "tiles", "metrics"]
    assert message["data"]["charts"][0]["series"][0]["name"] == "training"


def test_a_line_counts_when_it_is_whole(run: LiveRun) -> None:
    run.step(1)
    follower = Follower(run.directory)
    follower.advance()
    line = run.directory.events.read_bytes().splitlines(keepends=True)[-2].replace(b'"step": 1', b'"step": 2')
    with run.directory.events.open("ab", buffering=0) as file:
        file.write(line[:30])
        follower.advance()
        assert [step.values["step"] for step in follower.records.steps] == [1]
        file.write(line[30:])
        follower.advance()
    assert [step.values["step"] for step in follower.records.steps] == [1, 2]


def test_the_end_is_told_and_the_page_stays(client: Client, run: LiveRun) -> None:
    news = client.news(f"run/{ID}")
    run.step(1)
    run.end()
    message = first(news, lambda message: message.get("state") == "done")
    assert "<h2>Done</h2>" in message["parts"]["verdict"]
    wait_until(lambda: "<h2>Done</h2>" in client.ask(f"run/{ID}").text)  # one made just before serves for a second


def test_a_folder_that_is_removed_is_said(client: Client, run: LiveRun) -> None:
    news = client.news(f"run/{ID}")
    shutil.rmtree(run.directory.path)
    message = first(news, lambda message: "removed" in message)
    assert str(run.directory.path) in message["removed"]
    assert client.ask(f"run/{ID}").status == 200  # what was known of it stays


def test_many_browsers_share_one_reader(client: Client, run: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line is read once and each message is made once, whoever watches; nobody watches: nothing is read."""
    taken: list[bytes] = []
    take = Reading.take
    monkeypatch.setattr(Reading, "take", lambda self, line: (taken.append(line), take(self, line))[1])
    after = data_of(client.ask(f"run/{ID}").text)["live"]["after"]
    everyone = [client.news(f"run/{ID}", after) for _ in range(20)]
    wait_until(lambda: len(readers()) == 1)
    run.step(1)
    run.end()
    ended = [first(news, lambda message: message.get("state") == "done") for news in everyone]
    assert len({message["id"] for message in ended}) == 1 and ended == [ended[0]] * 20
    assert readers() == [f"watch {ID}"]
    assert sorted(taken) == sorted(run.directory.lines())
    client._open.close()  # all leave
    wait_until(lambda: readers() == [])
    run.step(2)
    assert len(taken) == len([*run.directory.lines()]) - 2


def test_a_mistake_of_podruns_own_is_said_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    class Broken:
        name = "4f2a"

        def poll(self) -> dict[str, Any]:
            raise KeyError("loss")

        def html(self, number: int) -> str:
            raise AssertionError

    feed = Feed(Broken())
    for number in range(2):  # whoever comes next is told as well
        assert b"4f2a cannot be shown any further: KeyError: 'loss'" in next(feed.messages(number, lambda: True))
        wait_until(lambda: not feed._is_looking)
    assert capsys.readouterr().err.count("in poll") == 2


def test_who_was_away_for_long_gets_the_whole_page(run: LiveRun) -> None:
    """Likewise whoever comes with a number that was never given."""
    feed = Feed(RunSource(Follower(run.directory)))
    for number in range(300):
        feed.tell({"notice": str(number)})
    for after in (0, 1000):
        message = next(feed.messages(after, lambda: False))
        assert re.fullmatch(rb'id: 30\d\ndata: {"reload":true}\n\n', message)  # the reader may have told more by now
    rows = next(feed.messages(298, lambda: False))
    assert rows.startswith(b'id: 299\ndata: {"notice":"298"}\n\nid: 300\ndata: {"notice":"299"}\n\n')


def test_a_long_run_is_thinned_out_again(run: LiveRun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower keeps the newest step always; when that has become too many it reads again, and the page is told."""
    monkeypatch.setattr(records, "MAX_STEPS", 10)
    follower = Follower(run.directory)
    source = RunSource(follower)
    for step in range(1, 100):
        run.step(step, 100.0 / step)
        source.poll()
        assert follower.records.steps[-1].values["step"] == step and len(follower.records.steps) <= 22
    assert follower.generation > 1
    lowest, highest = ([getattr(step, name) for step in follower.records.steps] for name in ("lowest", "highest"))
    assert min(lowest) == pytest.approx(100 / 99) and max(highest) == 100.0


SUPERVISOR = """
import signal, sys, time
from pathlib import Path
from podrun.launcher.rundir.runs import Recorder, RunDirectory
directory = RunDirectory(Path(sys.argv[1]))
ended = []
signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
with directory.supervise():
    print("ready", flush=True)
    deadline = time.monotonic() + 60
    while not ended and time.monotonic() < deadline:
        time.sleep(0.02)
    end = {"event": "end", "time": time.time(), "code": 143, "host": None, "message": "interrupted"}
    Recorder(directory.events).event(end)
"""


def test_stop_ends_a_run_as_podrun_stop_does(client: Client) -> None:
    """Its supervisor gets the signal of `podrun stop`, and the page says how it ended."""
    directory = make()
    client.server._stop = lambda name: stop(name, now=False)
    with subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(directory.path)], stdout=subprocess.PIPE
    ) as supervisor:
        assert supervisor.stdout is not None and supervisor.stdout.readline() == b"ready\n"
        news = client.news(f"run/{ID}")
        assert client.ask(f"run/{ID}/stop", "POST").status == 202
        assert first(news, lambda message: message.get("state") == "interrupted")
        assert supervisor.wait(LIMIT) == 0


def test_a_stop_that_fails_is_told(client: Client, run: LiveRun) -> None:
    def refuse(name: str) -> None:
        raise UserError("its supervisor is deaf")

    client.server._stop = refuse
    news = client.news(f"run/{ID}")
    client.ask(f"run/{ID}/stop", "POST")
    message = first(news, lambda message: "notice" in message)
    assert message["notice"] == "The run has not been stopped: its supervisor is deaf"


def test_marks_come_with_their_steps(client: Client, run: LiveRun) -> None:
    run.step(1)
    news = client.news(f"run/{ID}")
    run.record(event("checkpoint", 0, time=BEGIN + 3, step=1))
    assert first(news, lambda message: message.get("marks"))["marks"] == [[1, "save"]]

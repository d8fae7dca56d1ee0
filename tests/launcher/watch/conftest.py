"""Shared here: runs that are being recorded, and a server for them."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from podrun.launcher.rundir.runs import Recorder, RunDirectory
from podrun.launcher.watch.server import WatchServer

from ..report.made import BEGIN, phase, start
from ..rundir.made import ID, event, make

LIMIT = 60.0  # seconds, on a machine that is busy


class LiveRun:
    """A run that this process supervises and records, as podrun does."""

    def __init__(self, run_id: str = ID) -> None:
        self.directory: RunDirectory = make(run_id)
        self.recorder = Recorder(self.directory.events)
        self.record(start(0, 0), *phase("train", 1))

    def record(self, *events: dict[str, Any]) -> None:
        for one in events:
            self.recorder.event(one)

    def step(self, step: int, loss: float = 1.0, **metrics: float) -> None:
        """Record a step of both processes; as in a real record, host and process come last."""
        for process in range(2):
            values = event("step", time=BEGIN + 1 + step, step=step, loss=loss, **metrics)
            self.record({**values, "host": f"host-{process}", "process": process})

    def end(self) -> None:
        self.record(event("end", time=BEGIN + 100, code=0))


@contextmanager
def live_run(run_id: str = ID) -> Iterator[LiveRun]:
    run = LiveRun(run_id)
    with run.directory.supervise(), closing(run.recorder):
        yield run


@pytest.fixture
def run() -> Iterator[LiveRun]:
    with live_run() as run:
        yield run


@dataclass
class Answer:
    """Answer of the server."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass
class Client:
    """Browser without a screen: it asks, and listens to news."""

    server: WatchServer
    stopped: list[str]
    _open: ExitStack = field(default_factory=ExitStack)

    def ask(self, path: str, method: str = "GET", token: str | None = None, **headers: str) -> Answer:
        """Send a request with the server's token, or another one."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=LIMIT)) as connection:
            token = self.server.token if token is None else token
            connection.request(method, f"/{token}/{path}", headers=headers)
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())

    def news(self, path: str, after: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the messages that follow a page, or message `after`. Each has its number as `id`."""
        if after is None:
            after = data_of(self.ask(path).text)["live"]["after"]
        return self.messages(f"{path}/news?after={after}".lstrip("/"))

    def messages(self, path: str) -> Iterator[dict[str, Any]]:
        connection = self._open.enter_context(
            closing(http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=LIMIT))
        )
        connection.request("GET", f"/{self.server.token}/{path}")
        answer = connection.getresponse()
        assert answer.getheader("Content-Type") == "text/event-stream"
        self._open.enter_context(closing(answer))
        return self._messages(answer)

    def _messages(self, answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
        number = 0
        for line in answer:
            name, _, text = line.decode().strip().partition(": ")
            if name == "id":
                number = int(text)
            elif name == "data":
                yield {"id": number, **json.loads(text)}


def data_of(page: str) -> dict[str, Any]:
    text = page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    data: dict[str, Any] = json.loads(text)
    return data


@pytest.fixture
def client() -> Iterator[Client]:
    """Serve on a free port; what is to be stopped is noted, and not stopped."""
    stopped: list[str] = []
    server = WatchServer(0, stopped.append)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    client = Client(server, stopped)
    with client._open:
        yield client
    server.shutdown()
    thread.join(LIMIT)
    server.server_close()

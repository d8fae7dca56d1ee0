"""A machine of Google's that will be taken away: the agent is told in time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from podrun.launcher.agent import notice
from podrun.launcher.agent.notice import ENV_SERVER, Notice, is_google

from ...hosts import wait_until


class Metadata(BaseHTTPRequestHandler):
    """The metadata server, as far as it is asked."""

    values: dict[str, str]
    changed: threading.Condition

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        key = path.removeprefix("/computeMetadata/v1/instance/")
        assert self.headers["Metadata-Flavor"] == "Google"
        with self.changed:
            if query:
                before = query.rpartition("last_etag=")[2]
                self.changed.wait_for(lambda: self.values[key] != before, timeout=60)
            value = self.values[key]
        self.send_response(200)
        self.send_header("ETag", value)
        self.end_headers()
        self.wfile.write(value.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Metadata]]:
    class Server(Metadata):
        values = {"maintenance-event": "NONE", "preempted": "FALSE"}
        changed = threading.Condition()

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as http:
        http.daemon_threads = True
        monkeypatch.setenv(ENV_SERVER, f"127.0.0.1:{http.server_port}")
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield Server
        with Server.changed:
            Server.values = dict.fromkeys(Server.values, "the end")
            Server.changed.notify_all()
        http.shutdown()
        thread.join()


@pytest.fixture
def signals() -> Iterator[list[int]]:
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    yield received
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE", "maintenance event"),
        ("preempted", "TRUE", "preemption of the machine"),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_the_notice(
    server: type[Metadata], signals: list[int], key: str, value: str, reason: str, at_once: bool
) -> None:
    """SIGTERM, and the reason, whether the notice is there already or comes later; a migration is none."""
    watched = Notice()
    if at_once:
        server.values[key] = value
    watched.watch()
    if not at_once:
        assert watched.reason() is None
        for text in ("MIGRATE_ON_HOST_MAINTENANCE", value):
            with server.changed:
                server.values[key] = text
                server.changed.notify_all()
    wait_until(lambda: bool(signals), "the signal", 60)
    assert watched.reason() == reason
    os.wait()


def test_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is watched, and there is no reason."""
    monkeypatch.delenv(ENV_SERVER, raising=False)
    monkeypatch.setattr(notice, "_PRODUCT", "/no such file")
    watched = Notice()
    watched.watch()
    assert watched.reason() is None
    assert not is_google()


def test_a_machine_of_google(monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]) -> None:
    product = os.path.join(tmp_path, "product_name")
    with open(product, "w") as file:
        file.write("Google Compute Engine\n")
    monkeypatch.setattr(notice, "_PRODUCT", product)
    assert is_google()

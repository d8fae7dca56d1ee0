"""A machine of Google's that will be taken away: the agent is told in time."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from podrun.launcher.agent.host import google
from podrun.launcher.agent.host.google import ENV_SERVER, is_google
from podrun.launcher.agent.host.notice import Notice

from ...hosts import wait_until
from ...metadata_server import Metadata, serving, tpu_worker


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Metadata]]:
    with serving(tpu_worker()) as (address, server):
        monkeypatch.setenv(ENV_SERVER, address)
        yield server


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
    monkeypatch.setattr(google, "_PRODUCT", "/no such file")
    watched = Notice()
    watched.watch()
    assert watched.reason() is None
    assert not is_google()


def test_a_machine_of_google(monkeypatch: pytest.MonkeyPatch, tmp_path: os.PathLike[str]) -> None:
    product = os.path.join(tmp_path, "product_name")
    with open(product, "w") as file:
        file.write("Google Compute Engine\n")
    monkeypatch.setattr(google, "_PRODUCT", product)
    assert is_google()

"""A process whose data source is blocked saves for all when the pod is asked to stop."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import pytest

from podrun.runtime.worker import blocked
from podrun.runtime.worker.blocked import BlockedData
from podrun.runtime.worker.progress import Reporter


class Store:
    """The pod's key-value store, in which nothing is overwritten."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def key_value_set(self, name: str, value: str) -> None:
        if name in self.values:
            raise RuntimeError("ALREADY_EXISTS")
        self.values[name] = value

    def key_value_try_get(self, name: str) -> str:
        if name not in self.values:
            raise RuntimeError("NOT_FOUND")
        return self.values[name]


class Left(BaseException):
    """The process has ended."""


@pytest.fixture(autouse=True)
def _leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(code: int) -> NoReturn:
        raise Left(code)

    monkeypatch.setattr(os, "_exit", leave)


def yes() -> bool:
    return True


def no() -> bool:
    return False


def blocked_data(store: Any, grace: float = 0.0, stopping: bool = False) -> BlockedData:
    reporter = Reporter(None)
    reporter.stopping = stopping
    return BlockedData(reporter, grace, store)


def test_nobody_has_asked_for_a_stop() -> None:
    """Wait for a source that is slow, or blocked."""
    saves: list[int] = []
    blocked_data(Store()).check(yes, lambda: saves.append(1))
    blocked_data(None).check(yes, lambda: saves.append(1))
    assert saves == []


@pytest.mark.parametrize(("told", "stopping"), [(True, False), (False, True)])
def test_the_first_one_saves(told: bool, stopping: bool) -> None:
    """By a signal to this process, or by the word of another one; then it leaves with the code of a preemption."""
    store, saves = Store(), []
    if told:
        store.key_value_set("podrun/stop", "1")
    with pytest.raises(Left, match="75"):
        blocked_data(store, stopping=stopping).check(yes, lambda: saves.append(1))
    assert saves == [1]
    assert store.values["podrun/saved"]


def test_another_one_saves() -> None:
    """It is waited for: if this is process 0, all others would end with it."""
    store, saves = Store(), []
    store.key_value_set("podrun/saver", "1")
    store.key_value_set("podrun/saved", "1")
    with pytest.raises(Left, match="75"):
        blocked_data(store, stopping=True).check(yes, lambda: saves.append(1))
    assert saves == []


def test_data_may_still_come() -> None:
    """Before the grace period is over, and while a step is not complete, because another process is further behind."""
    store, saves = Store(), []
    patient = blocked_data(store, grace=3600, stopping=True)
    for _ in range(3):
        patient.check(yes, lambda: saves.append(1))
    blocked_data(store, stopping=True).check(no, lambda: saves.append(1))
    assert saves == []
    assert store.values == {}


def test_alone() -> None:
    """Save without asking anybody."""
    saves: list[int] = []
    with pytest.raises(Left, match="75"):
        blocked_data(None, stopping=True).check(yes, lambda: saves.append(1))
    assert saves == [1]


def test_telling_without_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tell nobody, and do not fail, in a process that has not joined or whose pod is gone."""
    monkeypatch.setattr(blocked, "pod_store", lambda: None)
    blocked.announce_stop()

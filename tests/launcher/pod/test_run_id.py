"""Names of runs."""

from __future__ import annotations

import re
import time

import pytest

from podrun.launcher.pod.run_id import new_run_id


def test_ids_of_one_moment_differ() -> None:
    ids = {new_run_id() for _ in range(20)}
    assert len(ids) > 15  # of 65536 random parts
    assert all(re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}", run_id) for run_id in ids)


def test_ids_sort_by_time_within_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """`podrun logs` shows the later one of two programs that ended within one second."""
    begin = 1_795_500_000.0
    ids = []
    for step in range(200):
        monkeypatch.setattr(time, "time", lambda now=begin + step * 0.01: now)
        ids.append(new_run_id())
    assert ids == sorted(ids)

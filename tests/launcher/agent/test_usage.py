"""Measure a host: what /proc counts becomes rates, and nvidia-smi is asked without being waited for."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from podrun.launcher.agent.base.from_agent import FROM_AGENT
from podrun.launcher.agent.host import usage
from podrun.launcher.agent.host.usage import Usage, counters, memory, parse_devices, rates


def test_counts_become_rates() -> None:
    before, after = (10.0, 1000, 600, 5000, 100), (20.0, 2000, 850, 15000, 100)
    assert rates(before, after) == {"cpu": 0.75, "received": 1000, "sent": 0}


def test_counts_that_go_back_are_nothing() -> None:
    """A network card may be taken away, and two looks may be at one moment."""
    assert rates((10.0, 1000, 600, 5000, 100), (10.0, 1000, 600, 0, 0)) == {"cpu": 0.0, "received": 0, "sent": 0}


def test_this_machine_has_counters() -> None:
    first, second = counters(1.0), counters(2.0)
    assert first is not None and second is not None
    assert all(b >= a for a, b in zip(first, second, strict=True))
    assert 0 < memory()["memory"] < memory()["memory_total"]


@pytest.mark.parametrize(
    ("answer", "rows"),
    [
        ("", []),
        (
            "37, 4096, 81920\n[N/A], 5, [Not Supported]\n",
            [(0.37, 4096 << 20, 81920 << 20), (None, 5 << 20, None)],
        ),
        ("No devices were found\n", [(None, None, None)]),
        ("1" * 5000 + ",,,,\n", [(None, None, None)]),
    ],
)
def test_answers_of_nvidia_smi(answer: str, rows: list[tuple[Any, ...]]) -> None:
    assert [tuple(row.values()) for row in parse_devices(answer)] == rows


def test_a_measurement_is_a_frame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call begins to count; GPUs are in the frame after the answer has come."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 50, 1, 2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    now = [100.0]
    monkeypatch.setattr(usage, "time", SimpleNamespace(monotonic=lambda: now[0]))
    sent: list[dict[str, Any]] = []
    connection: Any = SimpleNamespace(offsets={}, unsent=b"", send=sent.append)
    measured = Usage()
    for now[0] in (100.0, 101.0, 102.0, 111.0, 112.0):
        measured.send(connection)
        if measured.query is not None:
            measured.query.wait(timeout=60)
    assert len(sent) == 2
    for frame in sent:
        FROM_AGENT["usage"](frame)
        assert frame["devices"] == [{"busy": 0.5, "memory": 1 << 20, "memory_total": 2 << 20}]
    measured.send(SimpleNamespace(offsets=None, unsent=b"", send=pytest.fail))  # type: ignore[arg-type]

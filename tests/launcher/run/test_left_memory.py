"""Checkpoints in memory that nobody removes are named when the run ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.plan import make_plan
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.run.left_memory import LeftMemory
from podrun.runtime.config import Config


def host(phase: str, name: str = "host-1", **values: Any) -> Any:
    return {"event": "host", "time": 1.0, "host": name, "phase": phase, **values}


LOST = host("lost", reason="gone", left=[])


@pytest.mark.parametrize(
    ("events", "is_left"),
    [
        ([host("hello"), LOST], True),
        ([host("hello"), LOST, host("hello"), host("stopped", left=[])], False),
        ([host("hello"), LOST, host("hello"), LOST], True),
        ([host("hello"), host("lost", reason="silent", left=None)], False),  # its agent removes it when its lease ends
        ([host("hello"), host("stopped", left=[])], False),
    ],
)
@pytest.mark.parametrize("every", [5, 0])
def test_what_a_killed_agent_leaves(events: list[Any], is_left: bool, every: int, tmp_path: Path) -> None:
    job = {"task": "regression", "steps": 9, "batch_size": 8, "checkpoint": {"memory_every": every}}
    spec = RunSpec("r-1", simulated_pod(parse_slice("cpu-2x1")), Config.model_validate(job), tmp_path, tmp_path)
    left = LeftMemory()
    for event in events:
        left.event(event)
    note = left.note(make_plan(spec, 0))
    if is_left and every:
        assert note is not None
        assert note.startswith("host-1: checkpoints in memory may be left in /dev/shm/podrun-r-1, ")
    else:
        assert note is None

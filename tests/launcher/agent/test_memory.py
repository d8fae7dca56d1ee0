"""Tell whether the kernel has killed a process for lack of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.agent.host import memory
from podrun.launcher.agent.host.memory import Kills, available, count_in, has_killed, kills, usage


@pytest.mark.parametrize(
    ("before", "after", "out_of_memory"),
    [
        ((3, 7), (4, 8), True),
        ((3, 7), (3, 7), False),
        ((3, 7), (3, 8), None),  # another cgroup's process, or a worker that has left this one
        ((None, 7), (None, 8), True),
        ((None, 7), (None, 7), False),
        ((3, None), (3, None), False),
        ((3, None), (4, None), True),
        ((None, None), (None, None), None),
    ],
)
def test_has_killed(before: Kills, after: Kills, out_of_memory: bool | None) -> None:
    """The count of the cgroup decides; without one, that of the machine."""
    assert has_killed(before, after) is out_of_memory


def test_counts_of_this_machine() -> None:
    """The counts never fall, and what a process can have is at most what the machine has."""
    before, after = kills(), kills()
    assert all(b is None or (a is not None and a >= b) for a, b in zip(after, before, strict=True))
    assert 0 < available() < 1 << 50
    assert " GB used of " in usage()


def test_a_limit_of_a_group_above_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM limits the step, and leaves the group of the task in it unlimited; sometimes the job has less than its step."""
    task = tmp_path / "system.slice" / "job_7" / "step_0" / "task_0"
    task.mkdir(parents=True)
    (task / "memory.max").write_text("max\n")
    (task.parent / "memory.max").write_text("8000000\n")
    (task.parent.parent / "memory.max").write_text("5000000\n")
    monkeypatch.setattr(memory, "CGROUPS", str(tmp_path))
    monkeypatch.setattr(memory, "groups", lambda: ((str(task), "memory.events", "memory.max"),))
    assert available() == 5000000
    (task / "memory.max").write_text("3000000\n")
    assert available() == 3000000


def test_count_in_a_file(tmp_path: Path) -> None:
    """The line `oom_kill N` counts, in files of every kind; a file without it does not."""
    file = tmp_path / "memory.events"
    file.write_text("low 0\noom 5\noom_kill 2\noom_group_kill 0\n")
    assert count_in(str(file)) == 2
    file.write_text("oom_kill_disable 0\nunder_oom 0\n")
    assert count_in(str(file)) is None
    assert count_in(str(tmp_path / "none")) is None

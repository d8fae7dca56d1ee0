"""The runs of an array are counted as its tasks, wherever runs are counted."""

from __future__ import annotations

import pytest

from podrun.launcher.pod.run_id import counted_runs, task_run_id

from .conftest import Make, Podrun

ARRAY, OTHER = "20260101-000000-aaaa11", "20260101-000001-bbbb22"
TASKS = [task_run_id(ARRAY, number, 30) for number in range(30)]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([OTHER], "1 run"),
        ([OTHER, OTHER], "2 runs"),
        (TASKS, "1 array with 30 tasks"),
        (TASKS[:1], "1 array with 1 task"),
        ([*TASKS, OTHER, task_run_id(OTHER, 0, 1)], "1 run and 2 arrays with 31 tasks"),
    ],
)
def test_counted_runs(ids: list[str], words: str) -> None:
    assert counted_runs(ids) == words


def test_stop_without_a_name(podrun: Podrun, make: Make) -> None:
    for task in TASKS:
        make(task)
    done = podrun("stop")
    assert done.code == 2
    assert f"1 array with 30 tasks is running: {ARRAY}; say which: podrun stop {ARRAY}, or a task such as" in done.err
    make(OTHER)
    done = podrun("stop")
    assert done.code == 2
    assert f"1 run and 1 array with 30 tasks are running: {OTHER}, {ARRAY}; say which: podrun stop RUN" in done.err


def test_a_name_of_several_tasks(podrun: Podrun, make: Make) -> None:
    for task in TASKS:
        make(task).end()
    done = podrun("report", ARRAY)
    assert done.code == 2
    assert f"'{ARRAY}' means 30 tasks of the array {ARRAY}; name one, such as {ARRAY}_" in done.err
    assert f"means 10 tasks of the array {ARRAY}" in podrun("report", f"{ARRAY}_1").err


def test_ps_counts_an_array_that_it_does_not_list_once(podrun: Podrun, make: Make) -> None:
    for task in TASKS:
        make(task).end()
    for number in range(11):
        make(f"20260102-0000{number:02d}-cccc33").end()
    assert podrun("ps").out.splitlines()[-1] == "2 more have ended: podrun ps --all"


def test_clean_lists_an_array_in_one_row(podrun: Podrun, make: Make) -> None:
    for number, task in enumerate(TASKS):
        make(task).end(number % 2, "host-0" if number % 2 else None)
    make(OTHER).end()
    done = podrun("clean", "--older-than", "0", "--dry-run")
    (row,) = [line for line in done.out.splitlines() if ARRAY in line]
    assert "array  15 done, 15 failed, " in row and row.endswith(f"/{ARRAY}_*")
    done = podrun("clean", "--older-than", "0")
    assert "remove 1 run and 1 array with 30 tasks here (" in done.err
    done = podrun("clean", "--older-than", "0", "--yes")
    assert "removed 1 run and 1 array with 30 tasks here" in done.out

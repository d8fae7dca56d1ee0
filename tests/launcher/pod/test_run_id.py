"""Names of runs."""

from __future__ import annotations

from podrun.launcher.pod.run_id import new_run_id


def test_run_ids_sort_by_time_and_differ() -> None:
    ids = [new_run_id() for _ in range(20)]
    assert len(set(ids)) > 15  # of 65536 random parts
    assert [i[:15] for i in ids] == sorted(i[:15] for i in ids)

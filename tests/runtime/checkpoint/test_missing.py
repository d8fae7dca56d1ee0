"""A run that is behind what was saved says so before it trains: with another first host its checkpoints are elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from podrun.runtime.checkpoint import missing
from podrun.runtime.contract import CHECKPOINT_MANIFEST, WorkerEnv
from podrun.runtime.storage.base import Storage
from podrun.runtime.storage.process_disk import ProcessDisk
from podrun.runtime.storage.shared_folder import SHARED_FOLDER
from podrun.runtime.worker.progress import Reporter

ENV = WorkerEnv("run-2", 0, "h3", 0, 4, (0,), "cpu-4x1", Path("/dir"))
FOLDER = Path("/w/checkpoints")
REMEDY = "To go on from step 300, stop this run, and list h0 first in the pod, or copy its workdir to"


@pytest.mark.parametrize("restored", [None, 0, 100])
@pytest.mark.parametrize("run", ["run-1", "run-2"])
def test_another_host_was_the_first(run: str, restored: int | None) -> None:
    """What was saved, by which run, where, with what the run begins now, and what to do."""
    text = missing.missing_on_record(ENV._replace(saved=f"300 h0 {run}"), FOLDER, restored)
    whose = "this run" if run == "run-2" else "run run-1"
    has = "none" if restored is None else f"none after step {restored}"
    assert text == (
        f"{whose} has saved step 300 in h0:/w/checkpoints, but h0 is not the first host any more, and h3, which is, has "
        f"{has}: training begins with step {(restored or 0) + 1}. {REMEDY} h3"
    )


def test_the_files_of_the_first_host_are_gone() -> None:
    text = missing.missing_on_record(ENV._replace(saved="300 h3 run-1"), FOLDER, None)
    assert text == (
        "run run-1 has saved step 300 in h3:/w/checkpoints, but no checkpoint is there now: training begins with step 1"
    )


@pytest.mark.parametrize(
    ("saved", "restored"),
    [
        ("", None),
        ("300 h0 run-1", 300),
        ("300 h0 run-1", 301),
        ("300 h3 run-1", 200),  # the newest one is damaged, which has been told
        ("many h0 run-1", None),
        ("300 h0", None),
        ("300 h0 run-1 x", None),
    ],
)
def test_nothing_is_missing(saved: str, restored: int | None) -> None:
    assert missing.missing_on_record(ENV._replace(saved=saved), FOLDER, restored) is None


class Notes(Reporter):
    """Keep what the reporter is told."""

    def __init__(self) -> None:
        super().__init__(None)
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[int], process: int, restored: int | None, disk: bool
) -> list[str]:
    """Return the notes of a process, if the newest checkpoints of the hosts are those of `steps`."""
    checkpoints = tmp_path / "checkpoints"
    for step in {1, steps[process]} - {0}:
        (checkpoints / str(step)).mkdir(parents=True)
        (checkpoints / str(step) / CHECKPOINT_MANIFEST).touch()
    (tmp_path / "checkpoints" / "999999").mkdir(parents=True)  # unfinished
    given: list[int] = []

    def gather(values: list[int]) -> np.ndarray:
        given.extend(values)
        return np.array(steps, np.uint32)[:, None]

    monkeypatch.setattr(missing, "gather", gather)
    storage: Storage = ProcessDisk("h0") if disk else SHARED_FOLDER
    env = ENV._replace(process_id=process, host=f"h{process}", saved="40 h9 run-1")
    reporter = Notes()
    missing.warn_of_missing(env, storage, checkpoints, restored, reporter)
    assert given == ([max(1, steps[process])] if disk else [])
    return reporter.notes


@pytest.mark.parametrize("process", [0, 1, 2, 3])
def test_a_host_of_the_pod_has_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, process: int) -> None:
    """The one with the newest says so, and no other; what the launcher has on record is not needed then."""
    notes = told(tmp_path, monkeypatch, [10, 20, 30, 30], process, 10, disk=True)
    assert len(notes) == (process == 2)
    if notes:
        assert notes[0].startswith(
            f"h2:{tmp_path}/checkpoints has a checkpoint of step 30, but h2 is not the first host"
        )
        assert "has none after step 10: training begins with step 11" in notes[0]


@pytest.mark.parametrize("disk", [True, False])
def test_a_host_that_is_away_has_a_newer_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disk: bool) -> None:
    """It is known from the record alone: on a shared folder, too, which that of a pod of one host looks like."""
    (note,) = told(tmp_path, monkeypatch, [10, 5, 0, 0], 0, 10, disk)
    assert note.startswith("run run-1 has saved step 40 in h9:")

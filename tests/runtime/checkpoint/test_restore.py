"""A damaged checkpoint is named, kept, and the one before it is restored."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from podrun.runtime.checkpoint.damage import DamagedCheckpointError
from podrun.runtime.checkpoint.restore import set_aside_newer
from podrun.runtime.contract import CHECKPOINT_MANIFEST, UserError
from podrun.runtime.storage.base import Storage
from podrun.runtime.storage.process_disk import ProcessDisk
from podrun.runtime.storage.shared_folder import SHARED_FOLDER
from podrun.runtime.worker.progress import Reporter

from ..strategies import assert_identical
from .damage import DAMAGE, cut, edit, empty, restore, state
from .saving import FINGERPRINT, job, opened, save


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_checkpoint(tmp_path: Path, saved: Path, kind: str) -> None:
    """It is named with its file and the reason, the one before is restored, and its step can be saved again."""
    damage, reason = DAMAGE[kind]
    shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints")
    newest = tmp_path / "checkpoints" / "20"
    damage(newest)
    with opened(tmp_path) as checkpoints:
        restored, notes = restore(tmp_path, checkpoints)
        assert restored is not None
        assert (restored.step, restored.position) == (10, 80)
        assert_identical(restored.state, state(10))
        assert len(notes) == 1
        assert reason in notes[0]
        assert "checkpoint 20" in notes[0]
        assert f"of step 10, and the damaged one is kept as {newest}.damaged-1" in notes[0]
        checkpoints.save(20, state(20), 160, job(), FINGERPRINT, {"loss": 1.0})
        assert checkpoints.completed(wait=True) == 20
    with opened(tmp_path) as checkpoints:
        restored, notes = restore(tmp_path, checkpoints)
        assert restored is not None
        assert (restored.step, notes) == (20, [])
    assert os.path.lexists(f"{newest}.damaged-1")


@pytest.mark.parametrize("storage", [SHARED_FOLDER, ProcessDisk("h0")])
def test_a_save_that_was_cut_off_before_its_manifest(tmp_path: Path, saved: Path, storage: Storage) -> None:
    """A power cut may leave files without their content, so an older checkpoint that can be verified is taken."""
    shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints")
    newest = tmp_path / "checkpoints" / "20"
    (newest / CHECKPOINT_MANIFEST).unlink()
    with opened(tmp_path, storage=storage) as checkpoints:
        restored, notes = restore(tmp_path, checkpoints, newer_than=15)
        assert restored is None and notes == ["checkpoint 20 has no manifest, which a save writes last"]
        restored, (note,) = restore(tmp_path, checkpoints)
        assert restored is not None and restored.step == 10
        assert_identical(restored.state, state(10))
        assert note == (
            "checkpoint 20 has no manifest, which a save writes last; the run continues from the one of step 10, and the "
            f"damaged one is kept as {newest}.damaged-1"
        )


def test_a_checkpoint_without_a_manifest_is_the_last_resort(tmp_path: Path, saved: Path) -> None:
    shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "20" / CHECKPOINT_MANIFEST).unlink()
    cut("state/manifest.ocdbt", 9)(tmp_path / "checkpoints" / "10")
    with opened(tmp_path) as checkpoints:
        restored, notes = restore(tmp_path, checkpoints)
        assert restored is not None and restored.step == 20
        assert notes[0] == "checkpoint 20 has no manifest, so it was not verified"
        assert notes[1].startswith("checkpoint 10 cannot be read")


def test_an_older_one_without_a_manifest_stays(tmp_path: Path, saved: Path) -> None:
    """It is of an older podrun; this one has gone on from it."""
    shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "10" / CHECKPOINT_MANIFEST).unlink()
    with opened(tmp_path) as checkpoints:
        restored, notes = restore(tmp_path, checkpoints)
        assert restored is not None and (restored.step, notes) == (20, [])
        assert checkpoints.steps() == [20, 10]


def test_only_newer_ones_are_tried_beside_one_in_memory(tmp_path: Path, saved: Path) -> None:
    """If none of them can be read, the one in memory is taken, and they are no longer in the way."""
    shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints")
    with opened(tmp_path) as checkpoints:
        restored, _ = restore(tmp_path, checkpoints, newer_than=15)
        assert restored is not None and restored.step == 20
        empty(tmp_path / "checkpoints" / "20")
        restored, (note,) = restore(tmp_path, checkpoints, newer_than=15)
        assert restored is None and "checkpoint 20" in note
        assert [*checkpoints.steps()] == [20, 10]
        set_aside_newer(checkpoints, 15, Reporter(tmp_path / "events"))
        assert [*checkpoints.steps()] == [10]


@pytest.mark.parametrize("name", ["9999", "0021", "99999999999", "9" * 40])
def test_a_folder_that_has_the_name_of_a_checkpoint(tmp_path: Path, saved: Path, name: str) -> None:
    """It is set aside, even if no step can have that number; checkpoints of lower steps are saved again."""
    shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / name).mkdir()
    with opened(tmp_path) as checkpoints:
        restored, notes = restore(tmp_path, checkpoints)
        assert restored is not None
        assert restored.step == 20
        assert len(notes) == 1
        save(checkpoints, 21)
        assert checkpoints.latest() == 21


def test_damaged_losses(tmp_path: Path, saved: Path) -> None:
    """A checkpoint whose loss cannot be read is restored; only which one is the best is not known any more."""
    shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints")
    losses = tmp_path / "checkpoints" / "20" / "metrics" / "metrics"
    losses.write_bytes(b"\xff\xfe{")
    with opened(tmp_path, keep=1, keep_best=1) as checkpoints:
        restored, notes = restore(tmp_path, checkpoints)
        assert restored is not None
        assert (restored.step, notes) == (20, [])
        save(checkpoints, 30, loss=2.0)
    assert not losses.parent.exists()


def test_no_checkpoint_that_can_be_read(tmp_path: Path, saved: Path) -> None:
    """Nothing is trained anew beside checkpoints, and nothing is renamed: the fault may be this host's."""
    shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints")
    for step in ("10", "20"):
        empty(tmp_path / "checkpoints" / step)
    with opened(tmp_path) as checkpoints, pytest.raises(UserError) as raised:
        restore(tmp_path, checkpoints)
    first, second, remedy = str(raised.value).splitlines()
    folder = tmp_path / "checkpoints"
    reasons = [f"checkpoint {step} cannot be read: {folder}/{step}: an empty folder" for step in (20, 10)]
    assert first == f"there is no checkpoint left that can be read: {reasons[0]}"
    assert second == reasons[1]
    assert "choose another --workdir" in remedy
    assert sorted(path.name for path in folder.iterdir()) == ["10", "20"]


class NotedDisk(ProcessDisk):
    """Process 0's disk, which notes what it is asked to bring."""

    def __init__(self) -> None:
        super().__init__("host-0")
        self.asked: list[Path] = []

    def before_restore(self, checkpoints: Path) -> None:
        self.asked.append(checkpoints)


def test_process_zero_reads_for_all(tmp_path: Path, saved: Path) -> None:
    """Its storage is asked first: that of a bucket downloads then."""
    shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints")
    disk = NotedDisk()
    with opened(tmp_path, storage=disk) as checkpoints:
        restored, notes = restore(tmp_path, checkpoints)
    assert restored is not None
    assert (restored.step, notes, disk.asked) == (20, [], [tmp_path / "checkpoints"])
    assert_identical(restored.state, state(20))


def test_another_process_cannot_read_it(tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No process uses a checkpoint that one of them cannot read; process 0 says which one that was."""
    answers = iter([[[20], [20]], [[0], [1]], [[10], [10]], [[0], [0]]])
    monkeypatch.setattr("podrun.runtime.checkpoint.restore.gather", lambda values: np.array(next(answers)))
    shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints")
    with opened(tmp_path) as checkpoints:
        restored, notes = restore(tmp_path, checkpoints)
    assert restored is not None
    assert restored.step == 10
    assert notes[0].startswith("process 1 cannot read checkpoint 20; the run continues")


def test_what_has_changed(tmp_path: Path, saved: Path) -> None:
    """Every value of the job that differs is named with both values, and nothing else."""
    shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints")
    other = {
        "seed": 3,
        "batch_size": 16,
        "optimizer": {"learning_rate": 0.5},
        "schedule": {"name": "linear"},
        "ema": None,
    }
    with opened(tmp_path) as checkpoints:
        restored, _ = restore(tmp_path, checkpoints, **other)
    assert restored is not None
    rate = job().optimizer.learning_rate  # type: ignore[union-attr]
    assert sorted(restored.changes) == [
        "batch_size: 8 -> 16",
        f"optimizer.learning_rate: {rate} -> 0.5",
        "schedule.name: cosine -> linear",
        "seed: 0 -> 3",
    ]


def test_nothing_has_changed(tmp_path: Path, saved: Path) -> None:
    """Nothing is said of an equal job, nor of a key that podrun did not have when the checkpoint was saved."""
    shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints")
    path = tmp_path / "checkpoints" / "20" / "meta" / "metadata"
    meta = json.loads(path.read_text())
    del meta["config"]["model"]["dropout"], meta["config"]["accumulate"]
    path.write_text(json.dumps(meta))
    for step in (10, 20):  # podrun did not write manifests then, either
        (tmp_path / "checkpoints" / str(step) / CHECKPOINT_MANIFEST).unlink()
    with opened(tmp_path) as checkpoints:
        restored, notes = restore(tmp_path, checkpoints)
    assert restored is not None
    assert (restored.step, restored.changes) == (20, [])
    assert notes == ["checkpoint 20 has no manifest, so it was not verified"]


def test_an_ensemble_of_no_members(tmp_path: Path) -> None:
    """Metadata without a shape to count the members by is damaged, not of another job."""
    config = job(parallel="ensemble")
    with opened(tmp_path) as checkpoints:
        checkpoints.save(20, state(20), 160, config, FINGERPRINT, None)
        assert checkpoints.completed(wait=True) == 20
        for shapes in ({"params": {}}, {"params": {"layer": 3}}, {"params": {"layer": []}}):
            edit(lambda meta, shapes=shapes: meta.update(shapes=shapes))(tmp_path / "checkpoints" / "20")  # type: ignore[misc]
            with pytest.raises(DamagedCheckpointError, match="not the metadata of a checkpoint"):
                checkpoints.load(20, checkpoints.target(lambda: state(0), config, FINGERPRINT))

"""A damaged checkpoint is named, kept, and the one before it is restored."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from podrun.runtime.checkpoint.damage import DamagedCheckpointError
from podrun.runtime.checkpoint.restore import restore_newest
from podrun.runtime.checkpoint.store import Checkpoints, Restored
from podrun.runtime.contract import CHECKPOINT_MANIFEST, UserError
from podrun.runtime.state import StateDict
from podrun.runtime.worker.progress import Reporter

from ..strategies import assert_identical
from .test_checkpoint import FINGERPRINT, job, opened, save


def state(step: int) -> StateDict:
    """A state whose largest array is a file of its own on disk."""
    kernel = np.random.default_rng(step).random((512, 512), np.float32)
    return {
        "step": np.array(step, np.int32),
        "params": {"layer": {"kernel": kernel, "bias": np.full(3, step, np.float32)}},
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workdir with the checkpoints of steps 10 and 20."""
    folder = tmp_path_factory.mktemp("saved")
    with opened(folder) as checkpoints:
        for step in (10, 20):
            checkpoints.save(step, state(step), step * 8, job(), FINGERPRINT, 1.0)
            assert checkpoints.completed(wait=True) == step
    return folder


def restore(folder: Path, checkpoints: Checkpoints, **keys: Any) -> tuple[Restored | None, list[str]]:
    """Return what is restored, and the notes for the user."""
    events = folder / "events"
    events.unlink(missing_ok=True)
    restored = restore_newest(checkpoints, lambda: state(0), job(**keys), FINGERPRINT, Reporter(events))
    return restored, [e["message"] for e in map(json.loads, events.read_text().splitlines()) if e["event"] == "note"]


def empty(newest: Path) -> None:
    shutil.rmtree(newest)
    newest.mkdir()


def cut(name: str, size: int) -> Callable[[Path], None]:
    return lambda newest: os.truncate(newest / name, size)


def garbage(name: str) -> Callable[[Path], None]:
    return lambda newest: (newest / name).write_bytes(np.random.default_rng(0).bytes(500)) and None


def without(name: str) -> Callable[[Path], None]:
    def remove(newest: Path) -> None:
        path = newest / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return remove


def write(name: str, text: str) -> Callable[[Path], None]:
    return lambda newest: (newest / name).write_text(text) and None


def edit(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """JSON as it should be, but not of what it should be."""

    def rewrite(newest: Path) -> None:
        path = newest / "meta" / "metadata"
        meta = json.loads(path.read_text())
        change(meta)
        path.write_text(json.dumps(meta))

    return rewrite


def largest(newest: Path) -> Path:
    """The file that holds the kernel."""
    return max((newest / "state").rglob("*"), key=lambda path: path.stat().st_size)


def become_a_file(newest: Path) -> None:
    shutil.rmtree(newest)
    newest.write_text("not a checkpoint")


def become_a_loop(newest: Path) -> None:
    shutil.rmtree(newest)
    newest.symlink_to(newest)


_META = "20/meta/metadata: not the metadata of a checkpoint"
_NO_MEANS: dict[str, Any] = {"sums": {}, "counts": {}}

DAMAGE: dict[str, tuple[Callable[[Path], None], str]] = {
    "empty folder": (empty, "20: an empty folder"),
    "a file": (become_a_file, "20: Not a directory"),
    "a loop": (become_a_loop, "Too many levels of symbolic links"),
    "no meta": (without("meta"), "20/meta/metadata: No such file or directory"),
    "meta cut to nothing": (cut("meta/metadata", 0), "20/meta/metadata: not the metadata of a checkpoint"),
    "meta cut": (cut("meta/metadata", 100), "20/meta/metadata: not the metadata of a checkpoint"),
    "meta garbage": (garbage("meta/metadata"), "20/meta/metadata: not the metadata of a checkpoint"),
    "meta of something else": (write("meta/metadata", "[1, 2]"), "20/meta/metadata: not the metadata of a checkpoint"),
    "meta without a position": (write("meta/metadata", '{"config": {}}'), "(KeyError: 'position')"),
    "meta of no parallel": (edit(lambda meta: meta["config"].update(parallem=meta["config"].pop("parallel"))), _META),
    "meta with an empty config": (edit(lambda meta: meta.update(config={})), _META),
    "meta with sections of other kinds": (edit(lambda meta: meta["config"].update(model=3, parallel=[1])), _META),
    "meta with shapes of nothing": (edit(lambda meta: meta.update(shapes={})), _META),
    "meta with a negative position": (edit(lambda meta: meta.update(position=-8)), _META),
    "means of half": (edit(lambda meta: meta.update(epoch_means={"sums": {"loss": 1.0}, "counts": {}})), _META),
    "means of text": (edit(lambda meta: meta.update(epoch_means={"sums": {"a": "x"}, "counts": {"a": 1}})), _META),
    "means of an epoch of none": (edit(lambda meta: meta.update(epoch_means={**_NO_MEANS, "epoch_size": 0})), _META),
    "no state": (without("state"), "20/state: No such folder"),
    "state's metadata cut": (cut("state/_METADATA", 50), "20/state/_METADATA: not the metadata of arrays"),
    "state's metadata garbage": (garbage("state/_METADATA"), "20/state/_METADATA: not the metadata of arrays"),
    "no manifest": (without("state/manifest.ocdbt"), "20/state"),
    "manifest cut": (cut("state/manifest.ocdbt", 9), "20/state/manifest.ocdbt: damaged"),
    "manifest garbage": (garbage("state/manifest.ocdbt"), "20/state/manifest.ocdbt: damaged"),
    "no index": (without("state/d"), "missing"),
    "no arrays": (lambda newest: largest(newest).unlink(), "(array params.layer.kernel)"),
    "arrays cut": (lambda newest: os.truncate(largest(newest), 1000), "20/state: cut off (array params.layer.kernel)"),
    "arrays garbage": (lambda newest: garbage(str(largest(newest)))(newest), "checkpoint 20 cannot be read"),
}


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
        checkpoints.save(20, state(20), 160, job(), FINGERPRINT, 1.0)
        assert checkpoints.completed(wait=True) == 20
    with opened(tmp_path) as checkpoints:
        restored, notes = restore(tmp_path, checkpoints)
        assert restored is not None
        assert (restored.step, notes) == (20, [])
    assert os.path.lexists(f"{newest}.damaged-1")


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
    (tmp_path / "checkpoints" / "20" / CHECKPOINT_MANIFEST).unlink()  # which podrun did not write then, either
    with opened(tmp_path) as checkpoints:
        restored, _ = restore(tmp_path, checkpoints)
    assert restored is not None
    assert (restored.step, restored.changes) == (20, [])


def test_an_ensemble_of_no_members(tmp_path: Path) -> None:
    """Metadata without a shape to count the members by is damaged, not of another job."""
    config = job(parallel="ensemble")
    with opened(tmp_path) as checkpoints:
        checkpoints.save(20, state(20), 160, config, FINGERPRINT, None)
        assert checkpoints.completed(wait=True) == 20
        for shapes in ({"params": {}}, {"params": {"layer": 3}}, {"params": {"layer": []}}):
            edit(lambda meta, shapes=shapes: meta.update(shapes=shapes))(tmp_path / "checkpoints" / "20")  # type: ignore[misc]
            with pytest.raises(DamagedCheckpointError, match="not the metadata of a checkpoint"):
                checkpoints.restore(20, state(0), config, FINGERPRINT)

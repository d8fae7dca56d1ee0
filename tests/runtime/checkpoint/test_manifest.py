"""Every file of a checkpoint is compared with what was written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from podrun.runtime.checkpoint.damage import DamagedCheckpointError
from podrun.runtime.checkpoint.manifest import verify, write_manifest
from podrun.runtime.contract import CHECKPOINT_LOSS, CHECKPOINT_MANIFEST, CHECKPOINT_PINNED

from ..strategies import assert_identical
from .test_checkpoint import opened
from .test_restore import restore, saved, state

__all__ = ["saved"]


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_bit_that_has_flipped_anywhere(tmp_path: Path, saved: Path) -> None:
    """The file is named, the checkpoint set aside, and the one before is restored, whichever file it is."""
    newest = saved / "checkpoints" / "20"
    names = [path.relative_to(newest).as_posix() for path in newest.rglob("*") if path.is_file()]
    assert {"meta/metadata", CHECKPOINT_MANIFEST} < set(names)
    for n, name in enumerate(sorted(set(names) - {CHECKPOINT_LOSS})):
        folder = tmp_path / str(n)
        shutil.copytree(saved / "checkpoints", folder / "checkpoints")
        flip(folder / "checkpoints" / "20" / name)
        with opened(folder) as checkpoints:
            restored, notes = restore(folder, checkpoints)
        assert restored is not None and restored.step == 10, name
        assert_identical(restored.state, state(10))
        assert notes[0].startswith("checkpoint 20 cannot be read: "), name
        assert (folder / "checkpoints" / "20.damaged-1").is_dir()


def made(folder: Path) -> Path:
    """A folder like a checkpoint, with a small and a large file."""
    (folder / "d").mkdir(parents=True)
    (folder / "small").write_bytes(b"small")
    (folder / "d" / "large").write_bytes(bytes(3 << 20))
    write_manifest(folder)
    return folder


def test_what_the_manifest_says(tmp_path: Path) -> None:
    """Sizes and digests of all files, and nothing of itself, of a pin or of what came later."""
    folder = made(tmp_path / "7")
    files = json.loads((folder / CHECKPOINT_MANIFEST).read_text())["files"]
    assert {name: size for name, (size, _) in files.items()} == {"small": 5, "d/large": 3 << 20}
    (folder / CHECKPOINT_PINNED).touch()
    (folder / "later").touch()
    verify(7, folder, full=True)
    write_manifest(folder)
    assert set(json.loads((folder / CHECKPOINT_MANIFEST).read_text())["files"]) == {"small", "d/large", "later"}


def test_large_files_are_compared_by_one_process(tmp_path: Path) -> None:
    """The others compare their sizes only."""
    folder = made(tmp_path / "7")
    flip(folder / "d" / "large")
    verify(7, folder, full=False)
    with pytest.raises(DamagedCheckpointError, match=r"d/large: its content has changed since it was saved"):
        verify(7, folder, full=True)
    (folder / "d" / "large").write_bytes(b"x")
    with pytest.raises(DamagedCheckpointError, match=r"d/large: 1 bytes, but 3145728 when it was saved"):
        verify(7, folder, full=False)
    flip(folder / "small")
    (folder / "d" / "large").unlink()
    with pytest.raises(DamagedCheckpointError, match=r"d/large: No such file or directory"):
        verify(7, folder, full=False)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"files": []}', '{"files": {"a": 1}}', '{"files": {"a": ["x", ""]}}']
)
def test_a_damaged_manifest(tmp_path: Path, text: str) -> None:
    """It is named."""
    folder = made(tmp_path / "7")
    (folder / CHECKPOINT_MANIFEST).write_text(text)
    with pytest.raises(DamagedCheckpointError, match=r"podrun-manifest.json: not a manifest"):
        verify(7, folder, full=False)


def test_a_checkpoint_without_a_manifest(tmp_path: Path) -> None:
    """Older ones have none, nor has one whose process was killed just after the save."""
    folder = made(tmp_path / "7")
    (folder / CHECKPOINT_MANIFEST).unlink()
    (folder / "small").unlink()
    verify(7, folder, full=True)

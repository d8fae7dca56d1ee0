"""Every file of a checkpoint is compared with what was written."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from podrun.runtime.checkpoint import manifest as manifest_module
from podrun.runtime.checkpoint.damage import DamagedCheckpointError, HostFaultError
from podrun.runtime.checkpoint.manifest import Verification, flush_and_list, verify, write_manifest
from podrun.runtime.contract import CHECKPOINT_MANIFEST, CHECKPOINT_METRICS, CHECKPOINT_PINNED

from ..strategies import assert_identical
from .damage import restore, state
from .saving import opened


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
    for n, name in enumerate(sorted(set(names) - {CHECKPOINT_METRICS})):
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
    write_manifest(folder, flush_and_list(folder))
    return folder


def test_what_the_manifest_says(tmp_path: Path) -> None:
    """Sizes and digests of all files, and nothing of itself, of a pin or of what came later."""
    folder = made(tmp_path / "7")
    files = json.loads((folder / CHECKPOINT_MANIFEST).read_text())["files"]
    assert {name: size for name, (size, _) in files.items()} == {"small": 5, "d/large": 3 << 20}
    (folder / CHECKPOINT_PINNED).touch()
    (folder / "later").touch()
    verify(7, folder, full=True)
    write_manifest(folder, flush_and_list(folder))
    assert set(json.loads((folder / CHECKPOINT_MANIFEST).read_text())["files"]) == {"small", "d/large", "later"}


def test_large_files_are_compared_by_one_process(tmp_path: Path) -> None:
    """The others compare their sizes only."""
    folder = made(tmp_path / "7")
    flip(folder / "d" / "large")
    verify(7, folder, full=False)
    with pytest.raises(DamagedCheckpointError, match=r"d/large: its content has changed since it was saved"):
        verify(7, folder, full=True)
    (folder / "d" / "large").write_bytes(b"x")
    with pytest.raises(DamagedCheckpointError, match=r"d/large: 1 bytes, but it had 3145728 when it was saved"):
        verify(7, folder, full=False)
    flip(folder / "small")
    (folder / "d" / "large").unlink()
    with pytest.raises(DamagedCheckpointError, match=r"d/large: No such file or directory"):
        verify(7, folder, full=False)


BROKEN = {
    "nothing": b"",
    "no object": b"[]",
    "no files": b"{}",
    "a list of files": b'{"files": []}',
    "files that are empty": b'{"files": {}}',
    "no size": b'{"files": {"small": 1}}',
    "text for a size": b'{"files": {"small": ["x", ""]}}',
    "deep": b"[" * 100_000,
    "bytes that are no text": b'{"files": \xff}',
    "digits without end": b'{"files": {"small": [' + b"9" * 6000 + b', ""]}}',
}
"""Manifests that are none."""
CHANGED: dict[str, tuple[str, str]] = {
    "an infinite size": ('"small": [5,', '"small": [7e6849,'),
    "a fraction": ('"small": [5,', '"small": [5.5,'),
    "a float": ('"small": [5,', '"small": [5.0,'),
    "a truth": ('"small": [5,', '"small": [true,'),
    "a negative size": ('"small": [5,', '"small": [-5,'),
    "a huge size": ('"small": [5,', f'"small": [{2**63},'),
    "an embedded NUL": ('"small"', '"sm\\u0000ll"'),
    "half a character": ('"small"', '"sm\\ud800ll"'),
    "a longer digest": ('"small": [5, "', '"small": [5, "0'),
    "a file outside": ('"small"', '"../small"'),
    "an absolute path": ('"small"', '"/dev/zero"'),
    "a file below a file": ('"small"', '"d/large/small"'),
    "a name twice": ('{"small"', '{"small": [0, ""], "small"'),
    "files twice": ('"files"', '"files": {}, "files"'),
    "another algorithm": ("sha256", "sha257"),
}
"""Changes of one place of a manifest."""


def is_refused(folder: Path, reason: str) -> None:
    """Check that the manifest is named, by `verify` and by the thread."""
    with pytest.raises(DamagedCheckpointError, match=reason):
        verify(7, folder, full=False)
    with pytest.raises(DamagedCheckpointError, match=reason):
        Verification(7, folder, full=False).finish()


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_a_damaged_manifest(tmp_path: Path, data: bytes) -> None:
    folder = made(tmp_path / "7")
    (folder / CHECKPOINT_MANIFEST).write_bytes(data)
    is_refused(folder, "podrun-manifest.json: not a manifest")


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_a_changed_place_in_a_manifest(tmp_path: Path, change: tuple[str, str]) -> None:
    folder = made(tmp_path / "7")
    before = json.loads((folder / CHECKPOINT_MANIFEST).read_text())["files"]
    text = json.dumps({"algorithm": "sha256", "files": {"small": before["small"], "d/large": before["d/large"]}})
    assert text.count(change[0]) == 1
    (folder / CHECKPOINT_MANIFEST).write_text(text.replace(*change))
    is_refused(folder, "podrun-manifest.json: not a manifest")


def test_a_manifest_that_is_no_file(tmp_path: Path) -> None:
    """A pipe is not waited for, and a link to nothing is not taken for no manifest."""
    manifest = made(tmp_path / "7") / CHECKPOINT_MANIFEST
    for make, reason in (
        (os.mkfifo, "not a regular file"),
        (os.mkdir, "Is a directory"),
        (lambda path: os.symlink("nothing", path), "No such file"),
    ):
        manifest.rename(manifest.with_name("kept")) if manifest.is_file() else None
        make(manifest)
        is_refused(tmp_path / "7", reason)
        manifest.rmdir() if manifest.is_dir() else manifest.unlink()


def test_a_file_of_the_state_that_is_not_listed(tmp_path: Path) -> None:
    """Nothing would compare it."""
    folder = made(tmp_path / "7")
    for name in ("state/d/x", "meta/metadata"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
        is_refused(folder, f"{name}: the manifest does not list it")
        (folder / name).unlink()
    (folder / "state" / ".nfs0001").touch()
    assert verify(7, folder, full=True)


@pytest.mark.parametrize("error", [ValueError("embedded null byte"), MemoryError(), SystemExit(1), KeyError("x")])
def test_a_check_that_could_not_be_made_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """Whatever ends the thread."""

    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(manifest_module, "verify", fail)
    with pytest.raises(HostFaultError, match=f"cannot be verified .* {type(error).__name__}"):
        Verification(7, made(tmp_path / "7"), full=True).finish()


@pytest.mark.parametrize(
    ("size", "after"),
    [("7e6849", ""), ("1e999", ""), (None, "\\u0000"), (None, "\\ud800")],
)
def test_changed_values_under_a_manifest_with_a_changed_place(
    tmp_path: Path, saved: Path, size: str | None, after: str
) -> None:
    """The checkpoint before it is restored, and this one is set aside."""
    shutil.copytree(saved / "checkpoints", tmp_path / "checkpoints")
    newest = tmp_path / "checkpoints" / "20"
    text = (newest / CHECKPOINT_MANIFEST).read_text()
    files = json.loads(text)["files"]
    large = max(files, key=lambda name: files[name][0])
    values = np.fromfile(newest / large, np.uint8)
    values[len(values) // 2 :][:4000] ^= 1
    values.tofile(newest / large)
    before = f'"{large}": [{files[large][0]},'
    assert text.count(before) == 1
    (newest / CHECKPOINT_MANIFEST).write_text(text.replace(before, f'"{large}{after}": [{size or files[large][0]},'))
    with opened(tmp_path) as checkpoints:
        restored, notes = restore(tmp_path, checkpoints)
    assert restored is not None and restored.step == 10
    assert_identical(restored.state, state(10))
    assert "podrun-manifest.json: not a manifest" in notes[0]


def test_a_checkpoint_without_a_manifest(tmp_path: Path) -> None:
    """Older ones have none, nor has one whose process was killed just after the save."""
    folder = made(tmp_path / "7")
    (folder / CHECKPOINT_MANIFEST).unlink()
    (folder / "small").unlink()
    assert not verify(7, folder, full=True)

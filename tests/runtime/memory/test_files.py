"""Files of checkpoints in memory: two for each part, and what is damaged does not count."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from podrun.runtime.memory.files import (
    BlockEntry,
    DamagedMemoryError,
    Generation,
    Manifest,
    PartFiles,
    manifest_text,
    manifests_in,
    parse_manifest,
    read_block,
    read_bytes,
    remove_after,
    remove_others,
    taken_by_others,
    verify,
    with_digests,
    write_blocks,
)

SIZE = 24
ENTRY: BlockEntry = {
    "array": ["params", "x"],
    "dtype": "float32",
    "shape": [2, 3],
    "start": [0, 0],
    "stop": [2, 3],
    "offset": 0,
    "size": SIZE,
}


def save(files: PartFiles, step: int, kept: Generation | None) -> Generation:
    """Save an array that is full of the step's number."""
    generation = Generation(step, 0)
    descriptor = files.take(generation, kept)
    try:
        write_blocks(descriptor, [(ENTRY, np.full((2, 3), step, np.float32))])
        manifest: Manifest = {
            "step": step,
            "attempt": 0,
            "process": 1,
            "host": "host-1",
            "part": 5,
            "parts": [5],
            "meta": {"position": 80},
            "size": SIZE,
            "blocks": with_digests(descriptor, [ENTRY]),
        }
        verify(descriptor, manifest)
    finally:
        os.close(descriptor)
    files.complete(generation, manifest_text(manifest))
    return generation


def value(folder: Path, manifest: Manifest) -> float:
    data = folder / f"{manifest['step']}.0.1.data"
    return float(read_block(manifest["blocks"][0], read_bytes(data, 0, SIZE)).mean())


def test_a_save_overwrites_the_checkpoint_before_the_last_and_takes_no_more_space(tmp_path: Path) -> None:
    files = PartFiles(tmp_path, 1, SIZE)
    assert files.to_reserve(None) == 2 * SIZE
    files.reserve(None)
    assert files.to_reserve(None) == 0
    kept = None
    for step in (5, 10, 15, 20):
        kept = save(files, step, kept)
        assert sum(path.stat().st_size for path in tmp_path.glob("*.data")) == 2 * SIZE
        newest = manifests_in(tmp_path)[-1]
    assert sorted(m["step"] for m in manifests_in(tmp_path)) == [15, 20]
    assert value(tmp_path, newest) == newest["step"]


def test_the_space_of_the_descriptions_is_reserved_too(tmp_path: Path) -> None:
    def space() -> int:
        return sum(path.stat().st_size for path in tmp_path.iterdir())

    files = PartFiles(tmp_path, 1, SIZE, 2000)
    needed = files.to_reserve(None)
    files.reserve(None)
    kept = None
    for step in (5, 10, 15, 20):
        assert space() == needed
        kept = save(files, step, kept)
    remove_after(tmp_path, 15)
    assert [m["step"] for m in manifests_in(tmp_path)] == [15]
    assert space() == needed
    save(files, 25, Generation(15, 0))
    assert space() == needed
    assert sorted(m["step"] for m in manifests_in(tmp_path)) == [15, 25]


def test_what_other_runs_have_in_memory(tmp_path: Path) -> None:
    for run, host in (("a", "host-0"), ("b", "host-0"), ("b", "host-1")):
        folder = tmp_path / f"podrun-{run}" / host
        folder.mkdir(parents=True)
        (folder / "5.0.1.data").write_bytes(bytes(1000))
    (tmp_path / "other").write_bytes(bytes(10))
    assert taken_by_others(tmp_path / "podrun-a" / "host-0") >= 2000
    assert taken_by_others(tmp_path / "podrun-b" / "host-0") < 2000


def test_a_save_that_was_interrupted_does_not_count(tmp_path: Path) -> None:
    files = PartFiles(tmp_path, 1, SIZE)
    files.reserve(None)
    kept = save(files, 5, None)
    save(files, 10, kept)
    os.close(files.take(Generation(15, 0), Generation(10, 0)))
    assert [m["step"] for m in manifests_in(tmp_path)] == [10]


def test_the_files_of_another_layout_are_replaced_and_the_kept_one_is_not(tmp_path: Path) -> None:
    before = PartFiles(tmp_path, 1, SIZE)
    before.reserve(None)
    kept = save(before, 5, None)
    after = PartFiles(tmp_path, 1, 2 * SIZE)
    after.reserve(kept)
    assert [m["step"] for m in manifests_in(tmp_path)] == [5]
    assert sorted(path.stat().st_size for path in tmp_path.glob("*.data")) == [SIZE, 2 * SIZE, 2 * SIZE]
    for step in (10, 15):  # the first save has it as the one before, the next one does not
        os.close(after.take(generation := Generation(step, 0), kept))
        assert (tmp_path / "5.0.1.json").exists() == (step == 10)
        kept = generation
    assert sorted(path.stat().st_size for path in tmp_path.glob("*.data")) == [2 * SIZE, 2 * SIZE]
    remove_others(tmp_path, [0])
    assert list(tmp_path.iterdir()) == []


def test_a_full_file_system_is_an_error_when_space_is_reserved(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No space left|too large"):
        PartFiles(tmp_path, 1, 1 << 60).reserve(None)
    assert list(tmp_path.iterdir()) == []


def test_damage_is_found(tmp_path: Path) -> None:
    files = PartFiles(tmp_path, 1, SIZE)
    files.reserve(None)
    save(files, 5, None)
    data = tmp_path / "5.0.1.data"
    data.write_bytes(b"x" + data.read_bytes()[1:])
    (manifest,) = manifests_in(tmp_path)
    with pytest.raises(DamagedMemoryError, match=r"params\.x differs from its digest"):
        value(tmp_path, manifest)
    with data.open("rb") as file, pytest.raises(DamagedMemoryError, match="differs from its digest"):
        verify(file.fileno(), manifest)
    data.write_bytes(data.read_bytes()[:-1])
    assert manifests_in(tmp_path) == []


@pytest.mark.parametrize(
    "change",
    [
        {"size": SIZE + 1},
        {"step": -1},
        {"parts": ["a"]},
        {"meta": []},
        {"blocks": [{**ENTRY, "sha256": "0" * 64, "stop": [2, 4]}]},
        {"blocks": [{**ENTRY, "sha256": "0" * 64, "offset": 4}]},
        {"blocks": [ENTRY]},
        {"blocks": [7]},
    ],
)
def test_a_manifest_that_cannot_be_true_is_damaged(tmp_path: Path, change: dict[str, object]) -> None:
    files = PartFiles(tmp_path, 1, SIZE)
    files.reserve(None)
    save(files, 5, None)
    good = parse_manifest((tmp_path / "5.0.1.json").read_bytes())
    with pytest.raises(DamagedMemoryError, match="not the description"):
        parse_manifest(manifest_text({**good, **change}))  # type: ignore[typeddict-item]


def test_a_manifest_that_was_changed_is_damaged(tmp_path: Path) -> None:
    """Its metadata says where in the data training goes on, which no digest of an array covers."""
    files = PartFiles(tmp_path, 1, SIZE)
    files.reserve(None)
    save(files, 5, None)
    path = tmp_path / "5.0.1.json"
    path.write_bytes(path.read_bytes().replace(b'"position": 80', b'"position": 64'))
    with pytest.raises(DamagedMemoryError, match="differs from its digest"):
        parse_manifest(path.read_bytes())
    told: list[str] = []
    assert manifests_in(tmp_path, told.append) == []
    assert told == [f"5.0.1 in {tmp_path} cannot be used: the description of a part of a state differs from its digest"]

"""Whoever can write to a bucket chooses the names of its objects: none of them becomes a file outside the spool."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from podrun.runtime.config import Config
from podrun.runtime.contract import CHECKPOINT_MANIFEST, UserError
from podrun.runtime.storage.bucket import BucketStorage
from podrun.runtime.storage.bucket_client import Bucket
from podrun.runtime.storage.bucket_data import load_data

from .objects import Objects, restore


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_names_that_lead_out_of_the_spool_are_left_out(tmp_path: Path) -> None:
    """An absolute path in a key, which `Path` joins to nothing before it, is the worst of them."""
    step = "checkpoints/5"
    hostile = [
        f"{step}/{tmp_path}/evil",
        f"/{tmp_path}/evil",
        str(tmp_path / "evil"),
        "../evil",
        f"{step}/../../../evil",
    ]
    good = {f"{step}/{CHECKPOINT_MANIFEST}": b"{}", f"{step}/a": b"a", "metrics.jsonl": b"", "folder/": b""}
    notes = restore(tmp_path / "spool", {**dict.fromkeys([*hostile, "a\0b", "\ud800", f"{step}//a"], b"evil"), **good})
    assert files_in(tmp_path) == {f"spool/{name}" for name in good if not name.endswith("/")}
    assert "names a file outside its folder" in notes[0] and notes[-1].endswith("whose names cannot be files; left out")
    assert len(notes) == 4 and all(note.isprintable() for note in notes)


def test_a_link_in_the_spool_is_not_followed(tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "checkpoints").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(UserError, match=r"gs://b/run names a file behind a link: 'checkpoints/5/.* remove that link"):
        restore(spool, {f"checkpoints/5/{CHECKPOINT_MANIFEST}": b"{}"})
    assert files_in(tmp_path) == set()


def test_an_object_in_the_place_of_the_checkpoints_is_left_out(tmp_path: Path) -> None:
    manifest = f"checkpoints/5/{CHECKPOINT_MANIFEST}"
    (note,) = restore(tmp_path, {"checkpoints": b"x", manifest: b"{}"})
    assert note == "gs://b/run has an object checkpoints, where podrun keeps a folder; left out"
    assert files_in(tmp_path) == {manifest}


def test_a_file_gives_way_to_a_folder_of_the_bucket_and_back(tmp_path: Path) -> None:
    for name in ("a", "a/b", "a"):
        assert restore(tmp_path / "spool", {name: b"x"}) == []
        assert files_in(tmp_path / "spool") == {name}


def test_real_servers(url: str, tmp_path: Path) -> None:
    """They keep such keys, and list them as they are. Data of such names are a mistake: the rest alone would be less."""
    bucket = Bucket(url)
    bucket.put(f"/{tmp_path}/evil.txt", b"evil " * 100)
    bucket.put("good.txt", b"good " * 100)
    assert f"/{tmp_path}/evil.txt" in bucket.objects()
    spool = tmp_path / "spool"
    claim: Any = Objects()
    claim.bucket = bucket
    storage = BucketStorage(url, spool, claim, lambda _: None)
    (spool / "checkpoints").mkdir(parents=True)
    storage.before_restore(spool / "checkpoints")
    assert files_in(spool) == {"good.txt"} and not os.path.exists(tmp_path / "evil.txt")
    model = {"layers": 1, "heads": 2, "width": 32, "context": 16}
    data = {"name": "text", "path": url}
    job = Config.model_validate({"model": model, "steps": 2, "batch_size": 4, "data": data})
    with pytest.raises(
        UserError, match=r"data\.path: .*/test_real_servers.* names a file outside its folder: .*; rename it"
    ):
        load_data(job)

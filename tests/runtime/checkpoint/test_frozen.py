"""Parameters that are not trained are written once: the files of later checkpoints are hard links to the first one's."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from podrun.launcher.agent.results.checkpoint_files import list_checkpoints
from podrun.runtime.checkpoint import store
from podrun.runtime.checkpoint.damage import DamagedCheckpointError
from podrun.runtime.checkpoint.restore import restore_newest
from podrun.runtime.checkpoint.saved_model import SavedModel, find_checkpoint
from podrun.runtime.contract import CHECKPOINT_MANIFEST, UserError
from podrun.runtime.manifests import files_in
from podrun.runtime.worker.progress import Reporter

from .freezing import BASE, JOB, largest, load, occupied, save, with_base
from .saving import FINGERPRINT, opened

ROOT = Path(__file__).parents[3]
SAVING = """
import sys
from pathlib import Path
from tests.runtime.checkpoint.freezing import load, save
from tests.runtime.checkpoint.saving import opened
with opened(Path(sys.argv[1]), keep=3) as checkpoints:
    step = checkpoints.latest() or 0
    if step:
        load(checkpoints, step)
    while True:
        step += 1
        save(checkpoints, step)
        print(step, flush=True)
"""


def test_written_once(tmp_path: Path) -> None:
    """Also by a run that goes on. Each checkpoint is complete without the others, whichever of them are removed."""
    sizes = []
    with opened(tmp_path, keep=2) as checkpoints:
        for step in (10, 20):
            save(checkpoints, step)
            sizes.append(occupied(tmp_path))
    assert sizes[0] > BASE.nbytes > 4 * (sizes[1] - sizes[0])
    with opened(tmp_path, keep=2) as checkpoints:
        load(checkpoints, 20)
        save(checkpoints, 30)
        assert checkpoints.steps() == [30, 20]
        assert occupied(tmp_path) < sizes[1] + BASE.nbytes / 4
        shutil.rmtree(checkpoints.path(20))
        load(checkpoints, 30)
    manifest = json.loads((tmp_path / "checkpoints" / "30" / CHECKPOINT_MANIFEST).read_bytes())["files"]
    assert manifest.keys() == set(files_in(str(tmp_path / "checkpoints" / "30"))) - {CHECKPOINT_MANIFEST}
    (row,) = list_checkpoints(str(tmp_path / "checkpoints"))
    assert row["verified"] and row["bytes"] > BASE.nbytes
    saved = SavedModel(find_checkpoint(tmp_path, None))
    assert saved.params(lambda _, array: array)["base"]["kernel"].tobytes() == BASE.tobytes()
    assert saved.described()["layer", "kernel"][0] == (3, 2)


@pytest.mark.parametrize("is_damaged", [False, True])
def test_written_once_by_a_run_that_goes_on_from_memory(tmp_path: Path, is_damaged: bool) -> None:
    """It has not read the checkpoint on disk, so its files are compared with their digests before they are linked."""
    with opened(tmp_path, keep=9) as checkpoints:
        save(checkpoints, 10)
    if is_damaged:
        path = largest(tmp_path, 10)
        path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    with opened(tmp_path, keep=9) as checkpoints:
        checkpoints.link_frozen_on_disk(with_base(12), JOB)
        save(checkpoints, 20)
        save(checkpoints, 30)
        load(checkpoints, 30)
    assert largest(tmp_path, 30).stat().st_nlink == (2 if is_damaged else 3)


def test_no_link_to_files_that_are_gone_or_of_another_type(tmp_path: Path) -> None:
    """Then they are written again. A save that is not of this run is not linked to either: nothing says it is the same."""
    with opened(tmp_path, keep=9) as checkpoints:
        save(checkpoints, 10)
        shutil.rmtree(checkpoints.path(10))
        save(checkpoints, 20)
        save(checkpoints, 30)
        largest(tmp_path, 30).unlink()
        save(checkpoints, 40)
        load(checkpoints, 40)
        load(checkpoints, 20)
    with opened(tmp_path, keep=9) as checkpoints:
        save(checkpoints, 50)
        assert largest(tmp_path, 50).stat().st_nlink == 1
    with opened(tmp_path, keep=9) as checkpoints:
        load(checkpoints, 50, np.float16)
        save(checkpoints, 60, np.float16)
        load(checkpoints, 60, np.float16)
        assert largest(tmp_path, 60).stat().st_nlink == largest(tmp_path, 50).stat().st_nlink == 1


def test_a_file_system_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a bucket, for example, refuses them."""

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with opened(tmp_path) as checkpoints:
        save(checkpoints, 10)
        save(checkpoints, 20)
        load(checkpoints, 20)
    assert largest(tmp_path, 20).stat().st_nlink == 1


@pytest.mark.parametrize("why", ["another user's file", "removed", "left over"])
def test_a_link_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """After others were made: nothing is lost, the parameters are written anew, and the save after that links to these."""
    real, calls = os.link, 0

    def link(file: Path, name: Path) -> None:
        nonlocal calls
        calls += 1
        if calls == 2 and why == "removed":
            shutil.rmtree(tmp_path / "checkpoints" / "10")
        if calls == 2 and why == "another user's file":
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), os.fspath(file))
        if calls == 2 and why == "left over":
            name.write_text("of something else")
        real(file, name)

    with opened(tmp_path, keep=9) as checkpoints:
        save(checkpoints, 10)
        with monkeypatch.context() as patch:
            patch.setattr(os, "link", link)
            save(checkpoints, 20)
        assert calls == 2
        assert largest(tmp_path, 20).stat().st_nlink == 1
        save(checkpoints, 30)
        assert largest(tmp_path, 30).samefile(largest(tmp_path, 20).parent / largest(tmp_path, 30).name)
        for step in checkpoints.steps():
            load(checkpoints, step)
    assert not (tmp_path / "checkpoints" / ".podrun-links").exists()
    assert not [row["problem"] for row in list_checkpoints(str(tmp_path / "checkpoints")) if row["problem"]]


def test_a_link_whose_answer_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS says that the name exists, because its client has asked twice."""
    real = os.link

    def link(file: Path, name: Path) -> None:
        real(file, name)
        real(file, name)

    with opened(tmp_path) as checkpoints:
        save(checkpoints, 10)
        monkeypatch.setattr(os, "link", link)
        save(checkpoints, 20)
        assert largest(tmp_path, 20).stat().st_nlink == 2
        load(checkpoints, 20)


def test_eight_checkpoints_share_a_file(tmp_path: Path) -> None:
    """The next one has files of its own, so that a bad block cannot damage all checkpoints of a long run."""
    with opened(tmp_path, keep=20) as checkpoints:
        for step in range(1, 11):
            save(checkpoints, step)
        assert [largest(tmp_path, step).stat().st_nlink for step in (1, 8, 9, 10)] == [8, 8, 2, 2]
        load(checkpoints, 8)
        load(checkpoints, 10)


def test_all_are_damaged(tmp_path: Path) -> None:
    """By one bad block. The message says why all are, and what to do; nothing is missing."""
    with opened(tmp_path) as checkpoints:
        save(checkpoints, 10)
        save(checkpoints, 20)
    with largest(tmp_path, 20).open("r+b") as file:
        file.seek(5000)
        file.write(b"other")
    with opened(tmp_path) as checkpoints, pytest.raises(UserError) as raised:
        restore_newest(checkpoints, lambda: with_base(0), JOB, FINGERPRINT, Reporter(tmp_path / "events"))
    first, second, remedy = str(raised.value).splitlines()
    assert "checkpoint 20 cannot be read" in first and "checkpoint 10 cannot be read" in second
    assert remedy.startswith("the checkpoints of a run share the files in frozen/")
    assert f"bring a good copy of the files to {tmp_path / 'checkpoints'}" in remedy and "`init_from`" in remedy


def test_no_folder_and_no_manifest(tmp_path: Path) -> None:
    """The commands that open a model say the same as a run: without the folder it would be half a model."""
    with opened(tmp_path) as checkpoints:
        save(checkpoints, 10)
    folder = find_checkpoint(tmp_path, None)
    (folder / CHECKPOINT_MANIFEST).unlink()
    assert not SavedModel(folder).is_verified
    shutil.rmtree(folder / "frozen")
    with pytest.raises(UserError, match=r"checkpoint 10 cannot be read: .*/10/frozen: No such folder; `podrun checkpo"):
        SavedModel(folder)


def test_a_whole_checkpoint_of_an_older_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It had all parameters in one folder. A run goes on from it, and writes the frozen ones once more."""
    with monkeypatch.context() as older, opened(tmp_path) as checkpoints:
        older.setattr(store, "without_frozen", lambda whole, _: (whole, {}))
        save(checkpoints, 10)
    assert not (tmp_path / "checkpoints" / "10" / "frozen").exists()
    metadata = tmp_path / "checkpoints" / "10" / "meta" / "metadata"
    assert json.loads(metadata.read_bytes())["frozen"] == {}
    with opened(tmp_path) as checkpoints:
        load(checkpoints, 10)
        save(checkpoints, 20)
        save(checkpoints, 30)
        load(checkpoints, 30)
    assert largest(tmp_path, 30).samefile(largest(tmp_path, 20).parent / largest(tmp_path, 30).name)


@pytest.mark.parametrize("what", ["cut", "changed", "missing", "no folder", "unlisted"])
def test_damage(tmp_path: Path, what: str) -> None:
    """It is noticed in each checkpoint that has the file."""
    with opened(tmp_path) as checkpoints:
        save(checkpoints, 10)
        save(checkpoints, 20)
    file, steps = largest(tmp_path, 20), [20]
    if what == "cut":
        os.truncate(file, 1000)
        steps = [10, 20]
    elif what == "changed":
        with file.open("r+b") as opened_file:
            opened_file.seek(5000)
            opened_file.write(b"other")
        steps = [10, 20]
    elif what == "missing":
        file.unlink()
    elif what == "no folder":
        shutil.rmtree(tmp_path / "checkpoints" / "20" / "frozen")
    else:
        (file.parent / "more").touch()
    with opened(tmp_path) as checkpoints:
        for step in (10, 20):
            if step in steps:
                with pytest.raises(
                    DamagedCheckpointError, match=rf"checkpoint {step} cannot be read: .*/{step}/frozen"
                ):
                    load(checkpoints, step)
            else:
                load(checkpoints, step)
    assert [row["step"] for row in list_checkpoints(str(tmp_path / "checkpoints")) if row["problem"]] == steps


@pytest.mark.parametrize("frozen", ["../10/frozen", 10**30, ["../x"], None, {"base.kernel": 7}, {"../x": "float32"}])
def test_metadata_that_nobody_has_written(tmp_path: Path, frozen: Any) -> None:
    """It names no path, so it can lead nowhere: the checkpoint is damaged, or the names are none of this job's."""
    with opened(tmp_path) as checkpoints:
        save(checkpoints, 10)
        folder = checkpoints.path(10)
    (folder / CHECKPOINT_MANIFEST).unlink()  # otherwise it is the manifest that does not match
    metadata = folder / "meta" / "metadata"
    metadata.write_text(json.dumps({**json.loads(metadata.read_bytes()), "frozen": frozen}))
    with opened(tmp_path) as checkpoints:
        if frozen == {"../x": "float32"}:
            load(checkpoints, 10)
            save(checkpoints, 20)
            assert largest(tmp_path, 20).stat().st_nlink == 1
        else:
            with pytest.raises(DamagedCheckpointError, match="not the metadata of a checkpoint"):
                load(checkpoints, 10)


@pytest.mark.long
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """The newest checkpoint with a manifest is whole, and the next process goes on from it."""
    random = np.random.default_rng(0)
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for _ in range(10):
        process = subprocess.Popen([sys.executable, "-c", SAVING, str(tmp_path)], env=env, stdout=subprocess.PIPE)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, "it has ended by itself"
        time.sleep(float(random.uniform(0, 0.3)))  # the moment is what is tried
        process.kill()
        process.wait()
        process.stdout.close()
        with opened(tmp_path, keep=3) as checkpoints:
            complete = [step for step in checkpoints.steps() if (checkpoints.path(step) / CHECKPOINT_MANIFEST).exists()]
            assert complete[0] >= int(line)
            for step in checkpoints.steps():
                load(checkpoints, step)

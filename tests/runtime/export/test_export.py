"""The model of a checkpoint as a file: the same loss in the plain model, and messages for what cannot be exported."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podrun.runtime.checkpoint.metadata import JobInputs
from podrun.runtime.checkpoint.program import ProgramCheckpoints
from podrun.runtime.checkpoint.retention import Retention
from podrun.runtime.checkpoint.store import Checkpoints
from podrun.runtime.config import Checkpoint
from podrun.runtime.contract import UserError
from podrun.runtime.data.saved_tokenizer import Saved
from podrun.runtime.export import export as module
from podrun.runtime.export.export import export
from podrun.runtime.models.mlp import MLP
from podrun.runtime.state import TrainState

from .. import strategies
from ..strategies import dataset, strategy

BPE: Saved = {"name": "bpe", "file": json.dumps({"model": {"vocab": {"a": 0}, "merges": []}})}


def save(folder: Path, name: str = "single", tokenizer: Saved | None = None, **keys: Any) -> TrainState:
    """Save a state of step 3 in `folder`, in which the moving average, if there is one, is not the parameters."""
    one = strategy(name, **keys)
    state = one.init()
    if state.ema is not None:
        state = state.replace(ema=jax.tree.map(lambda x: x * 1.5, state.ema))  # type: ignore[attr-defined]
    checkpoints = Checkpoints(folder / "checkpoints", Checkpoint(), one.saves_in_parts, inputs=JobInputs(tokenizer))
    checkpoints.save(3, one.savable(state), 0, strategies.job(name, **keys), b"", None)
    checkpoints.close()
    return state


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workdir; each test that changes it has a copy."""
    folder = tmp_path_factory.mktemp("export") / "train"
    save(folder)
    return folder


@pytest.fixture
def workdir(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(saved, tmp_path / "train")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "train"


def nested(arrays: dict[str, Any]) -> Any:
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *folders, last = name.split(".")
        inner = tree
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[last] = jnp.asarray(array)
    return tree


def test_the_plain_model_has_the_same_loss(tmp_path: Path) -> None:
    """With the moving average, which is what is evaluated, read from the file and put into the flax module itself."""
    state = save(tmp_path / "train", "jit fsdp 2", BPE, ema=0.9)
    report = export(tmp_path / "train", None, "npz", str(tmp_path / "model.npz"))
    arrays = dict(np.load(report.file))
    metadata = json.loads(bytes(arrays.pop("__metadata__")))
    assert sorted(arrays) == ["dense_0.bias", "dense_0.kernel", "head.bias", "head.kernel"]
    assert report.arrays == 4
    assert report.parameters == sum(array.size for array in arrays.values())
    assert (report.weights, report.step, report.verified) == ("ema", 3, True)
    assert (metadata["weights"], metadata["step"]) == ("ema", "3")
    config = strategies.job("jit fsdp 2", ema=0.9)
    assert json.loads(metadata["config"])["model"] == config.model.model_dump(mode="json")
    assert json.loads(metadata["tokenizer"]) == BPE
    assert report.tokenizer == str(tmp_path / "model.tokenizer.json")
    assert Path(report.tokenizer).read_text() == BPE["file"]

    batch = dataset().validation.gather(np.arange(8), np.zeros(8, np.int64))
    plain = MLP(config.model, dataset().outputs, jnp.float32)  # type: ignore[arg-type]
    logits = plain.apply({"params": nested(arrays)}, batch["x"])
    loss = -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], 1)[:, 0]
    one = strategy("jit fsdp 2", ema=0.9)
    sums = one.evaluate(state, one.shard(batch))
    expected = one.summarize(jax.tree.map(np.float64, jax.device_get(sums)))["loss"]
    weights = batch["weights"]
    assert float((loss * weights).sum() / weights.sum()) == pytest.approx(expected, rel=1e-5)


def test_default_name(workdir: Path) -> None:
    report = export(workdir, 3, "safetensors")
    assert report.file == str(workdir.with_name("train-3.safetensors"))
    assert report.weights == "params"
    assert report.tokenizer is None
    assert report.bytes == Path(report.file).stat().st_size
    (workdir / "checkpoints" / "3" / "podrun-manifest.json").unlink()
    assert not export(workdir, 3, "npz").verified
    with pytest.raises(UserError, match=r"train-3.npz exists; choose another name with --output FILE, or remove it"):
        export(workdir, 3, "npz")


def remake_manifest(checkpoint: Path, extra: dict[str, Any]) -> None:
    """Write a manifest that fits the files, as somebody would who wants to be believed."""
    paths = [path for path in checkpoint.rglob("*") if path.is_file() and path.name != "podrun-manifest.json"]
    files: dict[str, Any] = {
        path.relative_to(checkpoint).as_posix(): [path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest()]
        for path in paths
    }
    (checkpoint / "podrun-manifest.json").write_text(json.dumps({"files": {**files, **extra}}))


def largest(checkpoint: Path) -> Path:
    return max((path for path in checkpoint.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def change_a_byte(checkpoint: Path) -> None:
    file = largest(checkpoint)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def cut_off(checkpoint: Path) -> None:
    for file in checkpoint.glob("state/**/d/*"):  # which of them has the parameters is orbax's affair
        os.truncate(file, min(100, file.stat().st_size))
    remake_manifest(checkpoint, {})


def name_a_device(checkpoint: Path) -> None:
    """Reading it would never end."""
    remake_manifest(checkpoint, {"/dev/zero": [0, "0" * 64]})


def name_a_file_outside(checkpoint: Path) -> None:
    remake_manifest(checkpoint, {"../../../x": [0, "0" * 64]})


def nest_metadata(checkpoint: Path) -> None:
    (checkpoint / "meta" / "metadata").write_text("[" * 100_000)
    remake_manifest(checkpoint, {})


def break_arrays_metadata(checkpoint: Path) -> None:
    (checkpoint / "state" / "_METADATA").write_text('{"tree_metadata": {"x": 1}}')
    remake_manifest(checkpoint, {})


def rename_parameters(checkpoint: Path) -> None:
    file = checkpoint / "state" / "_METADATA"
    file.write_text(file.read_text().replace("params", "parems"))
    remake_manifest(checkpoint, {})


def another_programs(checkpoint: Path) -> None:
    shutil.rmtree(checkpoint / "meta")
    (checkpoint / "podrun-manifest.json").unlink()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (change_a_byte, "its content has changed since it was saved"),
        (cut_off, "checkpoint 3 cannot be read"),
        (name_a_device, "not a manifest"),
        (name_a_file_outside, "not a manifest"),
        (nest_metadata, "not the metadata of a checkpoint"),
        (break_arrays_metadata, "checkpoint 3 cannot be read"),
        (rename_parameters, "checkpoint 3 cannot be read"),
        (another_programs, "checkpoint 3 cannot be read"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_damaged_checkpoint(workdir: Path, damage: Any, told: str) -> None:
    """A message with the file, whoever made it so, and nothing is written."""
    damage(workdir / "checkpoints" / "3")
    with pytest.raises(UserError) as error:
        export(workdir, None, "safetensors")
    assert told in str(error.value)
    assert f"`podrun checkpoints {workdir}` lists which are whole" in str(error.value)
    assert [path.name for path in workdir.parent.iterdir()] == ["train"]


def test_arrays_that_no_machine_can_hold(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told before anything is read or written."""
    from podrun.runtime.checkpoint import orbax_files

    class Huge:
        arrays = {("params", "kernel"): ((1 << 50, 1 << 10), np.dtype(np.float32))}

        def __init__(self, folder: Path) -> None:
            pass

    monkeypatch.setattr(orbax_files, "ArrayReader", Huge)
    with pytest.raises(UserError, match=r"the array kernel has 4096\.0 PiB, and this machine .* GiB of memory"):
        export(workdir, None, "npz")


def test_a_full_disk(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known beforehand, or met in the middle: nothing is left."""
    usage = shutil.disk_usage(workdir)._replace(free=1000)
    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "disk_usage", lambda path: usage)
        with pytest.raises(UserError, match=r"it takes .* KiB, and .* are free there"):
            export(workdir, None, "npz")

    def full(file: Path, *rest: Any) -> None:
        file.write_bytes(b"begun")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setitem(module.FORMATS, "npz", full)
    with pytest.raises(UserError, match=r"train-3\.npz cannot be written: No space left on device"):
        export(workdir, None, "npz")
    assert [path.name for path in workdir.parent.iterdir()] == ["train"]


def test_no_such_checkpoint(workdir: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no checkpoint of step 4; there are 3$"):
        export(workdir, 4, "npz")
    with pytest.raises(
        UserError, match=r"checkpoints cannot be read: No such file or directory; a workdir is the folder"
    ):
        export(tmp_path, None, "npz")
    (tmp_path / "new" / "checkpoints" / "5.damaged-1").mkdir(parents=True)
    with pytest.raises(UserError, match=r"has no complete checkpoints; a workdir is the folder"):
        export(tmp_path / "new", None, "npz")


def test_the_checkpoint_of_a_user_program(tmp_path: Path) -> None:
    checkpoints = ProgramCheckpoints(tmp_path / "checkpoints", {"w": 1.0}, Retention(1))
    checkpoints.save(1, {"w": 1.0})
    checkpoints.close()
    with pytest.raises(UserError, match=r"is of a program with podrun\.steps.*docs/checkpoints\.md"):
        export(tmp_path, None, "npz")

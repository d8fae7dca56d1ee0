"""Kinds of damage to a checkpoint, with the reason that is reported for each."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from podrun.runtime.checkpoint.restore import restore_newest
from podrun.runtime.checkpoint.store import Checkpoints, Restored
from podrun.runtime.state import StateDict
from podrun.runtime.worker.progress import Reporter

from .saving import FINGERPRINT, job


def state(step: int) -> StateDict:
    """A state whose largest array is a file of its own on disk."""
    kernel = np.random.default_rng(step).random((512, 512), np.float32)
    return {
        "step": np.array(step, np.int32),
        "params": {"layer": {"kernel": kernel, "bias": np.full(3, step, np.float32)}},
    }


def restore(
    folder: Path, checkpoints: Checkpoints, newer_than: int | None = None, **keys: Any
) -> tuple[Restored | None, list[str]]:
    """Return what is restored, and the notes for the user."""
    events = folder / "events"
    events.unlink(missing_ok=True)
    restored = restore_newest(checkpoints, lambda: state(0), job(**keys), FINGERPRINT, Reporter(events), newer_than)
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
    "state's metadata cut": (
        cut("state/_METADATA", 50),
        "20/state/_METADATA: not the metadata of arrays",
    ),
    "state's metadata garbage": (
        garbage("state/_METADATA"),
        "20/state/_METADATA: not the metadata of arrays",
    ),
    "no manifest": (without("state/manifest.ocdbt"), "20/state"),
    "manifest cut": (cut("state/manifest.ocdbt", 9), "20/state/manifest.ocdbt: damaged"),
    "manifest garbage": (garbage("state/manifest.ocdbt"), "20/state/manifest.ocdbt: damaged"),
    "no index": (without("state/d"), "missing"),
    "no arrays": (lambda newest: largest(newest).unlink(), "(array params.layer.kernel)"),
    "arrays cut": (
        lambda newest: os.truncate(largest(newest), 1000),
        "20/state: cut off (array params.layer.kernel)",
    ),
    "arrays garbage": (lambda newest: garbage(str(largest(newest)))(newest), "checkpoint 20 cannot be read"),
}

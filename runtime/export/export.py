"""Export the model of a checkpoint to a file or folder: its averaged parameters if the job has `ema`, and its state."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..checkpoint.saved_model import SavedModel, Step, find_checkpoint
from ..contract import UserError
from ..queries import ExportAnswer
from ..wording import in_bytes
from .adapter import Adapter
from .formats import FORMATS, Described
from .published import PublishedModel

HF = "hf"
"""Format of a folder that transformers opens."""
PEFT = "peft"
"""Format of a folder that PEFT opens: only what LoRA adds to a model."""
_HEADER = 64 << 10  # bytes reserved for the rest of a file, besides its arrays and metadata


def export(workdir: Path, step: Step, form: str, file: str | None = None) -> ExportAnswer:
    """Export the model of a checkpoint.

    Args:
        workdir: the run's workdir.
        step: step of the checkpoint.
        form: format, a key of `FORMATS`, `HF` or `PEFT`.
        file: path to write; None: WORKDIR-STEP.FORMAT in the current folder.

    Raises:
        UserError: there is no such checkpoint, it is damaged, the file exists, the disk is full, or the format cannot
            represent the model.
    """
    folder = find_checkpoint(workdir, step)
    output = Path(file or f"{workdir.resolve().name}-{folder.name}.{form}").absolute()
    _check_new(output)
    model = SavedModel(folder)
    if form == HF:
        return _write_folder(model, output)
    if form == PEFT:
        return _write_adapter(model, output)
    saved = model.meta.get("tokenizer")
    if saved and saved["name"] == "bpe":
        _check_new(_tokenizer_path(output))
    written = _write(model, form, output)
    tokenizer = _write_tokenizer(output, saved)
    return ExportAnswer(
        str(output), model.step, model.weights, *written, output.stat().st_size, tokenizer, model.is_verified
    )


def _metadata(model: SavedModel) -> dict[str, str]:
    """Return the file's metadata as strings, which is all that safetensors allows."""
    meta = model.meta
    named = {"format": "np", "step": str(model.step), "weights": model.weights, "config": json.dumps(meta["config"])}
    if meta.get("tokenizer") is not None:
        named["tokenizer"] = json.dumps(meta["tokenizer"])
    return named


def _write(model: SavedModel, form: str, output: Path) -> tuple[int, int]:
    """Write the file atomically. Return the number of arrays, and of parameters in them."""
    places = _places(model)
    arrays = {name: model.arrays[place] for name, place in places.items()}
    metadata = _metadata(model)
    _check_room(arrays, output, len(str(metadata)))
    with _new_path(output) as file:
        FORMATS[form](file, arrays, lambda name: model.read(places[name]), metadata)
    return len(arrays), sum(math.prod(shape) for shape, _ in model.described().values())


def _write_folder(model: SavedModel, output: Path) -> ExportAnswer:
    """Write the folder of transformers atomically."""
    published = PublishedModel(model.meta, model.described())
    arrays = published.described
    _check_room(arrays, output, 0)
    tokenizer = model.meta.get("tokenizer")
    file = tokenizer["file"] if tokenizer is not None and tokenizer["name"] == "bpe" else None
    with _new_path(output) as fresh:
        published.write(fresh, lambda place: model.read(model.parameters[place]), file)
    return _report(model, output, arrays, str(output / "tokenizer.json") if file is not None else None)


def _write_adapter(model: SavedModel, output: Path) -> ExportAnswer:
    """Write the folder of PEFT atomically."""
    adapter = Adapter(PublishedModel(model.meta, model.described(), PEFT))
    arrays = adapter.described
    _check_room(arrays, output, 0)
    with _new_path(output) as fresh:
        adapter.write(fresh, lambda place: model.read(model.parameters[place]))
    return _report(model, output, arrays, None)


def _report(model: SavedModel, output: Path, arrays: Described, tokenizer: str | None) -> ExportAnswer:
    """Describe a folder that was written."""
    return ExportAnswer(
        file=str(output),
        step=model.step,
        weights=model.weights,
        arrays=len(arrays),
        parameters=sum(math.prod(shape) for shape, _ in arrays.values()),
        bytes=sum(path.stat().st_size for path in output.iterdir()),
        tokenizer=tokenizer,
        verified=model.is_verified,
    )


def _places(model: SavedModel) -> dict[str, tuple[str, ...]]:
    """Return the path of each of the model's arrays in the state, by the name that it has in the model."""
    places = {".".join(path): place for path, place in model.parameters.items()}
    for place in model.arrays:
        if place[0] == "model_state":
            name = ".".join(place[1:])
            while name in places:
                name = f"model_state.{name}"
            places[name] = place
    return places


def _check_room(arrays: Described, output: Path, metadata: int) -> None:
    """Raise UserError if the largest array does not fit in memory, or all of them do not fit on the disk."""
    sizes = {name: math.prod(shape) * dtype.itemsize for name, (shape, dtype) in arrays.items()}
    largest = max(sizes, key=lambda name: sizes[name])
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if sizes[largest] > memory:
        raise UserError(
            f"the array {largest} has {in_bytes(sizes[largest])}, and this machine {in_bytes(memory)} of memory; "
            "export it on a larger one"
        )
    needed = sum(sizes.values()) + metadata + _HEADER
    try:
        free = shutil.disk_usage(output.parent).free
    except OSError as error:
        raise UserError(f"{output} cannot be written: {output.parent}: {error.strerror}") from None
    if needed > free:
        raise UserError(
            f"{output} cannot be written: it takes {in_bytes(needed)}, and {in_bytes(free)} are free there; free some, or "
            "choose another place with --output FILE"
        )


def _write_tokenizer(output: Path, saved: Any) -> str | None:
    """Write a BPE tokenizer beside the file, as tokenizer.json. Return its path; None for other tokenizers."""
    if saved is None or saved["name"] != "bpe":
        return None
    path = _tokenizer_path(output)
    with _new_path(path) as file:
        file.write_text(saved["file"], encoding="utf-8")
    return str(path)


def _tokenizer_path(output: Path) -> Path:
    return output.with_name(f"{output.stem}.tokenizer.json")


def _check_new(path: Path) -> None:
    if os.path.lexists(path):
        raise UserError(f"{path} exists; choose another name with --output FILE, or remove it")


@contextmanager
def _new_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path for a file or folder; afterwards flush it to the disk and rename it to `path`.

    Raises UserError if it cannot be written.
    """
    _check_new(path)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield fresh
        for one in fresh.iterdir() if fresh.is_dir() else [fresh]:
            with one.open("rb") as file:
                os.fsync(file.fileno())
        fresh.rename(path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written: {error.strerror}; choose another place with --output FILE"
        ) from None
    finally:
        if fresh.is_dir():
            shutil.rmtree(fresh, ignore_errors=True)
        else:
            fresh.unlink(missing_ok=True)

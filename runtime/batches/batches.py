"""Find the examples that steps of a run have seen, by computing them again from the run's seed and data."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from pydantic import ValidationError

from ..checkpoint.damage import DamagedCheckpointError, HostFaultError, read_meta
from ..checkpoint.folder import METADATA
from ..checkpoint.metadata import JobMeta, job_meta
from ..config import Config, files_of
from ..contract import UserError, Workdir
from ..data.base import Dataset, Order, Origin, Tokenizer, Traceable
from ..data.mixture import Stage
from ..data.order import JobOrder, within
from ..data.streamed import Streamed
from ..queries import BatchesAnswer, SeenExample
from ..storage.bucket_data import load_data

Array = np.ndarray[Any, Any]

_BEFORE = 5  # logged steps whose median loss a jump is compared with
_MOST = 100_000  # examples


def steps_of(workdir: Path, first: int | None, last: int | None) -> BatchesAnswer:
    """Return the examples that some steps of a run have seen.

    Args:
        workdir: the run's workdir.
        first: the first step; None: the steps before the largest jump of the loss.
        last: the last step; None: the first one alone.

    Raises:
        UserError: the run or its data cannot be read, or has no such steps.
    """
    config = _job(workdir)
    if config.batch_size == "all":
        raise UserError("batch_size: all: each step of this job sees the whole training set")
    why = ""
    if first is None:
        first, last, why = _spike(Workdir(workdir).metrics)
    last = first if last is None else last
    if not 1 <= first <= last or (last - first + 1) * config.batch_size > _MOST:
        most = max(1, _MOST // config.batch_size)
        raise UserError(f"steps {first} to {last} are no steps; give the first and the last, at most {most:,} of them")
    data = _data(config)
    if isinstance(data.train, Streamed):
        raise UserError("the data of the run is read by an iterator, so that what its steps saw cannot be read again")
    job = JobOrder(config, data)
    metas = _checkpoints(workdir)
    if metas:
        step = max(metas)
        meta = metas[step]
        skipped = [(start, end) for start, end in meta.get("skipped") or []]
        job.resume([Stage(**stage) for stage in meta.get("mixture") or []], skipped, meta["position"], step)
    order, size = job.order(), config.batch_size
    numbers = {
        step: int(within(job.skipped, np.array([(step - 1) * size]))[0]) // size + 1 for step in range(first, last + 1)
    }
    examples = [one for step, batch in numbers.items() for one in _of_step(step, batch, order, size, data)]
    return {"why": why, "note": _doubt(config, data, metas), "examples": examples}


def _job(workdir: Path) -> Config:
    path = Workdir(workdir).config
    try:
        return Config.model_validate(yaml.safe_load(path.read_text()))
    except (OSError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or "it is not YAML"
        raise UserError(f"cannot read {path}: {reason}; give the workdir of a run of train.yaml") from None
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise UserError(f"{path} is of another version of podrun ({key}); take the one that has written it") from None


def _data(config: Config) -> Dataset:
    try:
        files_of(config)
    except UserError as error:
        raise UserError(
            f"the data of the run is not here: {str(error).partition('; ')[0]}; bring it to the same path"
        ) from None
    return load_data(config)


def _checkpoints(workdir: Path) -> dict[int, JobMeta]:
    """Return the metadata of the checkpoints that can be read, by step."""
    metas = {}
    folder = Workdir(workdir).checkpoints
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.name.isdecimal():
            try:
                metas[int(path.name)] = read_meta(int(path.name), path, METADATA, job_meta)
            except (DamagedCheckpointError, HostFaultError):
                continue
    return metas


def _doubt(config: Config, data: Dataset, metas: dict[int, JobMeta]) -> str:
    """Return why the run may have seen other examples than these; empty if there is no doubt."""
    if not metas:
        return "the run has no checkpoint to compare the data with: if the data was changed, its examples were others"
    newest = metas[max(metas)]
    if newest["fingerprint"] != data.fingerprint.hex():
        return "the data here is not that of the run: the run has seen other examples"
    wrong = [step for step, meta in metas.items() if meta["position"] != step * int(config.batch_size)]
    if wrong:
        return f"batch_size was not always {config.batch_size}: at step {wrong[0]} the run was at another position"
    return ""


def _of_step(step: int, batch: int, order: Order, size: int, data: Dataset) -> list[SeenExample]:
    indices, epochs = order.run((step - 1) * size, size)
    tokens = data.train.gather(indices, epochs).get("tokens")
    examples: list[SeenExample] = []
    for row, (index, epoch) in enumerate(zip(indices.tolist(), epochs.tolist(), strict=True)):
        origins: list[Origin] = data.train.origins(index, epoch) if isinstance(data.train, Traceable) else []
        text = None if tokens is None or data.tokenizer is None else _text(tokens[row], origins, data.tokenizer)
        examples.append(
            {
                "step": step,
                "batch": batch,
                "row": row,
                "index": index,
                "epoch": epoch,
                "origins": [
                    {
                        "where": origin.where,
                        "start": origin.start,
                        "size": origin.size,
                        "documents": [*origin.documents],
                    }
                    for origin in origins
                ],
                "text": text,
            }
        )
    return examples


def _text(tokens: Array, origins: list[Origin], tokenizer: Tokenizer) -> str:
    """Return the text of an example: tokens, int32[T + 1], or the tokens of both conversations of a pair, int32[2, T + 1]."""
    sizes = [origin.size for origin in origins]
    if tokens.ndim == 1:
        return tokenizer.decode(tokens[: sum(sizes) or len(tokens)])
    return "\n".join(tokenizer.decode(ids[:size]) for ids, size in zip(tokens, sizes or map(len, tokens), strict=True))


def _spike(metrics: Path) -> tuple[int, int, str]:
    """Return the first and the last step before the largest jump of the loss, and a phrase about it."""
    losses: dict[int, float] = {}
    try:
        for line in metrics.read_text().splitlines():
            record = json.loads(line)
            if record.get("kind") == "train" and isinstance(record.get("loss"), float):
                losses[record["step"]] = record["loss"]
    except (OSError, ValueError):
        raise UserError(f"cannot read the losses in {metrics}; give --step") from None
    steps = sorted(losses)
    jumps = {
        at: losses[at] - float(np.median([losses[step] for step in steps[max(0, number - _BEFORE) : number]]))
        for number, at in enumerate(steps)
        if number and math.isfinite(losses[at])
    }
    if not jumps or max(jumps.values()) <= 0:
        raise UserError(f"the loss in {metrics} has no jump; give --step")
    at = max(jumps, key=lambda step: jumps[step])
    before = steps[steps.index(at) - 1]
    why = f"the loss jumps by {jumps[at]:.3g} to {losses[at]:.4g} at step {at}, the next logged after {before}"
    return before, at, why

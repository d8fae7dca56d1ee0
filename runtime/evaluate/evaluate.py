"""Compute the metrics of a trained model on validation data, by the code that a run validates with."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from ..checkpoint.same_job import differences, shapes_of
from ..checkpoint.saved_model import SavedModel, Step, find_checkpoint
from ..config import Config
from ..config.attention import with_kernel
from ..config.parallel import Single
from ..config.sections import Sample
from ..contract import UserError
from ..data.base import Examples
from ..data.pipeline import evaluation_batches
from ..events import Metrics
from ..measure.validation import validate
from ..models.pretrained import TOKENIZER, file_of, folders_of, is_published, load_here, title_of
from ..parallel import make_strategy
from ..parallel.base import Strategy
from ..queries import EvaluateAnswer
from ..state import Batch, Params, StateDict
from ..tasks import make_task
from ..tasks.base import Sums
from .data import Validation, data_at, data_of_run

OnBatch = Callable[[int, int], None]
"""Gets the number of batches that are evaluated, and of all."""
_UNITS = 8192
"""Most tokens or examples of a batch, so that any machine has memory for it."""
_CONTEXT = 1024
"""Most tokens of a window for a published model, whose own context may be too long for this machine."""


def evaluate(folder: Path, step: Step, data: str | None, tokenizer: Path | None, on_batch: OnBatch) -> EvaluateAnswer:
    """Evaluate the model in a folder.

    Args:
        folder: a run's workdir, or a folder as `save_pretrained` of transformers writes it.
        step: step of the checkpoint.
        data: path of other data; None: the data of the run.
        tokenizer: a tokenizer.json for a text, if the model has none; None: the model's own.
        on_batch: called after each batch.

    Raises:
        UserError: there is no such model or data, or they do not fit each other.
    """
    if is_published(folder):
        if step is not None:
            raise UserError(f"--step {step}: {folder} has a published model, which has no steps; leave it out")
        return _published(folder, data, tokenizer, on_batch)
    return _saved(folder, step, data, tokenizer, on_batch)


def _saved(workdir: Path, step: Step, path: str | None, file: Path | None, on_batch: OnBatch) -> EvaluateAnswer:
    saved = SavedModel(find_checkpoint(workdir, step))
    config = with_kernel(saved.job, "xla")  # the job may name a kernel of its GPUs or TPUs
    data = data_of_run(saved.job, saved.meta) if path is None else data_at(path, config, file, saved.meta)
    if config.parallel.name == "ensemble":
        _make_devices(_first(saved.meta["shapes"]["params"])[0])
    else:
        config = config.model_copy(update={"parallel": Single()})
    strategy = make_evaluator(config, data)
    params, model_state = saved.trees(jnp.asarray)
    about = about_checkpoint(config, strategy, saved.step, str(workdir))
    metrics, examples = _measure(strategy, data, params, model_state, on_batch)
    return answer(about, strategy, data, metrics, examples, saved.step, saved.weights)


def _published(folder: Path, path: str | None, file: Path | None, on_batch: OnBatch) -> EvaluateAnswer:
    if path is None:
        raise UserError(f"{folder} has a published model, and no data; give a text with --data FILE")
    folders = folders_of(folder)
    file = file or file_of(folders, TOKENIZER)
    if file is None:
        raise UserError(f"{folder} has no {TOKENIZER}; give its tokenizer.json with --tokenizer FILE")
    config, params = load_here(folder, _CONTEXT)
    data = data_at(path, config, file, None)
    strategy = make_evaluator(config.model_copy(update={"parallel": Single()}), data)
    return answer(title_of(folders), strategy, data, *_measure(strategy, data, params, {}, on_batch))


def about_checkpoint(config: Config, strategy: Strategy, step: int, workdir: str) -> str:
    """Return the phrase that says which model a checkpoint has."""
    what = f"task {config.task}" if strategy.task.has_step else f"model {config.model.name}"
    return f"{what}, step {step} of {workdir}"


def answer(
    about: str,
    strategy: Strategy,
    data: Validation,
    metrics: Metrics,
    examples: int,
    step: int | None = None,
    weights: str = "params",
) -> EvaluateAnswer:
    """Return the answer to the user. For the arguments see `EvaluateAnswer`."""
    task = strategy.task
    return EvaluateAnswer(
        about=about,
        step=step,
        weights=weights,
        data=data.about,
        is_of_run=data.is_of_run,
        examples=examples,
        tokens=task.units_per_example if task.unit == "tokens" else None,
        metrics=metrics,
    )


def make_evaluator(config: Config, data: Validation) -> Strategy:
    """Return the strategy, without an optimizer and without an average.

    Raises UserError if the job's task cannot be evaluated.
    """
    config = config.model_copy(update={"ema": None, "sample": Sample(tokens=0)})
    strategy = make_strategy(config, make_task(config, data.dataset), optax.identity(), lambda step: 0.0)
    if not strategy.task.evaluates:
        raise UserError(
            f"task {config.task} has no `evaluate`, by which it could be evaluated; write evaluate(state, batch) -> metrics"
        )
    return strategy


def check_model(saved: Any, form: StateDict) -> None:
    """Raise UserError if the job's code makes another model than that of a checkpoint. `saved`: shapes of its arrays."""
    if rows := differences("", saved, shapes_of(form)):
        place, before, now = rows[0]
        raise UserError(
            f"the job's code now makes another model: {place} has the shape {before} in the checkpoint, {now} in this "
            "code; evaluate it with the code that it was trained with"
        )


def sets_of(data: Validation) -> tuple[list[Examples], list[Examples]]:
    """Return the sets that together are the validation set, and all sets to evaluate, without repetition."""
    dataset = data.dataset
    of_whole = [dataset.validations[name] for name in dataset.sources] or [dataset.validation]
    return of_whole, list({id(one): one for one in (*of_whole, *dataset.validations.values())}.values())


def _measure(
    strategy: Strategy, data: Validation, params: Params, model_state: StateDict, on_batch: OnBatch
) -> tuple[Metrics, int]:
    """Return the metrics of the evaluation, and the number of its examples."""
    named: StateDict = {"params": params, **({"model_state": model_state} if model_state else {})}
    form = strategy.template()
    parts: StateDict = {part: form[part] for part in ("params", "model_state") if part in form}
    check_model(shapes_of(named), parts)
    placed = jax.tree.map(lambda array, like: jax.device_put(array, like.sharding), named, parts)
    step = jax.device_put(jnp.int32(0), form["step"].sharding)
    state = strategy.place({"step": step, "opt_state": form["opt_state"], **placed})
    of_whole, every = sets_of(data)
    sets = {id(examples): _Batches.of(strategy, data, examples) for examples in every}
    total = sum(batches.count for batches in sets.values())
    numbers = itertools.count(1)

    def sums_of(examples: Examples) -> Sums:
        batches = sets[id(examples)]
        return strategy.sums(state, batches.sharded(strategy, examples, lambda: on_batch(next(numbers), total)))

    metrics = validate(data.dataset, strategy, sums_of)
    return metrics, sum(sets[id(examples)].examples for examples in of_whole)


@dataclass(frozen=True)
class _Batches:
    """The batches of an evaluation: the run's, cut into smaller ones, which have the same sums."""

    examples: int
    rows: int
    limit: int | None

    @classmethod
    def of(cls, strategy: Strategy, data: Validation, examples: Examples) -> _Batches:
        size, task = examples.size, strategy.task
        batch = strategy.config.batch_size
        whole = size if batch == "all" else batch
        most = whole if task.whole_batch else max(1, _UNITS // task.units_per_example // strategy.models)
        if data.limit is None:
            return cls(size, min(whole, most), None)
        rows = max(rows for rows in range(1, min(whole, most) + 1) if whole % rows == 0)
        return cls(min(size, data.limit * whole), rows, data.limit * whole // rows)

    @property
    def count(self) -> int:
        """Return the number of batches."""
        return math.ceil(self.examples / self.rows)

    def sharded(self, strategy: Strategy, examples: Examples, on_batch: Callable[[], None]) -> Iterator[Batch]:
        """Yield the batches on the devices, and call `on_batch` after each."""
        for batch in evaluation_batches(examples, self.rows, 0, 1, self.limit):
            yield strategy.shard(batch)
            on_batch()


def _make_devices(count: int) -> None:
    """Make JAX create `count` virtual devices, one for each member of an ensemble. Call it before JAX creates devices."""
    if jax.config.values["jax_num_cpu_devices"] != count:
        jax.config.update("jax_num_cpu_devices", count)


def _first(shapes: Any) -> list[int]:
    """Return the shape of the first array of a tree."""
    return _first(next(iter(shapes.values()))) if isinstance(shapes, dict) else shapes

"""Metrics that are no means: what a task's evaluation returns for each example is gathered, for its `summarize`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import jax.numpy as jnp
import numpy as np

from .. import plugins
from ..array_names import is_writable
from ..contract import UserError
from ..events import FIELDS
from ..state import Batch
from .base import Scalars

Arrays = dict[str, np.ndarray[Any, Any]]
"""Arrays of all examples by name, which an evaluation collects."""
_WEIGHTS = "weights"
"""Name of the weights of the examples, beside what an evaluation collects."""
_LARGEST = 8 << 30
"""Most bytes that are collected on each host, so that an evaluation that returns too much ends with a reason."""


def collect(task: str, evaluate: Callable[[Any, Batch], Any], params: Any, batch: Batch) -> Scalars:
    """Return what `evaluate` returns for a batch, [B, ...] each, and the weights of its examples, float32[B].

    Raises UserError, with the name of the task, unless these are arrays by name with a row for each example.
    """
    values, weights = evaluate(params, batch), of_examples(batch)
    if not isinstance(values, Mapping) or not values:
        _refuse(task, f"its `evaluate` returns {plugins.short(values)}, expected a dict of arrays for its `summarize`")
    for name, value in values.items():
        if not isinstance(name, str) or name == _WEIGHTS:
            _refuse(task, f"its `evaluate` returns an array called {name!a}; give it another name")
        if getattr(value, "shape", ())[:1] != weights.shape:
            _refuse(
                task,
                f"its `evaluate` returns {name} {list(getattr(value, 'shape', ()))}, expected [{len(weights)}, ...], a "
                "row for each example of the batch, of which its `summarize` gets all",
            )
    return {_WEIGHTS: weights, **values}


def joined(task: str, parts: Iterable[Mapping[str, Any]]) -> Arrays:
    """Join what was collected of batches: numpy arrays [N, ...] of all examples, without padding.

    Raises UserError, with the name of the task, if they are too large.
    """
    kept: dict[str, list[Any]] = {}
    size = 0
    for part in parts:
        rows = np.asarray(part[_WEIGHTS]) > 0
        for name, value in part.items():
            if name != _WEIGHTS:
                array = np.asarray(value)[rows]
                kept.setdefault(name, []).append(array.astype(np.float32) if array.dtype == jnp.bfloat16 else array)
                size += kept[name][-1].nbytes
        if size > _LARGEST:
            raise UserError(
                f"task {task}: an evaluation has collected more than {_LARGEST >> 30} GiB for its `summarize`; return fewer "
                "numbers for each example, such as the prediction in place of all logits, or give a smaller eval.batches"
            )
    return {name: np.concatenate(arrays) for name, arrays in kept.items()}


def numbers(task: str, metrics: Any) -> dict[str, float]:
    """Return the metrics that a task's `summarize` has computed. Raises UserError unless they are numbers by name."""
    values = {}
    for name, value in named_metrics(task, "summarize", metrics).items():
        try:
            values[name] = float(value)
        except (TypeError, ValueError):
            _refuse(task, f"its `summarize` returns the metric {name} as {plugins.short(value)}, expected a number")
    return values


def named_metrics(task: str, function: str, metrics: Any) -> Mapping[str, Any]:
    """Return the metrics that a function of a task returned. Raises UserError unless they are a dict with valid names."""
    if not isinstance(metrics, Mapping):
        _refuse(task, f"its `{function}` returns metrics as {plugins.short(metrics)}, expected a dict of numbers")
    for name in metrics:
        if not isinstance(name, str) or not name or not is_writable(name):
            _refuse(task, f"its `{function}` returns a metric called {name!a}, expected text")
        if name in FIELDS:
            _refuse(task, f"its `{function}` returns a metric called {name}, which is a field of podrun's own records")
    if not metrics:
        _refuse(task, f"its `{function}` returns no metrics, by which one sees how training goes; return a loss")
    return metrics


def of_examples(batch: Batch) -> Any:
    """Return the weights of the examples of an evaluation, float32[B]: 0 on padding."""
    weights = batch["weights"]
    if weights.ndim > 1:  # those of tokens: an example counts if any token of it does
        weights = (weights != 0).reshape(len(weights), -1).any(1).astype(jnp.float32)
    return weights


def _refuse(task: str, reason: str) -> NoReturn:
    plugins.refuse(task, "task", reason)

"""A user's object that computes whole training steps, with a state of its own, as a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from .. import plugins
from ..config import Config
from ..config.sections import Eval
from ..contract import UserError
from ..data.base import Dataset
from ..models.adapter import name_of, named, refilled
from ..state import Batch, Params
from ..wording import first_names
from .base import Scalars, Task
from .collecting import named_metrics, of_examples

_COUNT = ""
"""Name of the sum of the examples' weights in an evaluation: no metric can have it."""
_SHOWN = 4  # arrays in a message


@dataclass(frozen=True)
class _Form:
    """The form of an array of the state."""

    dtype: Any
    shape: tuple[int, ...]
    key: Any
    """Implementation of the random numbers if the array is of random keys, which are kept as their data; else None."""

    @classmethod
    def of(cls, array: Any) -> _Form:
        is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
        return cls(array.dtype, array.shape, jax.random.key_impl(array) if is_key else None)

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class OwnStep(Task):
    """A task of an object with `init` and `step`, and `evaluate` if it is evaluated (docs/plugins.md).

    Its state may be any tree of arrays. The rest of podrun sees it as nested dictionaries of arrays, with the data of random
    keys in place of the keys. So it is saved, restored and compared like the parameters of a model.

    Args:
        config: the job.
        data: the data to learn from.
        code: the user's object.

    Raises:
        UserError: `code` lacks a method, a method takes other arguments, or the job has keys that are for a `loss`.
    """

    has_step = True
    whole_batch = True

    def __init__(self, config: Config, data: Dataset, code: Any) -> None:
        super().__init__(config, data)
        self._code = code
        self.evaluates = getattr(code, "evaluate", None) is not None
        if getattr(code, "init", None) is None:
            self._refuse("has `step` but no `init`, which makes the first state: init(key, batch) -> state")
        signature = plugins.signature_of(code.init)
        self._with_examples = signature is None or len(signature.parameters) > 1
        self._check_call("init", "key", *["batch"] * self._with_examples)
        self._check_call("step", "state", "batch", "key")
        if self.evaluates:
            self._check_call("evaluate", "state", "batch")
        self.collects = self.evaluates and getattr(code, "summarize", None) is not None
        if self.collects:
            self._check_call("summarize", "values")
        if problems := _conflicts(config, self.evaluates):
            raise UserError("\n".join(problems))
        self._like: Any = None
        """The state as `init` returns it, with the form of each array in its place."""

    def init(self, key: jax.Array) -> Params:
        """Return the first state, nested dictionaries of arrays. Raises UserError if it cannot be saved."""
        first = np.zeros(1, np.int64)
        given = (self.data.train.gather(first, first),) if self._with_examples else ()
        state = self._arrays("init", self._code.init(key, *given))
        arrays = named(state, "the state")
        if not arrays:
            self._refuse("its `init` returns no arrays, expected the state of the training: a tree of arrays")
        self._like = jax.tree.map(_Form.of, state)
        return _without_keys(arrays)

    def step(self, given: Params, batch: Batch, key: jax.Array) -> tuple[Params, Scalars]:
        """Return the state after a step, and its metrics, float32[] each.

        Args:
            given: the state, as `init` returns it.
            batch: the global batch, arrays [B, ...].
            key: random key of the step.

        Raises:
            UserError: the step returns something else, or a state of another form.
        """
        result = self._code.step(self.users_state(given), batch, key)
        if not isinstance(result, tuple) or len(result) != 2:
            self._refuse(f"its `step` returns {plugins.short(result)}, expected (state, metrics)")
        state, metrics = result
        state = self._arrays("step", state)
        self._check_form(state)
        numbers = self._metrics("step", metrics)
        for name, value in numbers.items():
            if value.shape != ():
                self._refuse(
                    f"its `step` returns the metric {name} as {value.dtype}{list(value.shape)}, expected a number; return "
                    "its mean"
                )
        return _without_keys(named(state, "the state")), numbers

    def loss(self, params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Scalars]:
        """Never called: `step` takes its place."""
        raise NotImplementedError

    def evaluate(self, params: Params, batch: Batch) -> Scalars:
        if self.collects:
            values: Any = self._code.evaluate(self.users_state(params), batch)
            return values
        values = {}
        if self.evaluates:
            values = self._metrics("evaluate", self._code.evaluate(self.users_state(params), batch))
        weights = of_examples(batch)
        for name, value in values.items():
            if value.shape not in ((), weights.shape):
                self._refuse(
                    f"its `evaluate` returns the metric {name} as {value.dtype}{list(value.shape)}, expected "
                    f"[{len(weights)}], a number for each example of the batch, or [], their mean"
                )
        return {_COUNT: weights.sum(), **{name: (value * weights).sum() for name, value in values.items()}}

    def summarize(self, sums: Mapping[str, Any]) -> dict[str, float]:
        if self.collects:
            metrics: Any = self._code.summarize(sums)
            return metrics
        return {name: value / sums[_COUNT] for name, value in sums.items() if name != _COUNT}

    def users_state(self, best: Any) -> Any:
        """Return the state in the form that the user's code gives it."""

        def whole(form: _Form, array: jax.Array) -> jax.Array:
            return array if form.key is None else jax.random.wrap_key_data(array, impl=form.key)

        return jax.tree.map(whole, self._like, refilled(self._like, best))

    def _arrays(self, function: str, state: Any) -> Any:
        """Return the state with an array for each number. Raises UserError if it has other leaves."""

        def array(path: Any, leaf: Any) -> jax.Array:
            name = name_of(path) or "the state"
            try:
                # Without weak types, with which the second step would be compiled again.
                value = jnp.asarray(leaf)
                value = jax.lax.convert_element_type(value, value.dtype)
            except (TypeError, ValueError, OverflowError):
                self._refuse(
                    f"its `{function}` returns a state in which {name} is {plugins.short(leaf)}, expected an array or a "
                    "number; keep everything else in the object itself (of an Equinox module, eqx.partition gives the arrays)"
                )
            if 0 in value.shape:
                self._refuse(f"its `{function}` returns a state in which {name} is of size zero ({list(value.shape)})")
            return value

        return jax.tree.map_with_path(array, state)

    def _check_form(self, state: Any) -> None:
        """Raise UserError if a step changes the form of the state, because it is compiled only once."""
        forms = jax.tree.map(_Form.of, state)
        before, after = (
            {name_of(p): str(form) for p, form in jax.tree.leaves_with_path(tree)} for tree in (self._like, forms)
        )
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        if names:
            rows = [f"{n} is {before.get(n, 'missing')} before and {after.get(n, 'missing')} after" for n in names]
            self._refuse(f"its `step` changes the form of the state: {first_names(rows, _SHOWN)}")
        structures: list[Any] = [jax.tree.structure(tree) for tree in (self._like, forms)]
        if structures[0] != structures[1]:
            one, two = (str(structure).removeprefix("PyTreeDef")[:200] for structure in structures)
            self._refuse(f"its `step` changes the types in the state, which were {one}, to {two}")

    def _metrics(self, function: str, metrics: Any) -> Scalars:
        """Return metrics as float32. Raises UserError unless they are numbers by name."""
        metrics = named_metrics(self.config.task, function, metrics)
        try:
            return {name: jnp.asarray(value).astype(jnp.float32) for name, value in metrics.items()}
        except (TypeError, ValueError):
            kinds = ", ".join(f"{name} {plugins.short(value)}" for name, value in metrics.items())
            self._refuse(f"its `{function}` returns metrics that are no numbers ({kinds})")

    def _check_call(self, function: str, *words: str) -> None:
        plugins.check_call(getattr(self._code, function), self.config.task, "task", words, part=function)

    def _refuse(self, reason: str) -> NoReturn:
        plugins.refuse(self.config.task, "task", reason)


def _without_keys(arrays: Params) -> Params:
    """Return nested dictionaries of arrays, with each random key replaced by its data."""

    def plain(array: jax.Array) -> jax.Array:
        return jax.random.key_data(array) if jnp.issubdtype(array.dtype, jax.dtypes.prng_key) else array

    return jax.tree.map(plain, arrays)


def _conflicts(config: Config, evaluates: bool) -> list[str]:
    """Return a problem for each key of the job that needs a `loss`, or an evaluation if the task is not evaluated."""
    task = f"task {config.task} has a `step` of its own"
    problems = []
    if config.accumulate > 1:
        problems.append(
            f"accumulate {config.accumulate}: {task}, which gets the whole batch; remove it, and divide it there"
        )
    if config.ema is not None:
        problems.append(f"ema: {task}; remove it, and keep the average in the state")
    if config.trainable is not None:
        problems.append(f"trainable: {task}; remove it, and update only what is trained")
    if config.skip_nonfinite:
        problems.append(
            f"skip_nonfinite: {task}; remove it, and return the state as it was if the gradient is not finite: "
            "jax.tree.map(lambda new, old: jnp.where(ok, new, old), after, before)"
        )
    if config.z_loss:
        problems.append(f"z_loss: {task}; remove it, and add it to the loss")
    if config.precision.gradients != "float32":
        problems.append(f"precision.gradients: {task}, which sums its gradients itself; remove it")
    if not evaluates:
        given = {
            "eval.patience": config.eval.patience is not None,
            "eval.best": config.eval.best != Eval().best,
            "validation": bool(config.validation),
        }
        problems += [
            f"{key}: task {config.task} is not evaluated, because it has no `evaluate`; remove it, or write "
            "evaluate(state, batch) -> metrics"
            for key, is_given in given.items()
            if is_given
        ]
    return problems

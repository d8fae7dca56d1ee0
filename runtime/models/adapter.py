"""The common interface for models of all frameworks: pure functions of trees of arrays."""

from __future__ import annotations

import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from .. import plugins
from ..array_names import Arrays, places
from ..config.parallel import rule_pattern
from ..contract import UserError
from ..state import Params, Variables
from .gathering import Tables
from .shares import SHARES, of_one_share

KEY = "model.name"


class Model(ABC):
    """A model as tasks use it, whatever framework it is written in.

    Parameters and state are nested dictionaries of arrays with string keys. A random key as argument means training, None
    means evaluation.
    """

    name: str
    """Name of the model in the config."""
    takes_segments = False
    """True if it takes the numbers of the documents in each row of tokens."""
    has_head = False
    """True if a language model offers its two halves, `hidden` and `head`."""
    tables: Tables | None = None
    """The matrices with a row for each token id, of a language model that `has_head` and says which they are."""
    stacked: tuple[str, ...] = ()
    """Names of the outermost parameters whose arrays have a leading axis of layers, and which `layers.scan_layers` gets."""
    partition_rules: Mapping[str, int] = {}
    """Dimensions of parameters that the mesh's axis `model` divides (see `parallel.layout.Partition`)."""

    @abstractmethod
    def init(self, key: jax.Array, x: jax.Array) -> tuple[Params, Any]:
        """Return the initial parameters, float32, and other state or None. `x` is a batch of one example, [1, ...]."""

    @abstractmethod
    def apply(
        self, params: Params, state: Any, x: jax.Array, key: jax.Array | None, segments: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        """Return the outputs for a batch, [B, ...], and the new state, which an evaluation ignores."""

    def variables(self, key: jax.Array, x: jax.Array) -> Any:
        """Return the initial parameters, as `Variables` if the model has state.

        `x` is a batch of one example, [1, ...]. Raises UserError if `init` returns anything but arrays of numbers.
        """
        params, state = self.init(key, x)
        if missing := set(self.stacked) - params.keys():
            self.refuse(f"`stacked` names {sorted(missing)[0]!r}, but its parameters are {', '.join(params)}")
        state = state if jax.tree.leaves(state) else None
        for path, leaf in jax.tree.leaves_with_path((params, state)):
            if not hasattr(leaf, "dtype") or jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                kind = plugins.short(leaf) if not hasattr(leaf, "dtype") else f"a random key ({leaf.dtype})"
                self.refuse(
                    f"{name_of(path[1:])} is {kind}, expected an array of numbers; each call gets a key of its own"
                )
        return params if state is None else Variables(params, state)

    def __call__(
        self, given: Any, x: jax.Array, key: jax.Array | None = None, segments: jax.Array | None = None
    ) -> Any:
        """Apply the model, and return the outputs, [B, ...]. In training, `given.state` is replaced by the new state.

        `segments`, int32[B, T], number the documents in each row of tokens; only for a model that `takes_segments`.
        """
        return self._outputs(given, x, key, segments, self.apply)

    def hidden(self, given: Any, x: jax.Array, key: jax.Array | None = None, segments: jax.Array | None = None) -> Any:
        """Apply the model without its head, and return the head's input, [B, T, C]. Only for a model that `has_head`."""
        return self._outputs(given, x, key, segments, self.apply_hidden)

    def head(self, given: Any, hidden: jax.Array) -> Any:
        """Return the logits, [..., V], of any part of a result of `hidden`, [..., C]. Only for a model that `has_head`."""
        params, state = (given.params, given.state) if isinstance(given, Variables) else (given, None)
        return self._array(self.apply_head(params, state, hidden))

    @plugins.hook
    def apply_hidden(
        self, params: Params, state: Any, x: jax.Array, key: jax.Array | None, segments: jax.Array | None = None
    ) -> tuple[jax.Array, Any]:
        """Apply the model as `apply` does, but without its head."""
        raise NotImplementedError

    @plugins.hook
    def apply_head(self, params: Params, state: Any, hidden: jax.Array) -> jax.Array:
        """Return the logits of `hidden`. A head draws no random numbers, and changes no state."""
        raise NotImplementedError

    def _outputs(self, given: Any, x: jax.Array, key: jax.Array | None, segments: jax.Array | None, apply: Any) -> Any:
        if not isinstance(given, Variables):
            return self._array(self._applied(apply, given, None, x, key, segments)[0])
        outputs, state = self._applied(apply, given.params, given.state, x, key, segments)
        if key is not None:
            self._check_state(given.state, state)
            given.state, given.updated = state, True
        return self._array(outputs)

    def refuse(self, reason: str) -> Any:
        """Raise UserError for a model that violates the contract in docs/plugins.md."""
        plugins.refuse(self.name, KEY, reason)

    def check_call(self, module: Any, words: Iterable[str], by_name: Iterable[str] = ()) -> None:
        """Raise UserError unless a module can be called with these positional and keyword arguments."""
        words = ["self", *words]
        if not callable(module):
            call = ", ".join([*words, *by_name])
            self.refuse(f"{type(module).__name__} has no `__call__`, expected `__call__({call})`")
        plugins.check_call(type(module).__call__, self.name, KEY, words, by_name, part="__call__")

    def check_evaluation(self, params: Params, state: Any, x: jax.Array) -> None:
        """Raise UserError if the model fails in an evaluation. The first evaluation may be days after the start."""
        state = state if jax.tree.leaves(state) else None
        evaluate = of_one_share(lambda params, state: self._applied(self.apply, params, state, x, None)[0])
        try:
            jax.eval_shape(evaluate, params, state)
        except UserError:
            raise
        except Exception as error:
            traceback.print_exception(error)
            words = str(error).partition("\n")[0].partition(" (http")[0]
            self.refuse(
                f"it fails in an evaluation ({type(error).__name__}: {words}), in which it has no random numbers, its `key` "
                "is None, and its state stays as it is; let it take `train` or `deterministic`, and draw only in training"
            )

    def _applied(self, apply: Any, *arguments: Any) -> tuple[Any, Any]:
        try:
            result: tuple[Any, Any] = apply(*arguments)
            return result
        except NameError as error:
            axis = re.search(r"unbound axis name: (\w+)", str(error))
            if axis is None:
                raise
            return self.refuse(
                f"averages over an axis named {axis[1]!r}, as a batch norm with `axis_name` does, but the axis over the "
                f"shares of a batch is named {SHARES!r}; take that name for statistics of the whole batch, or leave it out: "
                "statistics are then those of a device's share, and the state is their mean"
            )
        except NotImplementedError as error:
            if "axis_index_groups" not in str(error):
                raise
            return self.refuse(
                "averages over groups of devices (`axis_index_groups`), which JAX supports under pmap and shard_map only; "
                "take one of them, or leave the groups out"
            )

    def _array(self, outputs: Any) -> Any:
        if not isinstance(outputs, jax.Array):
            self.refuse(f"gives {plugins.short(outputs)} for a batch, expected an array")
        return outputs

    def _check_state(self, before: Any, after: Any) -> None:
        """Raise UserError if a step changes the state's names, shapes or dtypes, because it is compiled only once."""
        shapes = [{name_of(p): (x.dtype, x.shape) for p, x in jax.tree.leaves_with_path(s)} for s in (before, after)]
        for name in sorted(shapes[0].keys() | shapes[1].keys()):
            old, new = (f"{of[name][0]}{list(of[name][1])}" if name in of else "missing" for of in shapes)
            if old != new:
                self.refuse(f"its state {name} is {old} before a step and {new} after it; it must stay the same")


def stacked_of(model: Any) -> tuple[str, ...]:
    """Return the attribute `stacked` of a user's model; empty if it has none, or one that is not names."""
    given = getattr(model, "stacked", ())
    is_names = isinstance(given, tuple | list) and all(isinstance(name, str) for name in given)
    return tuple(given) if is_names else ()


def rules_of(model: Any) -> dict[str, int]:
    """Return the attribute `partition_rules` of a user's model, if it has one and that is numbers by regular expressions."""
    given = getattr(model, "partition_rules", {})
    is_rules = isinstance(given, Mapping) and all(
        isinstance(rule, str) and isinstance(number, int) for rule, number in given.items()
    )
    return dict(given) if is_rules and all(map(_is_regex, given)) else {}


def _is_regex(rule: str) -> bool:
    try:
        re.compile(rule_pattern(rule))
    except (re.error, OverflowError, RecursionError):
        return False
    return True


# --- trees as nested dictionaries ---


def named(tree: Any, what: str = "the model") -> Arrays:
    """Convert a tree to nested dictionaries, whose keys are the names along each leaf's path.

    Raises UserError, which calls the tree `what`, if two leaves would have the same name.
    """
    result: Arrays = {}
    for place, leaf in places(tree, what):
        *folders, last = place or ("array",)
        inner = result
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[last] = leaf
    return result


def refilled(like: Any, values: Arrays) -> Any:
    """Convert `values`, nested dictionaries as `named` returns them, back to a tree with the structure of `like`."""

    def leaf(path: Any, _: Any) -> Any:
        inner: Any = values
        for name in [name_of((key,)) for key in path] or ["array"]:
            inner = inner[name]
        return inner

    return jax.tree.map_with_path(leaf, like)


def name_of(path: Any) -> str:
    """Return the name of a path in a tree: keys, fields and indices, joined by dots."""
    return jax.tree_util.keystr(path, simple=True, separator=".")

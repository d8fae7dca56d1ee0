"""Checkpoints of a user program: any pytree, saved with the shapes and dtypes of its arrays to check it on resume."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple, NotRequired, TypedDict

import jax

from ..array_names import Arrays, refuse
from ..contract import UserError
from ..data import streamed
from ..distributed import barrier
from ..events import Metrics
from ..ranking import SavedBest, check_saved
from ..replicas import differing
from ..storage.base import Storage
from ..storage.shared_folder import SHARED_FOLDER
from ..wording import first_rows
from ..worker.progress import Reporter
from . import added, trees
from .folder import CheckpointFolder, Target
from .process_zero import restore_from_process_zero
from .restore import newest_readable
from .retention import Retention

_SHOWN = 8
_ADVICE = (
    "give podrun.steps a first state with the arrays of later ones; only dictionaries may gain entries: numpy arrays, torch "
    "tensors and numbers"
)


class ProgramMeta(TypedDict):
    """Metadata that is saved as JSON with the arrays of a program's state."""

    arrays: dict[str, str]
    """dtype and shape of each array, by name."""
    texts: NotRequired[trees.Texts]
    """Checkpoints of older versions have none."""
    iterators: NotRequired[list[str] | None]
    """State of each process's iterator, as `data.streamed` encodes it; None if the program gives none."""
    best: NotRequired[SavedBest | None]
    """The best evaluation so far; None if the program ranks none."""
    arguments: NotRequired[list[str]]
    """Arguments of the program."""
    added: NotRequired[added.Added]
    """The arrays that the first state did not have."""


class SavedProgram(NamedTuple):
    """A restored checkpoint of a program."""

    state: Any
    iterators: list[str] | None
    """State of each process's iterator."""
    best: SavedBest | None
    """The best evaluation so far."""
    arguments: list[str] | None
    """Arguments of the program that saved it; None: unknown."""


class FirstState(NamedTuple):
    """The form of the state into which checkpoints are restored. Later states may gain arrays (`added`)."""

    structure: Any
    """treedef"""
    described: dict[str, str]
    """dtype and shape of each array, by name."""


class ProgramCheckpoints(CheckpointFolder):
    """The checkpoints of a program's state, which is a pytree.

    Arrays that are divided over processes are saved and read by all processes, each its part. Everything else must be equal
    on all processes and is saved by process 0.
    """

    def __init__(
        self,
        directory: Path,
        like: Any,
        retention: Retention,
        storage: Storage = SHARED_FOLDER,
        first: FirstState | None = None,
    ) -> None:
        """Open the folder for states like `like`: the same structure, shapes, dtypes and shardings.

        `first`: form of the first state, if `like` is a later one, which may have gained arrays.

        Raises UserError if the state cannot be saved, or differs between processes.
        """
        self._described = _described(like)
        self.first = first or FirstState(jax.tree.structure(like), self._described)
        self._kept = trees.kept_as_is(like)
        _check_replicas(like, "the state", "give it as an array that is divided over the processes, or leave it out")
        in_parts = trees.spans_processes(like)
        super().__init__(directory, retention, in_parts, storage)
        if in_parts and storage.everyone_reads:
            barrier("before the first save")

    def check(self, step: int, state: Any) -> None:
        """Raise UserError if `state` cannot be saved exactly or restored into the first state. Called on all processes."""
        gained = self._added(state)
        described, expected = (
            {n: d for n, d in one.items() if n not in gained} for one in (_described(state), self._described)
        )
        if described != expected:
            rows = _rows(expected, described, "at first", "now")
            first = f"the state of step {step} differs from the first state, into which it is restored"
            raise UserError("\n".join([first, *rows, _ADVICE]))
        kept = trees.kept_as_is(state)
        changed = [name for name in {**self._kept, **kept} if kept.get(name) != self._kept.get(name)]
        refuse(
            f"the state of step {step} cannot be saved (arrays, numbers, text and bytes can)",
            [f"{name} differs from the first state, and a resumed run would not have it" for name in changed],
        )
        _check_replicas(state, f"the state of step {step}", "only process 0's would be saved")

    def _added(self, state: Any) -> added.Added:
        """Return the arrays that `state` has and the first state had not, if they can be restored without it."""
        return added.added(self.first.structure, self.first.described, state)

    def save(
        self,
        step: int,
        state: Any,
        iterators: list[str] | None = None,
        metrics: Metrics | None = None,
        best: SavedBest | None = None,
    ) -> None:
        """Start a save, as `write` does. Raises UserError as `check` does.

        Args:
            step: number of steps done.
            state: the pytree to save.
            iterators: state of each process's iterator, if the program gives one.
            metrics: metrics of the evaluation at this step; None if there was none.
            best: the best evaluation so far.
        """
        self.check(step, state)
        meta: ProgramMeta = {
            "arrays": trees.described(state),
            "texts": trees.texts(state),
            "iterators": iterators,
            "best": best,
            "arguments": sys.argv[1:],
            "added": self._added(state),
        }
        self.write(step, trees.savable(state), meta, metrics)

    def restore(self, step: int, like: Any, reporter: Reporter) -> Any:
        """Restore the state of a step, with the shardings of `like`.

        Raises UserError if it has other arrays than `like`, DamagedCheckpointError, HostFaultError.
        """
        if self.storage.everyone_reads:
            return self.load(step, self._target(like)).state
        chosen = restore_from_process_zero(self, lambda read: (step, read(step)), self._target(like), reporter)
        assert chosen is not None
        return chosen[1].state

    def newest(self, like: Any, reporter: Reporter) -> tuple[int, SavedProgram] | None:
        """Restore the newest checkpoint that all processes can read, as `restore_newest` does; None if there is none."""
        return newest_readable(self, self._target(like), reporter)

    def _target(self, like: Any) -> Target[ProgramMeta, SavedProgram]:
        def accept(step: int, meta: ProgramMeta, _: Any) -> None:
            saved = {**meta["arrays"], **_kinds(meta.get("texts", trees.texts(like)))}
            gained = meta.get("added", {})
            if saved != (expected := {**{n: meta["arrays"][n] for n in gained}, **_described(like)}):
                raise UserError(_other_arrays(self.directory, step, saved, expected))

        def build(_: int, meta: ProgramMeta, arrays: Any) -> SavedProgram:
            state = trees.restored(like, arrays, meta.get("texts", {}))
            added.insert(state, meta.get("added", {}), arrays)
            return SavedProgram(state, meta.get("iterators"), meta.get("best"), meta.get("arguments"))

        def template(meta: ProgramMeta) -> Arrays:
            return trees.template(like, added.forms(meta.get("added", {})))

        return Target(self._parse, accept, template, build)

    def _parse(self, meta: Any) -> ProgramMeta:
        """Return the metadata with its type.

        Raises UserError for a training job's checkpoint, TypeError or KeyError unless `save` can have written it.
        """
        if isinstance(meta, dict) and "config" in meta:
            raise UserError(
                f"{self.directory} holds checkpoints of a job from a train.yaml; a program needs another workdir"
            )
        if not isinstance(meta["arrays"], dict):
            raise TypeError("arrays is not a dict")
        trees.check_texts(meta.get("texts", {}))
        if meta.get("iterators") is not None:
            streamed.check_saved(meta["iterators"])
        if meta.get("best") is not None:
            check_saved(meta["best"])
        if not all(isinstance(word, str) for word in meta.get("arguments", [])):
            raise TypeError("arguments is not a list of texts")
        added.check_saved(meta.get("added", {}), meta["arrays"])
        checked: ProgramMeta = meta
        return checked


def _described(state: Any) -> dict[str, str]:
    """Return the type of each array and text of a state by name; arrays with dtype and shape."""
    return {**trees.described(state), **_kinds(trees.texts(state))}


def _kinds(texts: trees.Texts) -> dict[str, str]:
    return {name: kind for name, (kind, _) in texts.items()}


def _check_replicas(state: Any, what: str, advice: str) -> None:
    """Raise UserError if numbers, arrays or texts differ between processes, because only process 0's are saved."""
    others = differing(trees.same_everywhere(state)) if jax.process_count() > 1 else []
    refuse(
        f"{what} differs between processes ({advice})",
        [f"{name} of process {process} differs from that of an earlier process" for name, process in others],
    )


def _other_arrays(folder: Path, step: int, saved: dict[str, str], expected: dict[str, str]) -> str:
    return "\n".join(
        [
            f"the checkpoint of step {step} in {folder} has another state",
            *_rows(saved, expected, "in the checkpoint", "in the state"),
            "choose another workdir to start anew, or give the state that was saved",
        ]
    )


def _rows(one: dict[str, str], two: dict[str, str], of_one: str, of_two: str) -> list[str]:
    """Return a line for each array that only one of two states has, or that differs in shape or dtype.

    Args:
        one: shape and dtype of each array of the first state, by its name.
        two: the same for the second state.
        of_one: how the lines call the first state, such as `in the checkpoint`.
        of_two: how they call the second state.
    """
    names = [name for name in {**one, **two} if one.get(name) != two.get(name)]
    rows = [f"{n}: {one.get(n, 'not')} {of_one}, {two.get(n, 'not')} {of_two}" for n in names]
    return [f"  {row}" for row in first_rows(rows, _SHOWN)]

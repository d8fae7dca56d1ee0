"""The checkpoints of a user program: any pytree, and the shapes of its arrays to compare it with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..contract import UserError
from ..distributed import meet
from ..storage.base import Storage
from ..storage.shared_folder import SHARED_FOLDER
from ..worker.progress import Reporter
from . import trees
from .folder import CheckpointFolder, Target
from .process_zero import restore_from_process_zero
from .restore import newest_readable

_ARRAYS = "arrays"
_SHOWN = 8


class ProgramCheckpoints(CheckpointFolder):
    """The checkpoints of one state, a pytree.

    Arrays that are divided over processes are saved and read by all of them, each its part. Everything else must be the same
    on all processes, and is saved by process 0.
    """

    def __init__(self, directory: Path, like: Any, keep: int, storage: Storage = SHARED_FOLDER) -> None:
        """Open the directory in `storage`, for states of the structure, shapes and layout of `like`. Raises UserError."""
        self._described = trees.described(like)
        in_parts = trees.spans_processes(like)
        super().__init__(directory, keep, in_parts=in_parts, storage=storage)
        if in_parts and storage.everyone_reads:
            meet("before the first save")

    def save(self, step: int, state: Any) -> None:
        """Start to save, as `write` does. Raises UserError for a state that could not be restored into the first one."""
        if (arrays := trees.described(state)) != self._described:
            rows = _rows(self._described, arrays, "at first", "now")
            raise UserError(
                "\n".join([f"the state of step {step} is another than the first one, into which it is restored", *rows])
            )
        self.write(step, trees.savable(state), {_ARRAYS: arrays})

    def restore(self, step: int, like: Any, reporter: Reporter) -> Any:
        """Return the state of a step, laid out as `like`.

        Raises UserError if it has other arrays, DamagedCheckpointError, HostFaultError.
        """
        if self.storage.everyone_reads:
            return self.load(step, self._target(like))
        chosen = restore_from_process_zero(self, lambda read: (step, read(step)), self._target(like), reporter)
        assert chosen is not None
        return chosen[1]

    def newest(self, like: Any, reporter: Reporter) -> tuple[int, Any] | None:
        """Return step and state of the newest checkpoint that all processes can read, as `restore_newest` does."""
        return newest_readable(self, self._target(like), reporter)

    def _target(self, like: Any) -> Target[Any]:
        def accept(step: int, meta: dict[str, Any], _: Any) -> None:
            if meta[_ARRAYS] != (expected := trees.described(like)):
                raise UserError(_other_arrays(self.directory, step, meta[_ARRAYS], expected))

        return Target(
            self._check, accept, lambda: trees.template(like), lambda _, __, arrays: trees.restored(like, arrays)
        )

    def _check(self, meta: Any) -> None:
        """Raise UserError for a checkpoint of a train.yaml, TypeError or KeyError for one that `save` cannot have written."""
        if isinstance(meta, dict) and "config" in meta:
            raise UserError(
                f"{self.directory} holds the checkpoints of a train.yaml, not of a program; choose another workdir"
            )
        if not isinstance(meta[_ARRAYS], dict):
            raise TypeError(f"{_ARRAYS} is no dict")


def _other_arrays(folder: Path, step: int, saved: dict[str, str], expected: dict[str, str]) -> str:
    return "\n".join(
        [
            f"the checkpoint of step {step} in {folder} is of another state",
            *_rows(saved, expected, "in the checkpoint", "in the state"),
            "choose another workdir to start anew, or give the state that was saved",
        ]
    )


def _rows(one: dict[str, str], two: dict[str, str], of_one: str, of_two: str) -> list[str]:
    """Return lines that compare the arrays in which two states differ."""
    names = [name for name in {**one, **two} if one.get(name) != two.get(name)]
    rows = [f"  {n}: {one.get(n, 'not')} {of_one}, {two.get(n, 'not')} {of_two}" for n in names[:_SHOWN]]
    return rows + [f"  and {len(names) - _SHOWN} more"] * (len(names) > _SHOWN)

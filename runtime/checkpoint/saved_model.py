"""Open the model in a training job's checkpoint, without the job: its averaged parameters if it has `ema`, and its state."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from ..contract import UserError
from .damage import DamagedCheckpointError, HostFaultError, read_meta, unreadable
from .manifest import verify
from .metadata import JobMeta, job_meta
from .names import META, STATE

Place = tuple[str, ...]
"""The path of an array in the state."""
_META = Path(META, "metadata")
_SHOWN = 12  # most steps in a message


class SavedModel:
    """The model in a checkpoint.

    Args:
        folder: the checkpoint, as `find_checkpoint` returns it.

    Attributes:
        step: its step.
        meta: its metadata.
        weights: part of the state that has the parameters: `ema`, or `params` if there is no average.
        is_verified: False if the checkpoint has no manifest to verify it by.
        arrays: shape and dtype of each array of the state.

    Raises:
        UserError: the checkpoint is damaged, or of a user program.
    """

    def __init__(self, folder: Path) -> None:
        from .orbax_files import ArrayReader

        self._workdir, self._state = folder.parent.parent, folder / STATE
        self.step = int(folder.name)
        try:
            self.is_verified = verify(self.step, folder, full=True)
            self.meta: JobMeta = read_meta(self.step, folder, _META, _parse)
            self.weights = "ema" if "ema" in self.meta["shapes"] else "params"
            try:
                self._reader = ArrayReader(self._state)
            except Exception as error:
                raise unreadable(self.step, self._state, error) from None
            self.arrays = self._reader.arrays
            if not any(place[0] == self.weights for place in self.arrays):
                raise DamagedCheckpointError(self.step, self._state, f"it has no arrays of {self.weights}")
        except (DamagedCheckpointError, HostFaultError) as error:
            raise self._with_advice(error) from None

    def read(self, place: Place) -> np.ndarray[Any, Any]:
        """Return an array of the state. Raises UserError if it is damaged."""
        try:
            return self._reader.read(place)
        except Exception as error:
            raise self._with_advice(unreadable(self.step, self._state, error)) from None

    def parts(self, part: str) -> dict[Place, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return shape and dtype of the arrays of a part of the state, by their path in it."""
        return {place[1:]: form for place, form in self.arrays.items() if place[0] == part}

    def _with_advice(self, error: Exception) -> UserError:
        return UserError(f"{error}; `podrun checkpoints {self._workdir}` lists which are whole")


def find_checkpoint(workdir: Path, step: int | None) -> Path:
    """Return the folder of the step's checkpoint in a workdir, or of the newest. Raises UserError if there is none."""
    folder = workdir / "checkpoints"
    try:
        paths = {int(path.name): path for path in folder.iterdir() if re.fullmatch("[0-9]{1,18}", path.name)}
    except OSError as error:
        raise UserError(
            f"{folder} cannot be read: {error.strerror}; a workdir is the folder that a run writes to"
        ) from None
    if not paths:
        raise UserError(f"{folder} has no complete checkpoints; a workdir is the folder that a run writes to")
    if step is None:
        return paths[max(paths)]
    if step not in paths:
        steps = sorted(paths)
        more = f"{len(steps) - _SHOWN} more, " if len(steps) > _SHOWN else ""
        raise UserError(
            f"{folder} has no checkpoint of step {step}; there are {more}{', '.join(map(str, steps[-_SHOWN:]))}"
        )
    return paths[step]


def _parse(meta: Any) -> JobMeta:
    """Return the metadata. Raises UserError for the checkpoint of a user program; otherwise raises as `job_meta` does."""
    if isinstance(meta, dict) and "arrays" in meta and "config" not in meta:
        raise UserError(
            "the checkpoint is of a program with podrun.steps, and podrun does not know which part of its state is the "
            "model; open it with orbax (docs/checkpoints.md)"
        )
    return job_meta(meta)

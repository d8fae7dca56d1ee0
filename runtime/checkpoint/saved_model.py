"""Open the model in a training job's checkpoint, without the job: its averaged parameters if it has `ema`, and its state."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from flax.traverse_util import unflatten_dict
from pydantic import ValidationError

from ..array_names import Arrays
from ..config import Config
from ..contract import UserError
from ..ranking import LOWEST_LOSS, Ranking
from .damage import DamagedCheckpointError, HostFaultError, read_meta, require_frozen, unreadable
from .folder import METADATA
from .manifest import verify
from .metadata import JobMeta, job_meta
from .names import STATE
from .retention import best_step

Step = int | Literal["best"] | None
"""Step of a checkpoint, or the step of the best evaluation (`eval.best` of the job); None: the newest."""
Place = tuple[str, ...]
"""The path of an array in the state."""
_SHOWN = 12  # most steps in a message


class SavedModel:
    """The model in a checkpoint. The arrays are opened at the first use, which imports JAX.

    Args:
        folder: the checkpoint, as `find_checkpoint` returns it.

    Attributes:
        step: its step.
        meta: its metadata.
        weights: part of the state that has the parameters: `ema`, or `params` if there is no average.
        is_verified: False if the checkpoint has no manifest to verify it by.

    Raises:
        UserError: the checkpoint is damaged, or a user program has saved it.
    """

    def __init__(self, folder: Path) -> None:
        self._workdir, self._state = folder.parent.parent, folder / STATE
        self.step = int(folder.name)
        try:
            self.is_verified = verify(self.step, folder, full=True)
            self.meta: JobMeta = read_meta(self.step, folder, METADATA, parse_meta)
            require_frozen(self.step, folder, self.meta)
        except (DamagedCheckpointError, HostFaultError) as error:
            raise self._with_advice(error) from None
        self.weights = "ema" if "ema" in self.meta["shapes"] else "params"

    @cached_property
    def job(self) -> Config:
        """Return the job that saved the checkpoint. Raises UserError as `job_of` does."""
        return job_of(self.meta, self.step, str(self._workdir))

    @cached_property
    def _reader(self) -> Any:
        from .orbax_files import ArrayReader

        try:
            reader = ArrayReader(self._state.parent.absolute())
        except Exception as error:
            raise self._with_advice(unreadable(self.step, self._state, error)) from None
        if not any(place[0] == self.weights for place in reader.arrays):
            raise self._with_advice(
                DamagedCheckpointError(self.step, self._state, f"it has no arrays of {self.weights}")
            )
        return reader

    @property
    def arrays(self) -> dict[Place, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return shape and dtype of each array of the state, by path. Raises UserError if the checkpoint is damaged."""
        arrays: dict[Place, tuple[tuple[int, ...], np.dtype[Any]]] = self._reader.arrays
        return arrays

    def read(self, place: Place) -> np.ndarray[Any, Any]:
        """Return an array of the state. Raises UserError if it is damaged."""
        try:
            array: np.ndarray[Any, Any] = self._reader.read(place)
            return array
        except Exception as error:
            raise self._with_advice(unreadable(self.step, self._state, error)) from None

    @cached_property
    def parameters(self) -> dict[Place, Place]:
        """Return the place of each parameter in the state, by its path in the model. Frozen parameters have no average."""
        places = {place[1:]: place for place in self.arrays if place[0] == "params"}
        return places | {place[1:]: place for place in self.arrays if place[0] == self.weights}

    def described(self) -> dict[Place, tuple[tuple[int, ...], np.dtype[Any]]]:
        """Return shape and dtype of each parameter, by its path in the model."""
        return {path: self.arrays[place] for path, place in self.parameters.items()}

    def trees(self, convert: Callable[[np.ndarray[Any, Any]], Any]) -> tuple[Arrays, Arrays]:
        """Read the parameters, and the model's state: nested dictionaries of converted arrays.

        Raises UserError if one is damaged.
        """
        return self.params(lambda path, array: convert(array)), self.model_state(convert)

    def params(self, convert: Callable[[Place, np.ndarray[Any, Any]], Any]) -> Arrays:
        """Read the parameters one after another: nested dictionaries of `convert(path, array)`.

        Raises UserError if one is damaged.
        """
        converted = {path: convert(path, self.read(place)) for path, place in self.parameters.items()}
        params: Arrays = unflatten_dict(converted)
        return params

    def model_state(self, convert: Callable[[np.ndarray[Any, Any]], Any]) -> Arrays:
        """Read the model's state, as `params` reads the parameters; empty if it has none."""
        places = {place[1:]: place for place in self.arrays if place[0] == "model_state"}
        state: Arrays = unflatten_dict({path: convert(self.read(place)) for path, place in places.items()})
        return state

    def _with_advice(self, error: Exception) -> UserError:
        return UserError(f"{error}; `podrun checkpoints {self._workdir}` lists which are whole")


def job_of(meta: JobMeta, step: int, workdir: str, **sections: Any) -> Config:
    """Return the job that saved a checkpoint.

    Args:
        meta: the checkpoint's metadata.
        step: its step, for errors.
        workdir: the folder of the run's results, for errors.
        sections: sections of the job, as JSON, in place of its own.

    Raises:
        UserError: the job is of another version of podrun, with other keys.
    """
    try:
        return Config.model_validate({**meta["config"], **sections})
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"]))
        raise UserError(
            f"checkpoint {step} of {workdir} is of a job that this podrun does not know: {key}: {first['msg']}; take the "
            "version of podrun that has saved it"
        ) from None


def find_checkpoint(workdir: Path, step: Step) -> Path:
    """Return the folder of a checkpoint in a workdir. Raises UserError if there is none."""
    folder, paths = workdir / "checkpoints", _checkpoints(workdir)
    if step is None:
        return paths[max(paths)]
    if step == "best":
        ranking = _ranking(paths[max(paths)])
        if (best := best_step(paths, ranking)) is None:
            raise UserError(
                f"no checkpoint in {folder} has a validation {ranking.metric}, because none was saved in a step with an "
                f"evaluation; give one of {_listed(paths)}"
            )
        return paths[best]
    if step not in paths:
        raise UserError(f"{folder} has no checkpoint of step {step}; there are {_listed(paths)}")
    return paths[step]


def checkpoint_before(workdir: Path, step: int) -> Path:
    """Return the folder of the newest checkpoint of a step before `step`. Raises UserError if there is none."""
    paths = _checkpoints(workdir)
    before = [saved for saved in paths if saved < step]
    if not before:
        raise UserError(
            f"{workdir / 'checkpoints'} has no checkpoint before step {step}, from which it could be computed again; there "
            f"are {_listed(paths)}, so the first step that can be replayed is {min(paths) + 1}, if the run has done it; "
            "a smaller checkpoint.every and a larger checkpoint.keep leave more to the next run"
        )
    return paths[max(before)]


def checkpoint_of(workdir: Path, step: int) -> Path | None:
    """Return the folder of the checkpoint of a step; None if there is none."""
    path = workdir / "checkpoints" / str(step)
    return path if path.is_dir() else None


def _checkpoints(workdir: Path) -> dict[int, Path]:
    """Return the folders of a workdir's checkpoints by step. Raises UserError if there are none."""
    folder = workdir / "checkpoints"
    try:
        paths = {int(path.name): path for path in folder.iterdir() if re.fullmatch("[0-9]{1,18}", path.name)}
    except OSError as error:
        raise UserError(
            f"{folder} cannot be read: {error.strerror}; a workdir is the folder that a run writes to"
        ) from None
    if not paths:
        raise UserError(f"{folder} has no complete checkpoints; a workdir is the folder that a run writes to")
    return paths


def _ranking(checkpoint: Path) -> Ranking:
    """Return how the job that saved a checkpoint ranks evaluations; by the loss if an older version of podrun saved it."""
    try:
        return Ranking.parse(json.loads((checkpoint / METADATA).read_bytes())["config"]["eval"]["best"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return LOWEST_LOSS


def _listed(steps: Iterable[int]) -> str:
    ordered = sorted(steps)
    more = f"{len(ordered) - _SHOWN} more, " if len(ordered) > _SHOWN else ""
    return f"{more}{', '.join(map(str, ordered[-_SHOWN:]))}"


def parse_meta(meta: Any) -> JobMeta:
    """Return the metadata with its type.

    Raises UserError for the checkpoint of a user program, otherwise as `job_meta` does.
    """
    if isinstance(meta, dict) and "arrays" in meta and "config" not in meta:
        raise UserError(
            "the checkpoint is of a program with podrun.steps, and podrun does not know which part of its state is the "
            "model; open it with orbax (docs/checkpoints.md)"
        )
    return job_meta(meta)

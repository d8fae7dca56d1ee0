"""Save and restore arrays and JSON in numbered checkpoints of a folder. The only importer of orbax.

Asynchronous, atomic, one copy of the state. orbax refuses the host-local arrays of a multi-process pmap, so a state that is
the same everywhere is saved as numpy arrays, by process 0 alone: orbax then needs no barrier between processes, in which all
would wait forever for one whose disk is full. A state of which each process has a part is saved by all, as arrays over all
processes. On disk both are the same, so either is restored from either. Every process reads alone, without a barrier, so that
one that cannot read can say so (restore.py).
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as policy

from ..contract import UserError
from ..worker.workdir import check_folder, damaged_name
from .damage import DamagedCheckpointError, HostFaultError, is_host_fault, no_metadata, read_meta, unreadable

T = TypeVar("T")
Arrays = dict[str, Any]
"""Nested dictionaries of arrays."""

_STATE, _META, _METRICS = "state", "meta", "metrics"  # orbax's own name for the last
_METADATA = Path(_META, "metadata")
_LOSS = Path(_METRICS, "metrics")
_POLL = 0.02  # seconds
_AGAIN = 1.0  # seconds before a failed read is retried


class _Manager(ocp.CheckpointManager):
    """orbax's manager, which never asks JAX's preemption service: its own step numbers would move the agreed stop."""

    def reached_preemption(self, step: int) -> bool:
        return False


class CheckpointFolder:
    """The checkpoints in one folder."""

    def __init__(self, directory: Path, keep: int, keep_best: int = 0, in_parts: bool = False) -> None:
        """Open the directory.

        Args:
            directory: the folder of the checkpoints, which is made.
            keep: number of the newest checkpoints to keep.
            keep_best: number of checkpoints with the lowest loss to keep besides.
            in_parts: every process saves its part of the state; else process 0 saves all of it.

        Raises:
            UserError: it cannot be made.
        """
        self.directory = directory
        self._keep, self._keep_best = keep, keep_best
        self._in_parts = in_parts
        self._primary = jax.process_index() == 0
        self._saves = self._primary or in_parts
        try:
            check_folder(directory)
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(
                f"checkpoints cannot be kept in {directory}: {error.strerror}; move away what is there, or choose another "
                "workdir with --workdir DIR"
            ) from None
        if self._primary:  # clears away what a killed save left behind
            for leftover in directory.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(leftover, ignore_errors=True)
        self._opened: _Manager | None = None
        self._saving: int | None = None

    def steps(self) -> list[int]:
        """Return the steps of all paths that are named like a checkpoint, the newest first."""
        names = (path.name for path in self.directory.iterdir() if re.fullmatch("[0-9]+", path.name))
        return sorted({int(name) for name in names}, reverse=True)

    def latest(self) -> int | None:
        """Return the newest checkpoint's step."""
        return next(iter(self.steps()), None)

    def set_aside(self, step: int) -> Path:
        """Rename a damaged checkpoint, so that it is kept but not in the way of new ones; return its new path.

        Called by process 0. Raises UserError if it cannot be renamed.
        """
        before = self.path(step)
        return _rename(before, damaged_name(before.with_name(str(step))))

    def set_losses_aside(self) -> None:
        """Rename files of losses that cannot be read, because orbax reads those of all checkpoints. Called by process 0."""
        for path in self.directory.glob(f"*/{_LOSS}"):
            try:
                json.loads(path.read_bytes())["loss"]
            except (OSError, ValueError, KeyError, TypeError) as error:
                if is_host_fault(error):
                    raise
                _rename(path, path.with_name("metrics.damaged"))

    def path(self, step: int) -> Path:
        """Return the folder of a checkpoint."""
        exact = self.directory / str(step)
        return exact if os.path.lexists(exact) else next(self.directory.glob(f"0*{step}"), exact)

    @property
    def _manager(self) -> _Manager:
        """Make orbax's manager at the first save: it reads all checkpoints that exist, and fails on damaged ones."""
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _open(self) -> _Manager:
        together = ocp.options.MultiprocessingOptions(primary_host=0) if self._in_parts else _alone()
        best = policy.BestN(get_metric_fn=_quality, n=self._keep_best)
        policies = [policy.LatestN(self._keep), *([best] if self._keep_best else [])]
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy.AnyPreservationPolicy(policies),
            best_fn=_quality,  # without it the losses are not written, and a resumed run would not know the best
            create=False,
            save_root_metadata=False,
            multiprocessing_options=together,
        )
        return _Manager(self.directory, options=options, item_names=(_STATE, _META))

    def write(self, step: int, state: Arrays, meta: dict[str, Any], loss: float | None = None) -> None:
        """Start to save, after waiting for an earlier save. `loss` is the validation loss at this step, if known.

        Raises whatever made the earlier save fail.
        """
        if not self._saves:
            return
        started = self._manager.save(
            step,
            args=ocp.args.Composite(**{_STATE: ocp.args.StandardSave(state), _META: ocp.args.JsonSave(meta)}),
            metrics={"loss": loss},
        )
        if not started:
            raise RuntimeError(
                f"orbax did not save step {step}: {self.directory} has a checkpoint of step {self.latest()}"
            )
        self._saving = step

    def completed(self, wait: bool = False) -> int | None:
        """Return the step of a save that has completed since the last call. Raises whatever made it fail."""
        if self._saving is None:
            return None
        step = self._saving
        try:
            while self._manager.is_saving_in_progress():
                if self._in_parts:
                    # A process that fails must not wait for the others, which wait for its part. Otherwise do not ask:
                    # an error is raised once, and if orbax's own thread misses it, it removes old checkpoints.
                    self._manager.check_for_errors()
                if not wait:
                    return None
                time.sleep(_POLL)
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except BaseException:
            self._saving = None
            raise
        self._saving = None
        return step

    def read(self, step: int, check: Callable[[Any], None], use: Callable[[dict[str, Any]], T]) -> T:
        """Return `use(meta)` for the checkpoint's meta, tried again once if this host cannot read a file now.

        Raises DamagedCheckpointError if `check` (see `read_meta`) refuses meta, HostFaultError, and what `use` raises.
        """
        try:
            return use(read_meta(step, self.path(step), _METADATA, check))
        except HostFaultError:
            time.sleep(_AGAIN)
            return use(read_meta(step, self.path(step), _METADATA, check))

    def no_metadata(self, step: int, error: Exception) -> DamagedCheckpointError:
        """Return what an error in using the meta of a checkpoint means."""
        return DamagedCheckpointError(step, self.path(step) / _METADATA, no_metadata(error))

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def read_state(self, step: int, template: Arrays) -> Arrays:
        """Return the state as arrays like those of `template`: numpy's, or jax's with their shardings.

        Raises DamagedCheckpointError, or HostFaultError if only this host cannot read it now.
        """
        folder = self.path(step) / _STATE
        try:
            next(folder.iterdir(), None)
        except (FileNotFoundError, NotADirectoryError):
            raise DamagedCheckpointError(step, folder, "No such folder") from None
        except OSError as error:
            raise unreadable(step, folder, error) from None
        alone = _alone()
        handler = ocp.StandardCheckpointHandler(multiprocessing_options=alone)
        reader = ocp.Checkpointer(handler, multiprocessing_options=alone)
        try:
            state: Arrays = reader.restore(folder, args=ocp.args.StandardRestore(template))
            return state
        except (MemoryError, jax.errors.JaxRuntimeError):  # not the checkpoint's fault
            raise
        except Exception as error:
            raise unreadable(step, folder, error) from error
        finally:
            reader.close()


def _rename(before: Path, after: Path) -> Path:
    try:
        return before.rename(after)
    except OSError as error:
        raise UserError(
            f"{before} is damaged and in the way of new checkpoints, but cannot be renamed: {error.strerror}; "
            "move it away, or choose another --workdir"
        ) from None


def _alone() -> ocp.options.MultiprocessingOptions:
    """Return orbax's options for a process that waits for no other one."""
    me = jax.process_index()
    return ocp.options.MultiprocessingOptions(primary_host=me, active_processes={me})


def _quality(metrics: dict[str, float | None]) -> float:
    """Return a score of which orbax keeps the highest: the lowest loss is best, an unknown one worst."""
    loss = metrics["loss"]
    return -loss if loss is not None and math.isfinite(loss) else -math.inf

"""Save and restore checkpoints through orbax: asynchronous, atomic, one copy of the state. The only importer of orbax.

A checkpoint holds the state, the resolved config, the position in the data and the data's fingerprint. orbax refuses the
host-local arrays of a multi-process pmap, so a state that is the same everywhere is saved as numpy arrays, by process 0
alone: orbax then needs no barrier between processes, in which all would wait forever for one whose disk is full. A state of
which each process has a part is saved by all, as arrays over all processes. On disk both are the same, so either is restored
from either. Every process reads alone, without a barrier, so that one that cannot read can say so (restore.py).
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as policy

from ..config import Checkpoint, Config, saved_config
from ..contract import UserError
from ..state import StateDict
from ..worker.workdir import check_folder, damaged_name
from .damage import DamagedCheckpointError, HostFaultError, is_host_fault, no_metadata, read_meta, unreadable
from .same_job import changes, obstacles, refusal, shapes_of

_STATE, _META, _METRICS = "state", "meta", "metrics"  # orbax's own name for the last
_METADATA = Path(_META, "metadata")
_LOSS = Path(_METRICS, "metrics")
_POLL = 0.02  # seconds
_AGAIN = 1.0  # seconds before a failed read is retried


class _Manager(ocp.CheckpointManager):
    """orbax's manager, which never asks JAX's preemption service: its own step numbers would move the agreed stop."""

    def reached_preemption(self, step: int) -> bool:
        return False


@dataclass(frozen=True)
class Restored:
    """The contents of a checkpoint."""

    step: int
    state: StateDict
    position: int
    changes: list[str]
    """`key: before -> after` for every value in which this job differs from that of the checkpoint."""
    epoch_means: dict[str, Any] | None
    """The value of `EpochMeans.saved` at the save, if the job counts epochs."""


class Checkpoints:
    """The checkpoints of one workdir."""

    def __init__(self, directory: Path, section: Checkpoint, in_parts: bool = False) -> None:
        """Open the directory. `in_parts`: every process saves its part of the state; else process 0 saves all of it."""
        self.directory = directory
        self._section = section
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
        section = self._section
        best = policy.BestN(get_metric_fn=_quality, n=section.keep_best)
        policies = [policy.LatestN(section.keep), *([best] if section.keep_best else [])]
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy.AnyPreservationPolicy(policies),
            best_fn=_quality,  # without it the losses are not written, and a resumed run would not know the best
            create=False,
            save_root_metadata=False,
            multiprocessing_options=together,
        )
        return _Manager(self.directory, options=options, item_names=(_STATE, _META))

    def save(
        self,
        step: int,
        state: StateDict,
        position: int,
        config: Config,
        fingerprint: bytes,
        loss: float | None,
        epoch_means: dict[str, Any] | None = None,
    ) -> None:
        """Start to save, after waiting for an earlier save. `loss` is the validation loss at this step, if known.

        Raises whatever made the earlier save fail.
        """
        if not self._saves:
            return
        meta = {
            "config": saved_config(config),
            "position": position,
            "fingerprint": fingerprint.hex(),
            "shapes": shapes_of(state),
            "epoch_means": epoch_means,
        }
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

    def restore(self, step: int, template: StateDict, config: Config, fingerprint: bytes) -> Restored:
        """Read a checkpoint into arrays as those of `template`: numpy's, or jax's with their shardings.

        Raises UserError if it is of another model, optimizer or data, DamagedCheckpointError if it is damaged, and
        HostFaultError if this host has tried twice and cannot read it now.
        """
        try:
            return self._restore(step, template, config, fingerprint)
        except HostFaultError:
            time.sleep(_AGAIN)
            return self._restore(step, template, config, fingerprint)

    def _restore(self, step: int, template: StateDict, config: Config, fingerprint: bytes) -> Restored:
        meta = read_meta(step, self.path(step), _METADATA)
        try:
            rows = obstacles(meta, config, fingerprint, shapes_of(template))
            changed = changes(meta["config"], config)
        except (KeyError, TypeError, AttributeError, StopIteration, IndexError) as error:
            raise DamagedCheckpointError(step, self.path(step) / _METADATA, no_metadata(error)) from None
        if rows:
            raise UserError(refusal(self.directory.parent, step, rows))
        return Restored(step, self._read_state(step, template), meta["position"], changed, meta.get("epoch_means"))

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()

    def _read_state(self, step: int, template: StateDict) -> StateDict:
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
            state: StateDict = reader.restore(folder, args=ocp.args.StandardRestore(template))
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

"""Save and restore arrays and JSON with orbax. The only importer of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint._src.multihost import multihost
from orbax.checkpoint.checkpoint_managers import preservation_policy as policy

from .names import META, STATE, Arrays


class Manager(ocp.CheckpointManager):
    """orbax's manager, which never asks JAX's preemption service: its own step numbers would move the agreed stop."""

    _lost_error: BaseException | None = None

    def reached_preemption(self, step: int) -> bool:
        return False

    def _wait_for_checkpointers(self) -> None:
        """Keep the error of a save. orbax raises it once; if its own thread gets it, that waits for the other processes."""
        try:
            super()._wait_for_checkpointers()
        except BaseException as error:
            self._lost_error = error
            raise

    def check_for_errors(self) -> None:
        error, self._lost_error = self._lost_error, None
        if error is not None:
            raise error
        super().check_for_errors()

    def start(self, step: int, state: Arrays, meta: dict[str, Any], loss: float | None) -> bool:
        """Start to save, after waiting for an earlier save. Return False if there is a checkpoint of this step."""
        args = {STATE: ocp.args.PyTreeSave(state), META: ocp.args.JsonSave(meta)}
        return bool(self.save(step, args=ocp.args.Composite(**args), metrics={"loss": loss}))


def open_manager(directory: Path, in_parts: bool) -> Manager:
    """Open the manager of a folder of checkpoints. It reads all losses there, and fails on damaged ones."""
    together = ocp.options.MultiprocessingOptions(primary_host=0) if in_parts else _alone()
    options = ocp.CheckpointManagerOptions(
        preservation_policy=policy.PreserveAll(),  # podrun removes old ones, after a save is complete on all processes
        best_fn=_quality,  # without it the losses are not written, and a resumed run would not know the best
        create=False,
        save_root_metadata=False,
        multiprocessing_options=together,
    )
    # zstd makes a trained state a tenth smaller, but takes up to as much memory again as the state, and longer to write
    # (docs/checkpoints.md).
    handler = ocp.PyTreeCheckpointHandler(use_compression=False, multiprocessing_options=together)
    meta = ocp.JsonCheckpointHandler(multiprocessing_options=together)
    return Manager(directory, options=options, item_handlers={STATE: handler, META: meta})


def read_arrays(folder: Path, template: Arrays) -> Arrays:
    """Return the state in `folder` as arrays like those of `template`. This process waits for no other one."""
    alone = _alone()
    reader = ocp.Checkpointer(
        ocp.StandardCheckpointHandler(multiprocessing_options=alone), multiprocessing_options=alone
    )
    try:
        state: Arrays = reader.restore(folder, args=ocp.args.StandardRestore(template))
        return state
    finally:
        reader.close()


class ArrayReader:
    """Read the arrays of a state one by one, without a template. Raises whatever orbax raises for a damaged one."""

    def __init__(self, folder: Path) -> None:
        """Open the state in `folder`, and read names, shapes and types of its arrays."""
        alone = _alone()
        handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
        self._folder = folder
        self._reader = ocp.Checkpointer(handler, multiprocessing_options=alone)
        leaves = jax.tree.leaves_with_path(self._reader.metadata(folder).item_metadata.tree)
        self.arrays = {
            tuple(jax.tree_util.keystr((key,), simple=True) for key in path): (tuple(leaf.shape), np.dtype(leaf.dtype))
            for path, leaf in leaves
        }

    def read(self, place: tuple[str, ...]) -> np.ndarray[Any, Any]:
        """Return one array."""
        shape, dtype = self.arrays[place]
        item: Any = np.empty(shape, dtype)
        args: Any = ocp.RestoreArgs(restore_type=np.ndarray)
        for key in reversed(place):
            item, args = {key: item}, {key: args}
        request = ocp.args.PyTreeRestore(item=item, restore_args=args, partial_restore=True)
        value: Any = self._reader.restore(self._folder, args=request)
        for key in place:
            value = value[key]
        return np.asarray(value)


def _alone() -> ocp.options.MultiprocessingOptions:
    """Return orbax's options for a process that waits for no other one."""
    me = multihost.process_index()
    return ocp.options.MultiprocessingOptions(primary_host=me, active_processes={me})


def lead() -> None:
    """Let orbax take this process for process 0, from now on: no other one writes numpy's arrays."""
    multihost.process_index = lambda: 0


def _quality(metrics: dict[str, float | None]) -> float:
    """Return a score of which orbax keeps the highest: the lowest loss is best, an unknown one worst."""
    loss = metrics["loss"]
    return -loss if loss is not None and math.isfinite(loss) else -math.inf

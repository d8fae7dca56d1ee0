"""Save and restore arrays and JSON with orbax. The only importer of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts
from orbax.checkpoint._src.multihost import multihost
from orbax.checkpoint.checkpoint_managers import preservation_policy as policy

from .names import META, STATE, Arrays
from .placement import own_blocks, placed

_GROUP = 16 << 20
"""Bytes of arrays that are read at once. A larger array is read alone."""
_FILE = 64 << 20
"""Bytes of a file of arrays, about: several are sent to a bucket at once, and of a damaged one little is lost."""


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
        args = {STATE: ocp.args.PyTreeSave(state, ocdbt_target_data_file_size=_FILE), META: ocp.args.JsonSave(meta)}
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
    numpy_arrays = _Unflushed(deepcopy_host_arrays=False)  # save.py says when they may change
    handler = ocp.PyTreeCheckpointHandler(
        use_compression=False, multiprocessing_options=together, type_handler_registry=_registry(numpy_arrays)
    )
    meta = ocp.JsonCheckpointHandler(multiprocessing_options=together)
    return Manager(directory, options=options, item_handlers={STATE: handler, META: meta})


class _Unflushed(ocp.type_handlers.NumpyHandler):
    """Write arrays without waiting for the disk, which save.py does once training goes on."""

    async def serialize(self, values: Sequence[Any], infos: Sequence[Any], args: Sequence[Any] | None = None) -> Any:
        context = ts.Context({"file_io_sync": False}, parent=infos[0].ts_context)
        return await super().serialize(values, [info.replace(ts_context=context) for info in infos], args)


def read_arrays(folder: Path, template: Arrays) -> Arrays:
    """Return the state in `folder` as arrays like those of `template`: numpy's, or jax's with their shardings.

    Each is on its devices before the next ones are read, so that the state is never in memory twice. This process waits for
    no other one, and reads only what its devices need.
    """
    alone = _alone()
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone, type_handler_registry=_registry(_Placing()))
    reader = ocp.Checkpointer(handler, multiprocessing_options=alone)
    args = jax.tree.map(lambda form: _Form(restore_type=np.ndarray, dtype=form.dtype, form=form), template)
    try:
        state: Arrays = reader.restore(folder, args=ocp.args.PyTreeRestore(item=template, restore_args=args))
        return state
    finally:
        reader.close()


@dataclass
class _Form(ocp.RestoreArgs):
    """What one array is restored into."""

    form: Any = None


class _Placing(ocp.type_handlers.NumpyHandler):
    """Read arrays a few at a time, and put each on its devices as soon as it has been read."""

    async def deserialize(self, infos: Sequence[Any], args: Sequence[Any] | None = None) -> Sequence[Any]:
        values: list[Any] = []
        for group in _groups(args or ()):
            reads = [self._read(infos[number], (args or ())[number].form) for number in group]
            values += await asyncio.gather(*reads)
        return values

    async def _read(self, info: Any, form: Any) -> Any:
        spec = ocp.type_handlers.get_json_tspec_read(info, use_ocdbt=info.is_ocdbt_checkpoint)
        stored = await ts.open(ts.Spec(spec), open=True, context=info.ts_context)
        if stored.shape != form.shape:
            raise ValueError(f"{info.name} has the shape {stored.shape}, expected {form.shape}")
        if stored.dtype.numpy_dtype != form.dtype:
            stored = ts.cast(stored, form.dtype)
        return placed(form, {key: await stored[block].read() for key, block in own_blocks(form).items()})


def _groups(args: Sequence[Any]) -> Iterator[list[int]]:
    group: list[int] = []
    size = 0
    for number, arg in enumerate(args):
        nbytes = arg.form.size * np.dtype(arg.form.dtype).itemsize
        if group and size + nbytes > _GROUP:
            yield group
            group, size = [], 0
        group.append(number)
        size += nbytes
    yield group


def _registry(numpy_arrays: ocp.type_handlers.NumpyHandler) -> Any:
    """Return orbax's handlers of all types, but that one for numpy's arrays."""
    kinds = (int, float, bytes, np.number, jax.Array, str)
    others = [(kind, ocp.type_handlers.get_type_handler(kind)) for kind in kinds]
    return ocp.type_handlers.create_type_handler_registry((np.ndarray, numpy_arrays), *others)


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

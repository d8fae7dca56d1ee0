"""Save and restore arrays and JSON with orbax. The only module that imports orbax."""

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
"""Bytes of arrays that are read at a time. A larger array is read by itself."""
_FILE = 64 << 20
"""Approximate size of a data file, in bytes: small enough that several can be uploaded concurrently."""


class Manager(ocp.CheckpointManager):
    """orbax's manager, without its own calls of JAX's preemption service, which would shift the step of a preemption."""

    _lost_error: BaseException | None = None

    def reached_preemption(self, step: int) -> bool:
        return False

    def _wait_for_checkpointers(self) -> None:
        """Keep the error of a save for `check_for_errors`: orbax raises it only once, possibly in its own thread."""
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
        """Start a save, after waiting for an earlier save. Return False if a checkpoint of this step exists."""
        args = {STATE: ocp.args.PyTreeSave(state, ocdbt_target_data_file_size=_FILE), META: ocp.args.JsonSave(meta)}
        return bool(self.save(step, args=ocp.args.Composite(**args), metrics={"loss": loss}))


def open_manager(directory: Path, in_parts: bool) -> Manager:
    """Open orbax's manager of a folder of checkpoints. It reads the losses of all checkpoints and fails on damaged ones."""
    together = ocp.options.MultiprocessingOptions(primary_host=0) if in_parts else _alone()
    options = ocp.CheckpointManagerOptions(
        preservation_policy=policy.PreserveAll(),  # retention.py removes old ones when a save is complete on all processes
        best_fn=_quality,  # without it orbax does not write the losses, which retention.py needs
        create=False,
        save_root_metadata=False,
        multiprocessing_options=together,
    )
    # No compression: zstd saves a tenth of a trained state's size, but may need as much memory again as the state, and more
    # time (docs/checkpoints.md).
    numpy_arrays = _Unflushed(deepcopy_host_arrays=False)  # save.py says when they may change
    handler = ocp.PyTreeCheckpointHandler(
        use_compression=False, multiprocessing_options=together, type_handler_registry=_registry(numpy_arrays)
    )
    meta = ocp.JsonCheckpointHandler(multiprocessing_options=together)
    return Manager(directory, options=options, item_handlers={STATE: handler, META: meta})


class _Unflushed(ocp.type_handlers.NumpyHandler):
    """Write arrays without flushing them to the disk; save.py flushes when training continues."""

    async def serialize(self, values: Sequence[Any], infos: Sequence[Any], args: Sequence[Any] | None = None) -> Any:
        context = ts.Context({"file_io_sync": False}, parent=infos[0].ts_context)
        return await super().serialize(values, [info.replace(ts_context=context) for info in infos], args)


def read_arrays(folder: Path, template: Arrays) -> Arrays:
    """Read the state in `folder` in the form of `template`: numpy arrays, or JAX arrays with its shardings.

    Arrays are put on their devices before the next ones are read, so that the state is never in memory twice. This process
    reads only what its devices need, and does not wait for other processes.
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
    """orbax's arguments to restore one array, with its entry of the template."""

    form: Any = None


class _Placing(ocp.type_handlers.NumpyHandler):
    """Read arrays a few at a time, and put each on its devices as soon as it is read."""

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
    """Return orbax's registry of type handlers, with `numpy_arrays` as the handler of numpy arrays."""
    kinds = (int, float, bytes, np.number, jax.Array, str)
    others = [(kind, ocp.type_handlers.get_type_handler(kind)) for kind in kinds]
    return ocp.type_handlers.create_type_handler_registry((np.ndarray, numpy_arrays), *others)


class ArrayReader:
    """Read the arrays of a state one by one, without a template. Raises orbax's errors for damaged files."""

    def __init__(self, folder: Path) -> None:
        """Open the state in `folder`, and read the names, shapes and dtypes of its arrays."""
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
        """Read the array at `place`, its keys in the state's tree."""
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
    """Return orbax's options for a process that works by itself, without barriers."""
    me = multihost.process_index()
    return ocp.options.MultiprocessingOptions(primary_host=me, active_processes={me})


def lead() -> None:
    """Make orbax take this process for process 0 from now on, because only process 0 writes numpy arrays."""
    multihost.process_index = lambda: 0


def _quality(metrics: dict[str, float | None]) -> float:
    """Return orbax's score of a checkpoint, higher is better: the negative loss, or -inf if it is unknown."""
    loss = metrics["loss"]
    return -loss if loss is not None and math.isfinite(loss) else -math.inf

"""Save and restore arrays and JSON with orbax. The only module that imports orbax."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore as ts

from ..array_names import Arrays, Place
from ..events import Metrics
from .names import FROZEN, META, METRICS, STATE
from .placement import own_blocks, placed

_GROUP = 16 << 20
"""Bytes of arrays that are read at a time. A larger array is read by itself."""
_FILE = 64 << 20
"""Approximate size of a data file, in bytes: small enough that several can be uploaded concurrently."""


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for a log entry of orbax, with a traceback, about an error that it raises as well."""
    return "_SignalingThread.run() raised" not in str(record.msg)


class CheckpointWriter:
    """Writes checkpoints in the background, one at a time. A checkpoint gets its name when it is complete."""

    def __init__(self, in_parts: bool) -> None:
        """Make orbax's handlers of a checkpoint.

        `in_parts`: each process writes its part; otherwise this process writes everything.
        """
        together = ocp.options.MultiprocessingOptions(primary_host=0) if in_parts else _alone()
        # No compression: zstd saves a tenth of a trained state's size, but may need as much memory again as the state, and
        # more time (docs/checkpoints.md).
        leads = not in_parts or jax.process_index() == 0
        how: dict[str, Any] = {
            "use_compression": False,
            "multiprocessing_options": together,
            "type_handler_registry": _registry(_Writing(leads)),
        }
        handler = ocp.CompositeCheckpointHandler(
            composite_options=ocp.CompositeOptions(multiprocessing_options=together),
            **{
                STATE: ocp.PyTreeCheckpointHandler(**how),
                FROZEN: _Frozen(leads, **how),
                META: ocp.JsonCheckpointHandler(multiprocessing_options=together),
                METRICS: ocp.JsonCheckpointHandler(METRICS, multiprocessing_options=together),
            },
        )
        self._checkpointer = ocp.AsyncCheckpointer(handler, multiprocessing_options=together)
        logging.getLogger("absl").addFilter(_is_news)

    def start(
        self,
        folder: Path,
        state: Arrays,
        meta: Mapping[str, object],
        metrics: Metrics,
        frozen: Arrays | None = None,
        links: Path | None = None,
    ) -> None:
        """Start to write a checkpoint. Raises ValueError if it exists, and the errors of orbax.

        Args:
            folder: the checkpoint's folder.
            state: arrays to write.
            meta: metadata, as JSON.
            metrics: metrics of the evaluation at this step, by name.
            frozen: arrays to write to the folder of frozen parameters.
            links: in place of `frozen`: a folder with hard links to an earlier checkpoint's files, which are moved there.
        """
        items: dict[str, ocp.args.CheckpointArgs] = {
            STATE: ocp.args.PyTreeSave(state, ocdbt_target_data_file_size=_FILE),
            META: ocp.args.JsonSave(dict(meta)),
            METRICS: ocp.args.JsonSave({"loss": None, **metrics}),
        }
        if frozen or links is not None:
            items[FROZEN] = _FrozenSave(frozen, ocdbt_target_data_file_size=_FILE, links=links)
        self._checkpointer.save(folder, args=ocp.args.Composite(**items))

    def wait(self) -> None:
        """Wait until the checkpoint is complete on all processes that write it.

        Raises an error of this process's part at once, without waiting for the other processes.
        """
        self._checkpointer.wait_until_finished()

    def close(self) -> None:
        self._checkpointer.close()


class _Frozen(ocp.PyTreeCheckpointHandler):
    """Writes frozen parameters, or takes hard links to their files in an earlier checkpoint."""

    def __init__(self, leads: bool, **options: Any) -> None:
        """Take the options of orbax's handler. `leads`: whether this process moves the links; exactly one does."""
        super().__init__(**options)
        self._leads = leads
        self._links = False

    async def async_save(self, directory: Any, item: Any = None, save_args: Any = None, args: Any = None) -> Any:
        """Start to write the arrays or to move the links, and return the futures."""
        self._links = args.links is not None
        if not self._links:
            return await super().async_save(directory, item, save_args, args)
        if not self._leads:
            return []
        return [ocp.future.CommitFutureAwaitingContractedSignals(_move(args.links, Path(directory)), name="links")]

    def finalize(self, directory: Any) -> None:
        if not self._links:  # otherwise the files are complete already
            super().finalize(directory)


@ocp.args.register_with_handler(_Frozen, for_save=True, for_restore=True)
@dataclass
class _FrozenSave(ocp.args.PyTreeSave):
    links: Path | None = None
    """A folder with hard links to an earlier checkpoint's files, instead of arrays."""


async def _move(links: Path, directory: Path) -> None:
    for path in links.iterdir():
        path.rename(directory / path.name)
    links.rmdir()


class _Writing(ocp.type_handlers.NumpyHandler):
    """Writes numpy arrays without flushing them to the disk; save.py flushes when training continues.

    orbax's own handler writes on process 0 only, but another process may be the one that saves.
    """

    def __init__(self, writes: bool) -> None:
        """`writes`: whether this process writes the arrays; exactly one process does."""
        super().__init__()
        self._writes = writes

    async def serialize(
        self, values: Sequence[Any], infos: Sequence[Any], args: Sequence[Any] | None = None
    ) -> list[Any]:
        """Start to write the arrays `values`, and return the futures.

        The arrays are not copied; save.py says when they may change.
        """
        if not self._writes:
            return []
        write = self._write(values, infos, args or [ocp.SaveArgs()] * len(values))
        return [ocp.future.CommitFutureAwaitingContractedSignals(write, name="numpy's arrays")]

    async def _write(self, values: Sequence[Any], infos: Sequence[Any], args: Sequence[Any]) -> None:
        context = ts.Context({"file_io_sync": False}, parent=infos[0].ts_context)
        writes = []
        for value, info, arg in zip(values, infos, args, strict=True):
            await info.await_path_creation()
            spec = ocp.type_handlers.get_json_tspec_write(
                info,
                use_ocdbt=info.is_ocdbt_checkpoint,
                global_shape=value.shape,
                local_shape=value.shape,
                dtype=value.dtype,
                process_index=0,
                arg=arg,
            )
            writes.append(_write_array(value, ts.Spec(spec), context))
        await asyncio.gather(*writes)


async def _write_array(value: Any, spec: ts.Spec, context: ts.Context) -> None:
    array = await ts.open(spec, create=True, open=True, context=context)
    await array.write(value, can_reference_source_data_indefinitely=True)


def read_arrays(folder: Path, template: Arrays, is_part: bool = False) -> Arrays:
    """Read the arrays in `folder`; with `is_part` only those of the template.

    The template gives the form of each array: a numpy array, or a JAX array with its sharding.

    Arrays are put on their devices before the next ones are read, so that the state is never in memory twice. This process
    reads only what its devices need, and does not wait for other processes.
    """
    alone = _alone()
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone, type_handler_registry=_registry(_Placing()))
    reader = ocp.Checkpointer(handler, multiprocessing_options=alone)
    args = jax.tree.map(lambda form: _Form(restore_type=np.ndarray, dtype=form.dtype, form=form), template)
    try:
        request = ocp.args.PyTreeRestore(item=template, restore_args=args, partial_restore=is_part)
        state: Arrays = reader.restore(folder, args=request)
        return state
    finally:
        reader.close()


def arrays_in(folder: Path) -> dict[Place, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return shape and dtype of each array in `folder`, by path."""
    handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=_alone())
    leaves = jax.tree.leaves_with_path(handler.metadata(folder).tree)
    return {
        tuple(jax.tree_util.keystr((key,), simple=True) for key in path): (tuple(leaf.shape), np.dtype(leaf.dtype))
        for path, leaf in leaves
    }


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
    """Read the arrays of a checkpoint one by one, without a template. Raises orbax's errors for damaged files."""

    def __init__(self, checkpoint: Path) -> None:
        """Read the names, shapes and dtypes of the checkpoint's arrays."""
        folders = [checkpoint / STATE, *checkpoint.glob(FROZEN)]
        inside = {folder: arrays_in(folder) for folder in folders}
        self._folders = {place: folder for folder, arrays in inside.items() for place in arrays}
        alone = _alone()
        handler = ocp.PyTreeCheckpointHandler(multiprocessing_options=alone)
        self._reader = ocp.Checkpointer(handler, multiprocessing_options=alone)
        self.arrays = {place: form for arrays in inside.values() for place, form in arrays.items()}

    def read(self, place: tuple[str, ...]) -> np.ndarray[Any, Any]:
        """Read the array at `place`, its keys in the state's tree."""
        shape, dtype = self.arrays[place]
        item: Any = np.empty(shape, dtype)
        args: Any = ocp.RestoreArgs(restore_type=np.ndarray)
        for key in reversed(place):
            item, args = {key: item}, {key: args}
        request = ocp.args.PyTreeRestore(item=item, restore_args=args, partial_restore=True)
        value: Any = self._reader.restore(self._folders[place], args=request)
        for key in place:
            value = value[key]
        return np.asarray(value)


def _alone() -> ocp.options.MultiprocessingOptions:
    """Return orbax's options for a process that works by itself, without barriers."""
    me = jax.process_index()
    return ocp.options.MultiprocessingOptions(primary_host=me, active_processes={me})

"""Broadcast arrays from process 0 to all processes, and gather arrays that are divided over processes on process 0.

Bytes are sent in pieces of a fixed size, whatever the sizes of the arrays. So neither side needs more memory than for the
arrays and one piece, and thousands of small arrays take few messages. All processes must make the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax
import numpy as np

from ..array_names import Arrays
from ..distributed import as_numpy
from .messages import Bytes, all_gather, from_process_zero
from .placement import Block, is_divided, own_blocks, placed

PIECE = 8 << 20
"""Bytes per message, over all processes. CPUs take several times as long for larger pieces, as each is newly allocated."""


def broadcast_arrays(arrays: Arrays | None, template: Arrays, on_piece: Callable[[], None]) -> Arrays:
    """Return process 0's arrays on every process, in the forms that `template` gives.

    Args:
        arrays: on process 0, the arrays in the form of `whole_template(template)`; they are removed from this tree, so that
            each can be freed once it is sent. None on the others.
        template: the form of each array: a numpy array, or a `jax.ShapeDtypeStruct` with its sharding.
        on_piece: called after each piece.
    """
    forms, structure = jax.tree.flatten(template)
    total = sum(form.size * np.dtype(form.dtype).itemsize for form in forms)
    size = _piece_size(total, PIECE)
    results: list[Any] = []
    if arrays is not None:
        whole = jax.tree.leaves(arrays)
        arrays.clear()
        source = _cut(_sent(whole, forms, results), size)
        for _ in range(0, total, size):
            from_process_zero(next(source))
            on_piece()
        next(source)  # finishes the last array, which has been sent
    else:
        sink = _filled(_received(forms, results))
        next(sink)
        nothing = np.zeros(size, np.uint8)
        for _ in range(0, total, size):
            sink.send(from_process_zero(nothing))
            on_piece()
    state: Arrays = jax.tree.unflatten(structure, results)
    return state


def gather_whole(arrays: Arrays, on_piece: Callable[[], None] = lambda: None) -> Arrays | None:
    """Gather all arrays on process 0, as numpy arrays. Returns None on the other processes."""
    leaves, structure = jax.tree.flatten(arrays)
    me, count = jax.process_index(), jax.process_count()
    divided = [leaf for leaf in leaves if _is_global(leaf)]
    blocks = [_blocks(leaf) for leaf in divided]
    totals = [
        sum(_size(leaf, block) for leaf, owned in zip(divided, blocks, strict=True) for block in owned.get(process, ()))
        for process in range(count)
    ]
    size = _piece_size(max(totals), PIECE // count)
    source = _cut(
        (_bytes(part) for leaf, owned in zip(divided, blocks, strict=True) for part in _mine(leaf, owned)), size
    )
    whole = [np.empty(leaf.shape, leaf.dtype) for leaf in divided] if me == 0 else []
    sinks = [_filled(_joined(whole, blocks, process)) for process in range(count)] if me == 0 else []
    for sink in sinks:
        next(sink)
    for _ in range(0, max(totals), size):
        pieces = all_gather(next(source))
        for sink, piece in zip(sinks, pieces, strict=False):
            sink.send(piece)
        on_piece()
    if me != 0:
        return None
    gathered = iter(whole)
    # The other arrays are copied, because training may change them while they are written.
    state: Arrays = jax.tree.unflatten(structure, [next(gathered) if _is_global(x) else np.array(x) for x in leaves])
    return state


def whole_template(template: Arrays) -> Arrays:
    """Return the template with which process 0 reads the arrays for `broadcast_arrays`: divided arrays are whole."""
    arrays: Arrays = jax.tree.map(lambda x: np.empty(x.shape, x.dtype) if is_divided(x) else x, template)
    return arrays


# --- bytes and pieces ---


def _cut(views: Iterator[Bytes], size: int) -> Iterator[Bytes]:
    """Yield the bytes of all `views` in pieces of `size`; after the last one, yield arbitrary pieces forever."""
    piece, at = np.zeros(size, np.uint8), 0
    for view in views:
        start = 0
        while start < view.size:
            if at == size:
                yield piece
                at = 0
            n = min(view.size - start, size - at)
            piece[at : at + n] = view[start : start + n]
            start, at = start + n, at + n
    while True:
        yield piece


def _filled(views: Iterator[Bytes]) -> Generator[None, Bytes, None]:
    """Fill `views` one after another with the bytes of pieces that the caller sends to this generator."""
    piece, at = np.zeros(0, np.uint8), 0
    for view in views:
        start = 0
        while start < view.size:
            if at == piece.size:
                piece, at = (yield), 0
            n = min(view.size - start, piece.size - at)
            view[start : start + n] = piece[at : at + n]
            start, at = start + n, at + n
    while True:
        yield


def _bytes(array: np.ndarray) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _piece_size(total: int, limit: int) -> int:
    """Return the size of a piece in bytes: a multiple of 4, because pieces are summed as uint32."""
    return max(4, -(-min(total, limit) // 4) * 4)


# --- arrays ---


def _sent(whole: list[np.ndarray], forms: list[Any], results: list[Any]) -> Iterator[Bytes]:
    for form in forms:
        array = whole.pop(0)
        yield _bytes(as_numpy(array))
        results.append(_in_form(form, array) if is_divided(form) else array)
        del array


def _received(forms: list[Any], results: list[Any]) -> Iterator[Bytes]:
    for form in forms:
        array = np.empty(form.shape, form.dtype)
        yield _bytes(array)
        results.append(_in_form(form, array))
        del array


def _in_form(form: Any, array: np.ndarray) -> Any:
    # Divided arrays are copied: shards that are views would keep the whole array in memory.
    copied = is_divided(form)
    return placed(form, {key: np.array(array[block], copy=copied or None) for key, block in own_blocks(form).items()})


def _is_global(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def _blocks(leaf: jax.Array) -> dict[int, list[Block]]:
    """Return the blocks of an array that each process sends, so that every block is sent once, by its lowest process."""
    owners: dict[tuple[tuple[int, int], ...], tuple[int, Block]] = {}
    layout: Any = leaf.sharding.devices_indices_map(leaf.shape)
    for device, index in layout.items():
        key = tuple(
            (part.start or 0, n if part.stop is None else part.stop) for part, n in zip(index, leaf.shape, strict=True)
        )
        if key not in owners or device.process_index < owners[key][0]:
            owners[key] = (device.process_index, index)
    blocks: dict[int, list[Block]] = {}
    for key in sorted(owners):
        process, index = owners[key]
        blocks.setdefault(process, []).append(index)
    return blocks


def _size(leaf: jax.Array, block: Block) -> int:
    lengths = [len(range(*part.indices(n))) for part, n in zip(block, leaf.shape, strict=True)]
    return int(np.prod(lengths, dtype=np.int64)) * leaf.dtype.itemsize


def _mine(leaf: jax.Array, owned: dict[int, list[Block]]) -> Iterator[np.ndarray]:
    """Yield the parts of an array that this process sends, in the order of `owned`."""
    shards = {str(shard.index): shard for shard in leaf.addressable_shards}
    for block in owned.get(jax.process_index(), ()):
        yield np.asarray(shards[str(block)].data)


def _joined(whole: list[np.ndarray], blocks: list[dict[int, list[Block]]], process: int) -> Iterator[Bytes]:
    """Yield buffers for the bytes of a process, part by part, and copy each filled buffer to its place in `whole`."""
    for array, owned in zip(whole, blocks, strict=True):
        for block in owned.get(process, ()):
            part = np.empty(array[block].shape, array.dtype)
            yield _bytes(part)
            array[block] = part

"""Send arrays from process 0 to all processes, and gather arrays that are divided over processes on process 0.

Bytes travel in pieces of a limited size, whatever the arrays are, so that neither side needs memory for more than the arrays
and a piece, and thousands of small arrays are few messages. All processes must make the same calls.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import jax
import numpy as np

from ..distributed import as_numpy
from .messages import Bytes, collect, from_process_zero
from .names import Arrays
from .placement import Block, is_divided, own_blocks, placed

PIECE = 8 << 20
"""Bytes that travel at once, all processes together. Larger ones cost CPUs several times as much: memory for each is new."""


def spread(arrays: Arrays | None, template: Arrays, moved: Callable[[], None]) -> Arrays:
    """Return process 0's `arrays` on every process, in the form of `template`: numpy's, or this process's shards of jax's.

    Process 0 gives them in this form, but whole numpy arrays for those that are divided over processes. `arrays` is emptied,
    so that one that is only needed in shards can be freed. `moved` is called after each piece.
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
            moved()
        next(source)  # the last array has been copied, but is not in its form yet
    else:
        sink = _filled(_received(forms, results))
        next(sink)
        nothing = np.zeros(size, np.uint8)
        for _ in range(0, total, size):
            sink.send(from_process_zero(nothing))
            moved()
    state: Arrays = jax.tree.unflatten(structure, results)
    return state


def gather_whole(arrays: Arrays, moved: Callable[[], None] = lambda: None) -> Arrays | None:
    """Return arrays that are divided over processes as whole numpy arrays, on process 0; None on the others."""
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
        pieces = collect(next(source))
        for sink, piece in zip(sinks, pieces, strict=False):
            sink.send(piece)
        moved()
    if me != 0:
        return None
    gathered = iter(whole)
    # Copies: the rest may change while it is written.
    state: Arrays = jax.tree.unflatten(structure, [next(gathered) if _is_global(x) else np.array(x) for x in leaves])
    return state


def whole_template(template: Arrays) -> Arrays:
    """Return the template by which process 0 reads all of a state that `template` divides, for `spread`."""
    arrays: Arrays = jax.tree.map(lambda x: np.empty(x.shape, x.dtype) if is_divided(x) else x, template)
    return arrays


# --- bytes and pieces ---


def _cut(views: Iterator[Bytes], size: int) -> Iterator[Bytes]:
    """Yield the bytes of all `views` in pieces of `size`, and after the last of them anything."""
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
    """Fill `views` one after another with the bytes of the pieces that are sent to this generator."""
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
    """Return the size of pieces: a multiple of 4, which are summed as numbers of 4 bytes."""
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
    # Copies: shards that are views of the whole array would keep all of it in memory.
    copied = is_divided(form)
    return placed(form, {key: np.array(array[block], copy=copied or None) for key, block in own_blocks(form).items()})


def _is_global(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def _blocks(leaf: jax.Array) -> dict[int, list[Block]]:
    """Return which parts of an array each process sends: every part once, and what process 0 has from itself."""
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
    """Yield this process's parts of an array, in the order of its blocks."""
    shards = {str(shard.index): shard for shard in leaf.addressable_shards}
    for block in owned.get(jax.process_index(), ()):
        yield np.asarray(shards[str(block)].data)


def _joined(whole: list[np.ndarray], blocks: list[dict[int, list[Block]]], process: int) -> Iterator[Bytes]:
    """Yield where the bytes of a process belong, part by part."""
    for array, owned in zip(whole, blocks, strict=True):
        for block in owned.get(process, ()):
            part = np.empty(array[block].shape, array.dtype)
            yield _bytes(part)
            array[block] = part

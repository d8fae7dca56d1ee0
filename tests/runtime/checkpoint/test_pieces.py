"""Arrays travel in pieces; the other processes are only pretended, and each is a call in turn."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from podrun.runtime.checkpoint import messages, pieces

STATE: dict[str, Any] = {
    "a": {"kernel": np.random.default_rng(0).random((65, 33), np.float32), "empty": np.zeros((0, 3))},
    "count": np.array(7, np.int32),
    "bytes": np.arange(255, dtype=np.uint8),
    "odd": np.array([-0.0, np.nan, np.inf]),
    "half": np.arange(5).astype(ml_dtypes.bfloat16),
    "flags": np.array([True, False, True]),
}
TOTAL = sum(leaf.nbytes for leaf in jax.tree.leaves(STATE))


def copied(tree: dict[str, Any]) -> dict[str, Any]:
    return dict(jax.tree.map(np.copy, tree))


@pytest.mark.parametrize("limit", [4, 7, 64, 1000, TOTAL, TOTAL + 1, 1 << 26])
def test_what_process_0_sends_arrives_bit_for_bit(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """No message is larger than the limit, and the sender does not keep what it has sent."""
    monkeypatch.setattr(pieces, "PIECE", limit)
    messages: list[np.ndarray] = []
    monkeypatch.setattr(pieces, "from_process_zero", lambda piece: messages.append(piece.copy()))
    template = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), STATE)
    sent = copied(STATE)
    pieces.broadcast_arrays(sent, template, lambda: None)
    assert not sent
    assert all(piece.size <= -(-limit // 4) * 4 for piece in messages)
    assert sum(piece.size for piece in messages) >= TOTAL
    waiting = iter(messages)
    monkeypatch.setattr(pieces, "from_process_zero", lambda piece: next(waiting) if not piece.any() else None)
    moved: list[None] = []
    received = pieces.broadcast_arrays(None, template, lambda: moved.append(None))
    assert len(moved) == len(messages) and next(waiting, None) is None
    assert jax.tree.structure(received) == jax.tree.structure(STATE)
    for one, other in zip(jax.tree.leaves(received), jax.tree.leaves(STATE), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


@pytest.mark.parametrize("text", [b"", b"x", b"y" * 4096, b"z" * 4097])
def test_a_text_is_told(text: bytes) -> None:
    """On a pod of one process all of it is real but the others."""
    assert messages.broadcast_text(text) == text


def test_divided_arrays_are_told_apart_by_process() -> None:
    """Every part is sent once, and what process 0 has it need not be sent by another."""

    class Device:
        def __init__(self, process: int) -> None:
            self.process_index = process

    class Layout:
        def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Any, tuple[slice, ...]]:
            halves = (slice(0, 2), slice(2, 4))
            return {Device(p): (halves[p % 2], slice(None)) for p in (3, 2, 1, 0)}

    class Divided:
        shape, sharding, dtype = (4, 3), Layout(), np.dtype(np.float32)

    blocks = pieces._blocks(Divided())  # type: ignore[arg-type]
    assert blocks == {0: [(slice(0, 2), slice(None))], 1: [(slice(2, 4), slice(None))]}
    assert pieces._size(Divided(), blocks[1][0]) == 24  # type: ignore[arg-type]

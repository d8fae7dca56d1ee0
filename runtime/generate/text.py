"""Continue prompts by a model, and pass the text on as it is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..contract import UserError
from ..data.base import Tokenizer
from ..models.adapter import Model
from ..models.generation import Sampling, Writer, writer_of
from ..state import Params
from .division import Division

BLOCK = 16
"""Tokens that are generated before the text is checked and shown. The generating function is compiled for this number."""
_MOST = 128  # tokens of a text, unless more are asked for
_ROWS = 8  # prompts that are continued together
_UNFINISHED = "\ufffd"
"""The text that a tokenizer returns for an incomplete character."""


@dataclass(frozen=True)
class Source:
    """A trained model.

    Attributes:
        model: the model.
        params: its parameters, with its state if it has one.
        context: the most tokens of a sequence.
        tokenizer: its tokenizer.
        ends: token ids that end a text.
        beginning: token ids before a prompt.
        division: how it is divided over devices; None: it is on one.
    """

    model: Model
    params: Params
    context: int
    tokenizer: Tokenizer
    ends: frozenset[int] = frozenset()
    beginning: tuple[int, ...] = ()
    division: Division | None = None


@dataclass(frozen=True)
class Wish:
    """A request for text.

    Attributes:
        tokens: the most tokens of a text; None: up to 128, as far as the model's context reaches.
        sampling: how tokens are drawn.
        seed: seed of the random numbers.
        stops: a text ends before the first of these.
    """

    tokens: int | None
    sampling: Sampling
    seed: int = 0
    stops: tuple[str, ...] = ()


@dataclass(frozen=True)
class Figures:
    """Counts of tokens, and how long they took.

    Attributes:
        read: tokens of the prompts.
        written: new tokens.
        seconds: time of writing, without the first block of each batch, which includes compiling.
        timed: number of tokens that were written in this time.
    """

    read: int
    written: int
    seconds: float
    timed: int


class _Text:
    """The text generated so far for one prompt."""

    def __init__(self, tokenizer: Tokenizer, most: int, stops: tuple[str, ...], ends: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._most = most
        self._stops = stops
        self._ends = ends
        self._ids: list[int] = []
        self._passed = 0  # characters
        self.is_done = False

    @property
    def count(self) -> int:
        return len(self._ids)

    def add(self, ids: Sequence[int]) -> str:
        """Add token ids, and return the text that is certain by now and was not returned before."""
        for token in ids:
            if self.is_done:
                break
            if token in self._ends:
                self.is_done = True
            else:
                self._ids.append(token)
                self.is_done = len(self._ids) == self._most
        text = self._tokenizer.decode(np.array(self._ids, np.uint32))
        stopped_at = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if stopped_at:
            self.is_done = True
            text = text[: min(stopped_at)]
        elif not self.is_done:
            longest = max((len(stop) for stop in self._stops), default=1)
            text = text[: max(0, len(text.rstrip(_UNFINISHED)) - (longest - 1))]
        fresh, self._passed = text[self._passed :], max(self._passed, len(text))
        return fresh


Prompt = str | list[int]
"""A text, or the token ids of one, with the model's `beginning`."""


def write(source: Source, prompts: Sequence[Prompt], wish: Wish, say: Callable[[int, str | None], None]) -> Figures:
    """Continue prompts. The texts of a divided model are those of the whole one, up to rounding.

    Args:
        source: the model.
        prompts: the prompts; an empty text is continued from token 0 if the model has no `beginning`.
        wish: length, sampling and end of the texts.
        say: called with the number of a prompt and the next part of its text; None at the end of the text.

    Raises:
        UserError: a prompt has characters that the model has no token for, or is too long for the model's context.
    """
    with source.division.computing() if source.division else nullcontext():
        return _write(source, prompts, wish, say)


def _write(source: Source, prompts: Sequence[Prompt], wish: Wish, say: Callable[[int, str | None], None]) -> Figures:
    ids = [_encode(source, prompt, number) for number, prompt in enumerate(prompts)]
    most = [_room(source.context, len(tokens), number, wish.tokens) for number, tokens in enumerate(ids)]
    writer = writer_of(source.model)
    read = jax.jit(writer.read, static_argnums=3)
    step = jax.jit(partial(_step, writer, wish.sampling, _allowed(source)))
    keys = jax.vmap(partial(jax.random.fold_in, jax.random.key(wish.seed)))(jnp.arange(len(ids)))
    texts = [_Text(source.tokenizer, count, wish.stops, source.ends) for count in most]
    seconds, timed = 0.0, 0
    for rows in _batches(len(ids)):
        space = _rounded(max(len(ids[row]) + most[row] for row in rows))
        tokens, lengths = _padded([ids[row] for row in rows])
        written = read(source.params, tokens, lengths, space)
        start = None
        while not all(texts[row].is_done for row in rows):
            written, new = step(source.params, written, keys[np.array(rows)])
            before = sum(texts[row].count for row in rows)
            for row, fresh in zip(rows, np.asarray(new).tolist(), strict=True):
                if texts[row].is_done:
                    continue
                if text := texts[row].add(fresh):
                    say(row, text)
                if texts[row].is_done:
                    say(row, None)
            if start is not None:
                seconds += time.perf_counter() - start
                timed += sum(texts[row].count for row in rows) - before
            start = time.perf_counter()
    return Figures(sum(map(len, ids)), sum(text.count for text in texts), seconds, timed)


def _step(writer: Writer, sampling: Sampling, allowed: Any, params: Params, written: Any, keys: jax.Array) -> Any:
    return writer.write(params, written, sampling, keys, jnp.asarray(allowed), BLOCK)


def _allowed(source: Source) -> np.ndarray[Any, Any]:
    """Return for the first token ids whether they may be drawn: those with a text, and ends, which may have none."""
    ids = np.arange(max(source.tokenizer.vocabulary, *(end + 1 for end in source.ends), 0))
    return (ids < source.tokenizer.vocabulary) | np.isin(ids, list(source.ends))


def _encode(source: Source, prompt: Prompt, number: int) -> list[int]:
    if isinstance(prompt, list):
        return prompt
    try:
        return [*source.beginning, *source.tokenizer.encode(prompt).tolist()] or [0]
    except UserError as error:
        raise UserError(f"prompt {number + 1}: {error}") from None


def _room(context: int, length: int, number: int, wanted: int | None) -> int:
    """Return the most tokens that can follow a prompt. Raises UserError if the context has no room for them."""
    left = context - length
    if left >= (wanted or 1):
        return wanted or min(left, _MOST)
    remedy = f"give at most --tokens {left}" if left > 0 else "shorten the prompt"
    raise UserError(
        f"prompt {number + 1} has {length} tokens, and with {wanted or 1} more it is longer than the model's context, "
        f"{context} tokens; {remedy}"
    )


def _batches(count: int) -> Iterator[list[int]]:
    for first in range(0, count, _ROWS):
        yield list(range(first, min(first + _ROWS, count)))


def _rounded(length: int) -> int:
    """Round a length up to whole blocks, so that few different lengths have to be compiled."""
    return -(-length // BLOCK) * BLOCK + BLOCK


def _padded(ids: list[list[int]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return prompts as int32[B, T], and the length of each, int32[B]."""
    longest = -(-max(map(len, ids)) // BLOCK) * BLOCK
    rows = np.zeros((len(ids), longest), np.int32)
    for row, tokens in enumerate(ids):
        rows[row, : len(tokens)] = tokens
    return rows, np.array([len(tokens) for tokens in ids], np.int32)

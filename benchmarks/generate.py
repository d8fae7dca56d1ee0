"""Measure how fast text is written: `podrun generate`'s loop against the same without a cache, and against loops by hand.

    python benchmarks/generate.py [--rounds 5] [--tokens 64] [--rows 1,8] [--layers 4] [--width 256] [--heads 4]

The model is a Llama with random parameters, on this machine's first device. Four loops write the same texts in turns:

    podrun      `podrun generate`'s loop: a KV cache, 16 tokens in a program, text decoded as it appears
    by hand     a jitted step with the same cache, called for each token, which is all that it does
    no cache    podrun's loop for a model that it has no cache for: the whole text again for each token
    textbook    a jitted forward pass over the whole context for each token

Printed: tokens/s of each, and the median over rounds of the ratio of times (above 1: podrun is faster). The first 16 tokens,
in which programs are compiled, are not measured.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from setting import print_setting

from podrun.runtime.config import Config
from podrun.runtime.data.tokenizers import Bytes
from podrun.runtime.generate.text import BLOCK, Source, Wish, write
from podrun.runtime.models import make_language_model
from podrun.runtime.models.adapter import Model
from podrun.runtime.models.generation import Sampling, draw, writer_of

PROMPT = "the quick brown fox jumps over the lazy dog, and the dog is quick too "
SAMPLING = Sampling()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a text")
    parser.add_argument("--rows", default="1,8", help="texts that are written together")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    arguments = parser.parse_args()
    print_setting()
    source = random_model(arguments.layers, arguments.width, arguments.heads, len(PROMPT) + arguments.tokens)
    size = sum(leaf.size for leaf in jax.tree.leaves(source.params))
    print(f"{size:,} parameters, {len(PROMPT)} tokens of the prompt, {arguments.tokens} more\n")
    print(
        f"{'texts':<7}{'podrun':>8}{'by hand':>9}{'no cache':>10}{'textbook':>10}   podrun vs by hand, no cache, textbook"
    )
    for rows in map(int, arguments.rows.split(",")):
        times = measure(source, rows, arguments.tokens, arguments.rounds)
        speeds = [rows / statistics.median(seconds) for seconds in times.values()]
        ours, *others = times.values()
        ratios = [statistics.median(b / a for a, b in zip(ours, other, strict=True)) for other in others]
        columns = "".join(f"{speed:>{width}.0f}" for speed, width in zip(speeds, (8, 9, 10, 10), strict=True))
        print(f"{rows:<7}{columns}{ratios[0]:>20.2f}{ratios[1]:>10.2f}{ratios[2]:>10.2f}", flush=True)


def random_model(layers: int, width: int, heads: int, context: int) -> Source:
    model = {"name": "decoder", "layers": layers, "width": width, "heads": heads, "context": context}
    config = Config.model_validate({"steps": 1, "batch_size": 1, "model": model})
    made = make_language_model(config, Bytes.vocabulary, jnp.dtype("float32"))
    params = made.variables(jax.random.key(0), jnp.zeros((1, context), jnp.int32))
    return Source(made, params, context, Bytes())


def measure(source: Source, rows: int, tokens: int, rounds: int) -> dict[str, list[float]]:
    """Return the seconds for each token of each loop, by round."""
    loops: dict[str, Callable[[], float]] = {
        "podrun": partial(podruns_loop, source, rows, tokens),
        "by hand": loop_by_hand(source, rows, tokens),
        "no cache": partial(podruns_loop, replace(source, model=Unknown(source.model)), rows, tokens),
        "textbook": textbook_loop(source, rows, tokens),
    }
    times: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(rounds):
        for name, loop in loops.items():
            times[name].append(loop())
    return times


class Unknown(Model):
    """A model of which podrun does not know that it could have a cache."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def init(self, key: jax.Array, x: jax.Array) -> Any:
        return self._model.init(key, x)

    def apply(
        self, params: Any, state: Any, x: jax.Array, key: jax.Array | None, segments: jax.Array | None = None
    ) -> Any:
        return self._model.apply(params, state, x, key, segments)


def podruns_loop(source: Source, rows: int, tokens: int) -> float:
    figures = write(source, [PROMPT] * rows, Wish(tokens, SAMPLING), lambda number, text: None)
    return figures.seconds / (figures.timed / rows)


def loop_by_hand(source: Source, rows: int, tokens: int) -> Callable[[], float]:
    """Return the loop with a cache, of one program for the prompt and one for a token."""
    writer = writer_of(source.model)
    space = len(PROMPT) + tokens
    read = jax.jit(writer.read, static_argnums=3)

    @jax.jit
    def step(params: Any, written: Any, key: jax.Array) -> Any:
        new = draw(SAMPLING, written.logits, jax.random.split(key, rows))
        place = jnp.arange(rows), written.lengths
        written = written._replace(tokens=written.tokens.at[place].set(new), lengths=written.lengths + 1)
        logits, memory = writer.next(params, written)
        return written._replace(logits=logits, memory=memory), new

    def run() -> float:
        written = read(source.params, *prompts(source, rows), space)
        keys = jax.random.split(jax.random.key(0), tokens)
        for number in range(tokens):
            if number == BLOCK:
                start = time.perf_counter()
            written, new = step(source.params, written, keys[number])
            np.asarray(new)
        return (time.perf_counter() - start) / (tokens - BLOCK)

    return run


def textbook_loop(source: Source, rows: int, tokens: int) -> Callable[[], float]:
    """Return the loop of a forward pass for each token, over all tokens of the context."""
    length = len(PROMPT)

    @jax.jit
    def step(params: Any, window: jax.Array, place: jax.Array, key: jax.Array) -> Any:
        new = jax.random.categorical(key, source.model(params, window)[:, place - 1])
        return window.at[:, place].set(new), new

    def run() -> float:
        window = jnp.pad(prompts(source, rows)[0], ((0, 0), (0, tokens)))
        keys = jax.random.split(jax.random.key(0), tokens)
        for number in range(tokens):
            if number == BLOCK:
                start = time.perf_counter()
            window, new = step(source.params, window, length + number, keys[number])
            np.asarray(new)
        return (time.perf_counter() - start) / (tokens - BLOCK)

    return run


def prompts(source: Source, rows: int) -> tuple[jax.Array, jax.Array]:
    """Return the prompts, int32[B, T], and their lengths, int32[B]."""
    ids = jnp.asarray(source.tokenizer.encode(PROMPT).astype(np.int32))
    return jnp.tile(ids, (rows, 1)), jnp.full(rows, len(ids), jnp.int32)


if __name__ == "__main__":
    main()

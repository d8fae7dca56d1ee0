"""Predicting the next token: losses and sampled text."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.contract import UserError
from podrun.runtime.data.base import Dataset
from podrun.runtime.data.tokenizers import Bytes, Characters
from podrun.runtime.data.windows import Source, TrainWindows, ValidationWindows
from podrun.runtime.models import make_language_model
from podrun.runtime.tasks import make_task, next_token
from podrun.runtime.worker.progress import Reporter

CONTEXT = 8
TEXT = "abcdefgh, the quick brown fox jumps over the lazy dog. " * 4


def job(**sample: Any) -> Config:
    model = {"layers": 1, "heads": 2, "width": 16, "context": CONTEXT}
    return Config.model_validate({"steps": 1, "batch_size": 4, "model": model, "sample": {"prompt": "a", **sample}})


def dataset(with_tokenizer: bool = True) -> Dataset:
    tokenizer = Characters(TEXT)
    tokens = tokenizer.encode(TEXT)
    source = Source("tokens", int(tokens.max()) + 1)
    windows = TrainWindows(tokens, CONTEXT, 0, source), ValidationWindows(tokens, CONTEXT, source)
    return Dataset(*windows, b"", tokenizer.vocabulary, tokenizer if with_tokenizer else None)


@functools.cache
def params() -> Any:
    """Far from the initial ones, with which the most likely token is mostly the last one again."""
    noise = np.random.default_rng(1)
    shapes = jax.eval_shape(make_task(job(), dataset()).init, jax.random.key(0))
    return jax.tree.map(lambda x: noise.normal(0, 0.7, x.shape).astype(np.float32), shapes)


@functools.cache
def apply() -> Callable[[np.ndarray[Any, Any]], jax.Array]:
    """int32[1, CONTEXT] -> logits."""
    model: Any = make_language_model(job(), dataset().vocabulary, jnp.dtype("float32"))
    return jax.jit(lambda window: model.module.apply({"params": params()}, window, True))


def sampled(tmp_path: Path, **sample: Any) -> str:
    task = make_task(job(**sample), dataset())
    text = task.after_training(params(), Reporter(tmp_path / "0.events"))
    assert text is not None
    return text


def ranks(text: str, start: int) -> list[int]:
    """For each token from `start` on: how many tokens a plain loop over the text finds more likely there."""
    ids = Characters(TEXT).encode(text).astype(np.int32)
    found = []
    for place in range(start, len(ids)):
        window = ids[max(0, place - CONTEXT) : place]
        logits = np.asarray(apply()(np.pad(window, (0, CONTEXT - len(window)))[None]))[0, len(window) - 1]
        found.append(int((logits > logits[ids[place]]).sum()))
    return found


# --- losses ---------------------------------------------------------------------------------------------------------


def test_loss_and_evaluation_agree() -> None:
    """The mean of a training batch is the weighted mean of the same examples in evaluation."""
    task = make_task(job(), dataset())
    batch = task.data.train.gather(np.arange(4), np.zeros(4, np.int64))
    loss, means = jax.jit(task.loss)(params(), batch, jax.random.key(0))
    evaluate = jax.jit(task.evaluate)

    def sums(weights: np.ndarray[Any, Any]) -> dict[str, float]:
        part = {**batch, "weights": weights.astype(np.float32)}
        return {key: float(value) for key, value in evaluate(params(), part).items()}

    everything = sums(np.ones((4, CONTEXT)))
    assert everything["count"] == 4 * CONTEXT
    assert task.summarize(everything) == pytest.approx(
        {"loss": float(loss), "accuracy": float(means["accuracy"]), "perplexity": math.exp(float(loss))}, rel=1e-5
    )
    some = np.random.default_rng(0).random((4, CONTEXT)) < 0.5
    first, second = sums(some), sums(~some)
    assert {key: first[key] + second[key] for key in first} == pytest.approx(everything, rel=1e-5)


def test_perplexity_of_a_huge_loss() -> None:
    """It stays a number that JSON can hold."""
    task = make_task(job(), dataset())
    assert math.isfinite(task.train_metrics({"loss": 1e6})["perplexity"])
    assert task.train_metrics({"loss": 2.0, "accuracy": 0.5}) == {
        "loss": 2.0,
        "accuracy": 0.5,
        "perplexity": pytest.approx(math.exp(2)),
    }


# --- sampled text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "sample"),
    [("a", {"top_k": 1}), ("the ", {"temperature": 1e-4}), ("jumps over the lazy dog", {"top_k": 1, "temperature": 9})],
)
def test_text_of_the_most_likely_tokens(tmp_path: Path, prompt: str, sample: dict[str, Any]) -> None:
    """Each token is the most likely one after a window that fills up and then slides; a prompt keeps its end only."""
    text = sampled(tmp_path, tokens=20, prompt=prompt, **sample)
    start = min(len(prompt), CONTEXT)
    assert text.startswith(prompt[-start:])
    assert ranks(text, start) == [0] * 20
    assert len(set(text)) > 2


def test_temperature_and_top_k(tmp_path: Path) -> None:
    """A high temperature takes unlikely tokens, the same each time; `top_k` keeps to the k most likely."""
    hot = sampled(tmp_path, tokens=40, temperature=50.0)
    assert max(ranks(hot, 1)) > 5
    assert sampled(tmp_path, tokens=40, temperature=50.0) == hot
    assert set(ranks(sampled(tmp_path, tokens=40, temperature=50.0, top_k=3), 1)) == {0, 1, 2}


def test_no_text(tmp_path: Path) -> None:
    """None is asked for, or there is no tokenizer to write it with."""
    reporter = Reporter(tmp_path / "0.events")
    for task in (make_task(job(tokens=0), dataset()), make_task(job(tokens=5), dataset(with_tokenizer=False))):
        assert task.after_training(None, reporter) is None


def test_a_prompt_that_the_text_does_not_have() -> None:
    """An error before training, not after it; without sampling the prompt does not count."""
    with pytest.raises(UserError, match=r"^sample\.prompt: the character 'Z' does not occur in the training text"):
        make_task(job(tokens=5, prompt="Z"), dataset())
    make_task(job(tokens=0, prompt="Z"), dataset())


def test_an_empty_prompt() -> None:
    """The text then starts after token 0."""
    data = dataset()
    data = Dataset(data.train, data.validation, b"", 256, Bytes())
    assert make_task(job(tokens=5, prompt=""), data).units_per_example == CONTEXT


# --- z-loss ---------------------------------------------------------------------------------------------------------


def test_z_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """It adds the mean of log²Z to the loss of training, in one piece and in several; perplexity is without it."""
    batch = dataset().train.gather(np.arange(4), np.zeros(4, np.int64))
    plain, with_z = (make_task(job().model_copy(update={"z_loss": z}), dataset()) for z in (0.0, 0.01))
    logits = np.concatenate([np.asarray(apply()(row[None])) for row in batch["tokens"][:, :-1]])
    log_z = np.log(np.exp(logits.astype(np.float64)).sum(-1))
    for piece in (1 << 30, 256):
        monkeypatch.setattr(next_token, "_PIECE", piece)
        # A function of its own for each piece: JAX would take a task's method for the one that it has compiled.
        both = jax.jit(lambda p: [task.loss(p, batch, jax.random.key(0)) for task in (plain, with_z)])
        (loss, _), (total, metrics) = both(params())
        assert float(metrics["z_loss"]) == pytest.approx(0.01 * (log_z**2).mean(), rel=1e-5)
        assert float(total - loss) == pytest.approx(float(metrics["z_loss"]), rel=1e-4)
    shown = with_z.train_metrics({"loss": float(total), "z_loss": float(metrics["z_loss"])})
    assert shown["perplexity"] == pytest.approx(math.exp(float(loss)), rel=1e-4)
    whole = {**batch, "weights": np.ones((4, CONTEXT), np.float32)}
    found, wanted = (jax.tree.map(float, jax.jit(task.evaluate)(params(), whole)) for task in (with_z, plain))
    assert found == wanted


def test_z_loss_needs_tokens() -> None:
    with pytest.raises(ValueError, match="z_loss: only task language_model has it, and the task is classification"):
        Config.model_validate({"task": "classification", "steps": 1, "batch_size": 4, "z_loss": 1e-4})

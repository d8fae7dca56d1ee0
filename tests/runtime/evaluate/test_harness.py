"""`podrun evaluate --lm-eval`: tasks of lm-evaluation-harness whose examples are files of the test."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.contract import UserError
from podrun.runtime.data.tokenizers import Bytes
from podrun.runtime.generate.source import load
from podrun.runtime.generate.text import Source
from podrun.runtime.models import make_language_model
from podrun.runtime.queries import EvaluateAnswer

from ..models.published import arrays_of, config_of, greedy_of, write_folder, write_tokenizer

pytest.importorskip("lm_eval", reason="needs lm-eval: pip install 'lm-eval<0.5'")

from lm_eval.api.instance import Instance

from podrun.runtime.evaluate.harness import _Model, evaluate_tasks

pytestmark = pytest.mark.long
LETTERS = "abcdefghijklmnopqrstuvwxyz ,.!?-"
CHOICES = [("abc", [" de", " xyz", " q"]), ("to be or", [" not", " to"]), ("hello w", ["orld", "est"])]
TEXTS = ["the quick brown fox.", "a" * 100, "jumps over, the lazy dog!"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden Llama as a published folder with a tokenizer."""
    folder = write_folder(tmp_path_factory.mktemp("published") / "llama", config_of("llama"), arrays_of("llama"))
    write_tokenizer(folder / "tokenizer.json", LETTERS)
    return folder


@pytest.fixture(scope="module")
def source(folder: Path) -> Source:
    return load(folder, None, None)[0]


def task(folder: Path, name: str, rows: list[dict[str, Any]], **keys: Any) -> str:
    """Write a task of the harness, and return the path of its YAML file."""
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}}}
    config = {"task": name, **data, "test_split": "test", "metadata": {"version": 1}, **keys}
    (folder / f"{name}.yaml").write_text(json.dumps(config))
    return str(folder / f"{name}.yaml")


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The libraries of the harness keep what they read in a folder of the test."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def run(folder: Path, *tasks: str, limit: int | None = None) -> EvaluateAnswer:
    return evaluate_tasks(folder, None, None, tasks, limit, lambda done, total: None)


def log_probability(source: Source, context: str, text: str) -> float:
    """Return the log-probability of a text after its context, in one piece without padding."""
    ids = [int(i) for i in source.tokenizer.encode(context + text)]
    logits = jax.nn.log_softmax(source.model(source.params, jnp.asarray([ids[:-1]], jnp.int32))[0].astype(jnp.float32))
    first = len(source.tokenizer.encode(context))
    return float(sum(logits[place - 1, ids[place]] for place in range(first, len(ids))))


def test_multiple_choice(folder: Path, source: Source, tmp_path: Path) -> None:
    """The answer is the most likely one, as computed for each by itself."""
    best = [int(np.argmax([log_probability(source, context, text) for text in texts])) for context, texts in CHOICES]
    rows = [
        {"question": context, "choices": texts, "answer": best[number] if number else (best[0] + 1) % len(texts)}
        for number, (context, texts) in enumerate(CHOICES)
    ]
    path = task(
        tmp_path,
        "choices",
        rows,
        output_type="multiple_choice",
        doc_to_text="{{question}}",
        doc_to_choice="{{choices}}",
        doc_to_target="{{answer}}",
        target_delimiter="",
        metric_list=[{"metric": "acc"}],
    )
    answer = run(folder, path)
    assert answer.metrics["choices/acc"] == pytest.approx(2 / 3)
    assert answer.metrics["choices/acc_stderr"] == pytest.approx(math.sqrt(2 / 9 / 2))
    assert answer.examples == 3 and answer.step is None and "choices of lm-eval" in answer.data
    assert run(folder, path, limit=1).metrics["choices/acc"] == 0


def test_perplexity(folder: Path, source: Source, tmp_path: Path) -> None:
    """Texts longer than the context are computed in windows, and each token counts once."""
    path = task(
        tmp_path,
        "texts",
        [{"text": text} for text in TEXTS],
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "word_perplexity"}, {"metric": "byte_perplexity"}],
    )
    answer = run(folder, path)
    prefix = source.beginning[-1] if source.beginning else min(source.ends, default=0)
    total = 0.0
    for text in TEXTS:
        ids = [prefix, *(int(i) for i in source.tokenizer.encode(text))]
        for first in range(0, len(ids) - 1, source.context):
            last = min(first + source.context, len(ids) - 1)
            window = ids[max(0, last - source.context) : last + 1]
            logits = source.model(source.params, jnp.asarray([window[:-1]], jnp.int32))[0].astype(jnp.float32)
            each = jax.nn.log_softmax(logits)[jnp.arange(len(window) - 1), jnp.asarray(window[1:])]
            total += float(each[-(last - first) :].sum())
    expected = math.exp(-total / sum(len(text.encode()) for text in TEXTS))
    assert answer.metrics["texts/byte_perplexity"] == pytest.approx(expected, rel=1e-5)


def test_texts_are_written_greedily(folder: Path, source: Source, tmp_path: Path) -> None:
    """They are those of transformers, up to the text that ends them."""
    (prompt, *_), (ids, *_) = greedy_of("llama")
    written = source.tokenizer.decode(np.array(ids[:8], np.uint32))
    path = task(
        tmp_path,
        "written",
        [{"prompt": source.tokenizer.decode(np.array(prompt, np.uint32)), "target": written}],
        output_type="generate_until",
        doc_to_text="{{prompt}}",
        doc_to_target="{{target}}",
        generation_kwargs={"until": ["\n\n"], "max_gen_toks": 8},
        metric_list=[{"metric": "exact_match"}],
    )
    assert run(folder, path).metrics["written/exact_match"] == 1


def small(context: int = 20) -> Source:
    """Return a model with learned positions, whose context is no multiple of a block, and an end of a text."""
    section = {"name": "decoder", "layers": 1, "heads": 2, "width": 16, "context": context, "positions": "learned"}
    config = Config.model_validate({"steps": 1, "batch_size": 1, "model": section})
    model = make_language_model(config, 256, jnp.dtype("float32"))
    params = model.variables(jax.random.key(0), jnp.zeros((1, context), jnp.int32))
    return Source(model, params, context, Bytes(), frozenset([3]))


def test_nothing_is_read_beyond_the_context() -> None:
    """Learned positions end there, and NaN of one text would spoil the others of its batch."""
    source = small()
    long, short = ("", ""), ("", "")
    answers = _Model(source, lambda done, total: None)._loglikelihood_tokens(
        [(long, [*range(30)], [7, 8]), (short, [1, 2], [5])]
    )
    alone = [
        _Model(source, lambda done, total: None)._loglikelihood_tokens([one])[0]
        for one in ((long, [*range(11, 30)], [7, 8]), (short, [1, 2], [5]))
    ]
    assert [total for total, _ in answers] == pytest.approx([total for total, _ in alone], rel=1e-5)
    assert all(math.isfinite(total) and total < 0 for total, _ in answers)


def test_an_empty_context_is_the_end_of_a_text() -> None:
    """The harness moves spaces at the end of a context to the answer, of which the first token counts too."""
    source = small()
    model = _Model(source, lambda done, total: None)
    assert model._loglikelihood_tokens([(("", ""), [], [2, 9])]) == model._loglikelihood_tokens(
        [(("", ""), [3], [2, 9])]
    )


def test_a_long_prompt_is_cut_by_tokens() -> None:
    """Half a character would be three tokens more."""
    request = Instance("generate_until", {}, ("\u4e2d" * 50, {"until": [], "max_gen_toks": 6}), 0)
    model = _Model(small(), lambda done, total: None)
    assert len(model.generate_until([request])) == 1
    assert len(model._prompt("\u4e2d" * 50, 14)) == 14


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("hellaswagg", "--lm-eval hellaswagg: lm-eval has no such task; like it are hellaswag"),
        ("missing.yaml", "--lm-eval missing.yaml: there is no such file"),
    ],
)
def test_unknown_tasks(folder: Path, name: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        run(folder, name)
    assert str(caught.value).startswith(words)


def test_a_file_with_another_name_than_its_task(folder: Path, tmp_path: Path) -> None:
    path = task(tmp_path, "one", [{"text": "a"}], output_type="loglikelihood_rolling", doc_to_target="{{text}}")
    other = tmp_path / "other.yaml"
    os.rename(path, other)
    with pytest.raises(UserError, match="the file has no task 'other'; name it as its key `task` says"):
        run(folder, str(other))

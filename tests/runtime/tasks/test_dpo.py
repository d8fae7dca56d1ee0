"""Task dpo: the loss of the paper, a reference that is the model without LoRA, and what it refuses."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from podrun.runtime.config import Config
from podrun.runtime.config.task import TASKS
from podrun.runtime.contract import UserError
from podrun.runtime.data import load_dataset
from podrun.runtime.models.adapter import name_of
from podrun.runtime.models.pretrained import load_here, load_weights, published_config, with_architecture
from podrun.runtime.parallel import layout
from podrun.runtime.tasks import make_task
from podrun.runtime.tasks.dpo import DPO, without_lora

from ...tiers import mostly_long
from ..data.pairs_folder import LETTERS, llama_folder, pair, pairs_folder
from ..models.published import logits
from ..prepare.conftest import run_prepare
from ..strategies import SECTIONS, assert_close, make, train

Array = np.ndarray[Any, Any]
BETA = 0.3


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the model `llama` and the data `pairs`."""
    folder = tmp_path_factory.mktemp("dpo")
    model = llama_folder(folder / "llama")
    pairs_folder(folder / "pairs", model, [pair(number) for number in range(40)])
    return folder


def job(home: Path, pairs: str = "pairs", **keys: Any) -> Config:
    fields = {
        "task": "dpo",
        "model": {"init_from": str(home / "llama"), "context": 18, "lora": {"rank": 2, "alpha": 4}},
        "data": {"path": str(home / pairs), "validation": 0.2},
        "dpo": {"beta": BETA},
        "steps": 3,
        "batch_size": 8,
        "optimizer": {"name": "adam", "learning_rate": 0.01, "eps": 1e-3},
        **keys,
    }
    return with_architecture(Config.model_validate_json(Config.model_validate(fields).model_dump_json()))


def start(one: Any) -> Any:
    """The first state of a strategy, with B other than zero."""
    section = one.config.model
    state = one.init_from(lambda form: load_weights(section, published_config(one.config) or {}, form, lambda: None))
    random = np.random.default_rng(5)

    def filled(path: Any, leaf: Any) -> Any:
        if not name_of(path).endswith("_lora.b"):
            return leaf
        return jax.device_put(random.normal(0, 0.3, leaf.shape).astype(leaf.dtype), leaf.sharding)

    return state.replace(params=jax.tree.map_with_path(filled, state.params))


def log_probability(section: Any, params: Any, ids: list[int], answers: list[int]) -> float:
    """Logarithm of the probability of the answers' tokens, float64, of one conversation without padding."""
    scores = np.asarray(logits(section, params, np.array([ids[:-1]], np.int32))[0], np.float64)
    each = scores - np.logaddexp.reduce(scores, axis=-1, keepdims=True)
    return float(sum(each[at - 1, ids[at]] for at in range(1, len(ids)) if answers[at]))


def expected(config: Config, params: Any, rows: list[int]) -> dict[str, float]:
    """TRL's formula (loss type `sigmoid`), pair by pair: means over the pairs."""
    base, results = load_here(Path(str(config.model.init_from)))[1], []  # type: ignore[union-attr]
    plain = config.model.model_copy(update={"lora": None})
    for number in rows:
        row = pair(number)
        prompt = f"?{row['prompt'][0]['content']}\n"
        logps = []
        for answer in (row["chosen"][0]["content"], row["rejected"][0]["content"]):
            ids = [LETTERS.index(letter) for letter in f"{prompt}.{answer}\n"]
            marks = [0] * (len(prompt) + 1) + [1] * (len(answer) + 1)
            logps.append(log_probability(config.model, params, ids, marks))
            logps.append(log_probability(plain, base, ids, marks))
        chosen, chosen_reference, rejected, rejected_reference = logps
        ratio = (chosen - rejected) - (chosen_reference - rejected_reference)
        results.append(
            {
                "loss": np.logaddexp(0, -BETA * ratio),
                "accuracy": float(ratio > 0),
                "margin": BETA * ratio,
                "chosen_reward": BETA * (chosen - chosen_reference),
                "rejected_reward": BETA * (rejected - rejected_reference),
            }
        )
    return {name: float(np.mean([row[name] for row in results])) for name in results[0]}


DIVIDED = {"jit model 2": {"name": "jit", "mesh": {"model": 2}}}


@pytest.mark.parametrize(
    "name",
    mostly_long(
        [*SECTIONS, *DIVIDED],
        lambda number, name: False,
        lambda _, name: name in ("pmap", "explicit", "jit fsdp 2"),
    ),
)
def test_the_loss_of_the_paper(home: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "SMALL", 20)
    config = job(home, parallel={**SECTIONS, **DIVIDED}[name])
    data = load_dataset(config)
    one = make(config, data)
    state = start(one)
    before = jax.tree.map(np.array, state.params)
    rows = [5, 3, 17, 0, 30, 1, 12, 8]
    batch = data.train.gather(np.array(rows), np.zeros(8, np.int64))
    state, found = train(one, state, [batch] * 3)
    wanted = expected(config, before, rows)
    assert {key: found[0][key] for key in wanted} == {
        key: pytest.approx(value, abs=2e-6) for key, value in wanted.items()
    }
    assert found[2]["loss"] < found[1]["loss"] < found[0]["loss"]
    assert_close(without_lora(jax.tree.map(np.array, state.params)), without_lora(before), rtol=0, atol=0)
    if name != "single":
        alone = make(job(home, parallel="single"), data)
        assert_close(
            jax.tree.map(np.array, train(alone, start(alone), [batch] * 3)[0].params),
            jax.tree.map(np.array, state.params),
        )


def test_the_gradient_and_the_first_loss(home: Path) -> None:
    """The gradient is that of the formula with a constant reference; without training both are equal: the loss is log 2."""
    config = job(home, parallel="single")
    data = load_dataset(config)
    task = make_task(config, data)
    params = jax.tree.map(np.array, start(make(config, data)).params)
    batch = data.train.gather(np.arange(8), np.zeros(8, np.int64))
    key = jax.random.key(0)
    gradients = jax.jit(jax.grad(lambda params: task.loss(params, batch, key)[0]))(params)
    plain = config.model.model_copy(update={"lora": None})  # type: ignore[union-attr]
    tokens, answers = batch["tokens"].reshape(16, -1), batch["answers"].reshape(16, -1)

    def log_probabilities(section: Any, params: Any) -> jax.Array:
        each = jax.nn.log_softmax(logits(section, params, tokens[:, :-1]))
        return (jnp.take_along_axis(each, tokens[:, 1:, None], -1)[..., 0] * answers).sum(-1)

    reference = jax.jit(partial(log_probabilities, plain))(load_here(home / "llama")[1])

    def formula(params: Any) -> jax.Array:
        ratios = (log_probabilities(config.model, params) - reference).reshape(8, 2)
        return -jax.nn.log_sigmoid(BETA * (ratios[:, 0] - ratios[:, 1])).mean()

    wanted = jax.jit(jax.grad(formula))(params)
    for (path, gradient), like in zip(jax.tree.leaves_with_path(gradients), jax.tree.leaves(wanted), strict=True):
        if "_lora" in name_of(path):  # the others are not trained
            np.testing.assert_allclose(gradient, like, rtol=1e-4, atol=1e-6, err_msg=name_of(path))
    untrained = jax.tree.map_with_path(lambda path, leaf: leaf * (not name_of(path).endswith("_lora.b")), params)
    loss, metrics = jax.jit(task.loss)(untrained, batch, key)
    assert float(loss) == pytest.approx(np.log(2), abs=1e-7) and float(metrics["margin"]) == 0


@pytest.mark.long
def test_logits_in_pieces(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = job(home, parallel="single")
    data = load_dataset(config)
    task = make_task(config, data)
    params = start(make(config, data)).params
    batch = data.train.gather(np.arange(8), np.zeros(8, np.int64))
    compute = jax.value_and_grad(lambda params: task.loss(params, batch, jax.random.key(0))[0])
    whole = compute(params)
    monkeypatch.setattr("podrun.runtime.tasks.next_token._PIECE", 5 * 16 * 32 * 4)
    assert task.in_pieces(8)
    loss, gradients = compute(params)
    assert float(loss) == pytest.approx(float(whole[0]), rel=1e-6)
    for (path, leaf), like in zip(jax.tree.leaves_with_path(gradients), jax.tree.leaves(whole[1]), strict=True):
        if "_lora" in name_of(path):
            np.testing.assert_allclose(leaf, like, rtol=1e-4, atol=1e-6, err_msg=name_of(path))


def test_long_pairs_are_cut_or_left_out(home: Path) -> None:
    """A conversation is cut at its end; a pair of which all of an answer would be cut off is left out, and both are told."""
    rows = [pair(number) for number in range(20)]
    rows[3]["chosen"][0]["content"] = "long " * 6
    rows[4]["prompt"][0]["content"] = "a question without end, " * 2
    data = load_dataset(job(home, str(pairs_folder(home / "long", home / "llama", rows))))
    assert data.note == (
        "data: 15 pairs; cut at the context of 18 tokens: 1; left out, because all of an answer would be cut off: 1"
    )
    batch = data.train.gather(np.arange(15), np.zeros(15, np.int64))
    assert "".join(LETTERS[i] for i in batch["tokens"][3, 0]) == f"?{'d' * 2},\n.long long lon"[:19]
    assert batch["answers"][3, 0].tolist() == [0] * 5 + [1] * 13
    assert "".join(LETTERS[i] for i in batch["tokens"][4, 1, :6]) == f"?{'f' * 4},"  # pair 5


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"model": {"init_from": "llama"}}, r"model\.lora: task dpo compares .* give model\.lora=\{\} or its keys"),
        ({"model": "gpt2"}, r"model: gpt2 does not fit task dpo, which takes decoder or"),
        ({"data": {"name": "text", "path": "a"}}, r"data: text does not fit task dpo, which takes prepared or"),
        ({"data": {"path": "a", "packing": "fit"}}, r"data\.packing: fit packs documents into rows"),
        ({"dpo": {"beta": 0}}, r"dpo\.beta\n.*greater than 0"),
        (
            {"dpo": {"beta": 0.2}, "task": "language_model", "model": "gpt2", "data": "python_source"},
            r"dpo: only task dpo has it, and the task is language_model",
        ),
        ({"eval": {"best": "min perplexity"}}, r"no metric 'perplexity'; it has loss, accuracy, margin"),
        ({"z_loss": 1e-4}, r"z_loss: only task language_model has it"),
    ],
)
def test_mistakes(keys: dict[str, Any], message: str) -> None:
    model = {"init_from": "llama", "lora": {}}
    with pytest.raises(ValidationError, match=message):
        Config.model_validate(
            {"task": "dpo", "model": model, "data": {"path": "a"}, "steps": 1, "batch_size": 4, **keys}
        )


def test_data_of_another_kind(home: Path) -> None:
    """Pairs for a language model, conversations for dpo, and too few pairs."""
    model = {"name": "decoder", "init_from": str(home / "llama"), "context": 18}
    data = {"name": "prepared", "path": str(home / "pairs")}
    of_text = job(home, task="language_model", dpo={}, model=model, data=data)
    with pytest.raises(
        UserError, match=r"has pairs of conversations, which task dpo learns from, .* give task=dpo, or"
    ):
        load_dataset(of_text)
    row = pair(1)
    (home / "chat.jsonl").write_text(f'{{"messages": {row["prompt"] + row["chosen"]}}}'.replace("'", '"'))
    run_prepare(home / "chat", home / "chat.jsonl", tokenizer=str(home / "llama"), chat=True)
    with pytest.raises(
        UserError, match=r"has no pairs, which task dpo learns from; write a folder of them with `podrun"
    ):
        load_dataset(job(home, "chat"))
    few = pairs_folder(home / "few", home / "llama", [pair(1)])
    with pytest.raises(UserError, match=r"has no pair for validation \(0 pairs\); prepare more pairs"):
        load_dataset(job(home, str(few)))


def test_the_metrics_of_an_evaluation_are_known() -> None:
    """The table of tasks has those that an evaluation gives, so that a mistake is found before the start."""
    sums = dict.fromkeys(("loss", "correct", "margin", "count"), 1.0)
    named = DPO.summarize(None, sums)  # type: ignore[arg-type]
    assert {metric.split()[1] for metric in TASKS["dpo"].metrics} == set(named)

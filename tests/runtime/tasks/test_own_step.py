"""Tasks with a step of their own: what they may be, what is refused, and that training resumes exactly."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from podrun.runtime.config import Config
from podrun.runtime.contract import NotFiniteError, UserError
from podrun.runtime.data import load_dataset
from podrun.runtime.evaluate.evaluate import evaluate
from podrun.runtime.parallel import make_strategy
from podrun.runtime.tasks import make_task

from ..training import train

CODE = """
from typing import Any, NamedTuple
import jax
import jax.numpy as jnp
import numpy as np

class Pair(NamedTuple):
    first: Any
    second: Any

class Mine:
    def __init__(self, config, data):
        pass

    def init(self, key, batch):
        assert batch["x"].shape[0] == 1
        return {
            "w": Pair(jnp.zeros(batch["x"].shape[1:]), jnp.ones((2, 3), jnp.bfloat16)),
            "count": 0,
            "key": key,
            "seen": [np.zeros(3, np.int32), None, True],
            "target": jnp.zeros(batch["x"].shape[1:]),
        }

    def step(self, state, batch, key):
        w = state["w"].first
        loss, grad = jax.value_and_grad(lambda w: ((batch["x"] @ w - batch["y"][:, 0]) ** 2).mean())(w)
        own, _ = jax.random.split(state["key"])
        noise = jax.random.normal(key) + jax.random.normal(state["key"])
        after = w - 0.01 * (grad + 0.01 * noise)
        seen = [state["seen"][0] + len(batch["x"]), None, ~state["seen"][2]]
        # `target` and `first` are the same array after a step.
        state = {"w": Pair(after, state["w"].second), "count": state["count"] + 1, "key": own, "seen": seen, "target": after}
        return state, {"error": loss, "steps_done": state["count"], "noise": noise}

    def evaluate(self, state, batch):
        errors = (batch["x"] @ state["w"].first - batch["y"][:, 0]) ** 2
        return {"error": errors, "one": 1.0}
"""
KEYS: dict[str, Any] = {"task": "mine:Mine", "optimizer": "adamw", "batch_size": 8, "parallel": "pmap"}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module called `mine`."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)
    yield tmp_path / "mine.py"
    sys.modules.pop("mine", None)


def records(workdir: Path, kind: str) -> dict[int, dict[str, float]]:
    """The metrics of steps or evaluations by step, without what is measured."""
    measured = ("time", "elapsed", "examples_per_second")
    lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return {
        line["step"]: {k: v for k, v in line.items() if k not in measured and not re.match("share|.*seconds", k)}
        for line in lines
        if line["kind"] == kind
    }


@pytest.mark.parametrize("parallel", ["pmap", "single", {"name": "jit", "mesh": {"fsdp": 2}}])
def test_any_tree_is_resumed_exactly(module: Path, tmp_path: Path, parallel: Any) -> None:
    """Named tuples, lists, random keys, integers and arrays that are the same array: as if training had not stopped."""
    keys = {**KEYS, "parallel": parallel, "eval": {"every": 4}}
    train(tmp_path / "whole", steps=8, **keys)
    train(tmp_path / "parts", until=3, steps=8, **keys)
    assert (tmp_path / "parts/checkpoints/3").is_dir()
    train(tmp_path / "parts", steps=8, **keys)
    whole, resumed = records(tmp_path / "whole", "train"), records(tmp_path / "parts", "train")
    assert resumed == whole and [whole[n]["steps_done"] for n in (1, 8)] == [1, 8]
    assert len({line["noise"] for line in whole.values()}) == 8
    assert records(tmp_path / "parts", "eval")[8] == records(tmp_path / "whole", "eval")[8]


def test_an_evaluation_is_the_mean_over_all_examples(module: Path, tmp_path: Path) -> None:
    """Of 15 examples in batches of 8, the last of which is padded; `podrun evaluate` computes the same."""
    train(tmp_path / "run", steps=3, **{**KEYS, "eval": {"every": 0, "batches": "all"}})
    metrics = records(tmp_path / "run", "eval")[3]
    answer = evaluate(tmp_path / "run", None, None, None, lambda *_: None)
    assert answer.about == f"task mine:Mine, step 3 of {tmp_path / 'run'}"
    data = load_dataset(config())
    assert answer.examples == data.validation.size and data.validation.size % 8
    assert answer.metrics == pytest.approx({"error": metrics["error"], "one": 1.0}, rel=1e-6)
    examples = np.arange(data.validation.size)
    batch = data.validation.gather(examples, np.zeros_like(examples))
    task = make_task(config(), data)
    task.init(jax.random.key(0))
    sums = task.evaluate({**saved(tmp_path / "run")}, batch)
    assert task.summarize({k: float(v) for k, v in sums.items()}) == pytest.approx(answer.metrics, rel=1e-6)


COLLECTING = """
    def summarize(self, values):
        assert all(type(value) is np.ndarray for value in values.values())
        return {"median": np.median(values["error"]), "examples": len(values["x"]), "largest": values["x"].max()}
"""


def test_metrics_that_are_no_means(module: Path, tmp_path: Path) -> None:
    """`summarize` gets the arrays of all examples, in their order and without padding, here and by `podrun evaluate`."""
    code = CODE.replace('"one": 1.0', '"x": batch["x"]')
    module.write_text(code + COLLECTING)
    train(tmp_path / "run", steps=3, **{**KEYS, "eval": {"every": 0, "batches": "all", "best": "min median"}})
    metrics = records(tmp_path / "run", "eval")[3]
    data = load_dataset(config())
    examples = np.arange(data.validation.size)
    batch = data.validation.gather(examples, np.zeros_like(examples))
    w = saved(tmp_path / "run")["w"]["first"]
    expected = {
        "median": np.median((batch["x"] @ w - batch["y"][:, 0]) ** 2),
        "examples": data.validation.size,
        "largest": batch["x"].max(),
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    assert evaluate(tmp_path / "run", None, None, None, lambda *_: None).metrics == pytest.approx(expected, rel=1e-5)
    for old, new, reason in (
        ('"x": batch["x"]}', '"x": 1.0}', "its `evaluate` returns x [], expected [8, ...], a row for each example"),
        ('"x": batch["x"]}', '"weights": errors}', "its `evaluate` returns an array called 'weights'; give it another"),
        ("summarize(self, values)", "summarize(self)", "its `summarize` takes (), but is called with (values)"),
    ):
        module.write_text((code + COLLECTING).replace(old, new))
        sys.modules.pop("mine", None)
        assert reason in refusal()
    for new, reason in (
        ("values", "its `summarize` returns the metric error as numpy.ndarray, expected a number"),
        ("5", "its `summarize` returns metrics as int, expected a dict of numbers"),
        ("{'kind': 3}", "its `summarize` returns a metric called kind, which is a field of podrun's own records"),
    ):
        module.write_text(f"{code}    def summarize(self, values): return {new}")
        sys.modules.pop("mine", None)
        with pytest.raises(UserError, match=re.escape(reason)):
            train(tmp_path / f"run{len(new)}", steps=1, **{**KEYS, "eval": {"every": 0}})


def saved(workdir: Path) -> dict[str, Any]:
    from podrun.runtime.checkpoint.saved_model import SavedModel, find_checkpoint

    return SavedModel(find_checkpoint(workdir, None)).trees(np.asarray)[0]


def config(**keys: Any) -> Config:
    values = {"steps": 4, "data": {"name": "sine", "samples": 50}, **KEYS, **keys}
    return Config.model_validate(values)


def refusal(**keys: Any) -> str:
    """Notes and errors about a job as its step is made and traced."""
    with pytest.raises(UserError) as raised:
        trace(config(**keys))
    return str(raised.value)


def trace(job: Config) -> None:
    data = load_dataset(job)
    strategy = make_strategy(job, make_task(job, data), optax.identity(), lambda _: 0.0)
    batch = {"x": np.zeros((8, *data.shape), np.float32), "y": np.zeros((8, 1), np.float32)}
    strategy.lowered(batch)
    evaluation = strategy.abstract_batch({**batch, "weights": np.zeros(8, np.float32)})
    strategy._evaluate.lower(strategy.abstract_state().params, evaluation)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("def init(", "def first(", "has `step` but no `init`, which makes the first state: init(key, batch) -> state"),
        (
            "def step(",
            "def run(",
            "returns mine.Mine, expected podrun.runtime.tasks.base.Task, or an object with `init`",
        ),
        (
            "step(self, state, batch, key)",
            "step(self, state)",
            "its `step` takes (state), but is called with (state, batch",
        ),
        (
            "evaluate(self, state, batch)",
            "evaluate(self)",
            "its `evaluate` takes (), but is called with (state, batch)",
        ),
        ("init(self, key, batch)", "init(self, key, batch, x)", "its `init` takes (key, batch, x), but is called with"),
        ("return state, {", "return {", "its `step` returns dict, expected (state, metrics)"),
        (
            "return state, {",
            "return 0, {",
            "`step` changes the form of the state: count is int32[] before and missing after",
        ),
        ('"count": state["count"] + 1', '"count": state["count"] + 0.5', "count is int32[] before and float32[] after"),
        ('"seen": seen', '"seen": tuple(seen)', "its `step` changes the types in the state, which were ("),
        ('"target": after}', '"target": after, "new": w}', "new is missing before and float32["),
        ('"error": loss,', '"error": batch["x"],', "returns the metric error as float32[8, 1], expected a number"),
        ('"error": loss,', '"error": "high",', "returns metrics that are no numbers (error str, "),
        ('"error": loss,', '"step": loss,', "returns a metric called step, which is a field of podrun's own records"),
        ('"error": loss,', "3: loss,", "its `step` returns a metric called 3, expected text"),
        ("return state, {", "return state, loss or {", "`step` returns metrics as "),
        ("return state, {", "return state, {} and {", "its `step` returns no metrics"),
        (
            '"count": 0,',
            '"count": print,',
            "`init` returns a state in which count is builtin_function_or_method, expected",
        ),
        ('"count": 0,', '"count": np.zeros((0, 2)),', "a state in which count is of size zero ([0, 2])"),
        ('"count": 0,', '"w.first": 0,', "two arrays would be called w.first"),
        ("return {\n", "return None and {\n", "its `init` returns no arrays"),
        (
            '{"error": errors',
            '{"error": errors[:2]',
            "`evaluate` returns the metric error as float32[2], expected [8], a",
        ),
        ('return {"error": errors', 'return None and {"error": errors', "`evaluate` returns metrics as None, expected"),
    ],
)
def test_what_is_refused(module: Path, old: str, new: str, reason: str) -> None:
    """With the name and file of the task, and what is expected."""
    assert old in CODE
    module.write_text(CODE.replace(old, new).replace("loss or", "batch['x'] if True else"))
    message = refusal()
    assert reason in message
    if "two arrays" not in reason:
        assert message.startswith(f"task mine:Mine ({module}): ")
        assert message.endswith("; docs/plugins.md says what is expected")


def test_keys_that_are_for_a_loss(module: Path) -> None:
    """All of them at once, each with what to do."""
    keys = {"accumulate": 2, "ema": 0.9, "trainable": "w.*", "skip_nonfinite": 3, "z_loss": 0.1}
    lines = refusal(**keys, precision={"gradients": "bfloat16"}).splitlines()
    assert [re.split("[ :]", line)[0] for line in lines] == [*keys, "precision.gradients"]
    assert all("task mine:Mine has a `step` of its own" in line and "remove it" in line for line in lines)
    module.write_text(CODE.replace("def evaluate", "def score"))
    sys.modules.pop("mine", None)
    message = refusal(eval={"best": "max error", "patience": 2})
    assert message.count("is not evaluated, because it has no `evaluate`") == 2


@pytest.mark.parametrize("parallel", ["shard_map", "explicit", "ensemble", "podrun.runtime.parallel.jit:Jit"])
def test_other_strategies(module: Path, parallel: str) -> None:
    message = refusal(parallel=parallel)
    assert message.startswith(
        f"parallel: {parallel} is for tasks with a `loss`, and task mine:Mine has a `step` of its own"
    )
    assert "give parallel=jit" in message
    assert "divide the state by parallel.mesh.fsdp" in refusal(
        parallel={"name": "jit", "mesh": {"model": 2}, "partition_rules": {"w": 0}}
    )


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            '"error": loss,',
            '"error": jnp.where(state["count"] > 2, jnp.nan, loss),',
            "a metric is not finite in step 3",
        ),
        (
            '"target": after}',
            '"target": after * jnp.nan}',
            "the state after step 2 has NaN (target), with which no resumed",
        ),
    ],
)
def test_nan(module: Path, tmp_path: Path, old: str, new: str, reason: str) -> None:
    """A metric that is not finite ends the run; a state with NaN is not saved, even if no metric tells."""
    module.write_text(CODE.replace(old, new))
    with pytest.raises(NotFiniteError, match=re.escape(reason)):
        train(tmp_path / "run", steps=8, **{**KEYS, "checkpoint": {"every": 2}})
    kept = [path.name for path in (tmp_path / "run/checkpoints").iterdir()]
    assert kept == (["2"] if "metric" in reason else [])


def test_without_an_evaluation(module: Path, tmp_path: Path) -> None:
    """Training and checkpoints are as ever. `podrun evaluate` says what is missing."""
    module.write_text(CODE.replace("def evaluate", "def score").replace("init(self, key, batch)", "init(self, key)"))
    text = (
        module.read_text().replace('        assert batch["x"].shape[0] == 1\n', "").replace('batch["x"].shape[1:]', "1")
    )
    module.write_text(text.replace("jnp.zeros(batch", "jnp.zeros(1"))
    train(tmp_path / "run", steps=4, **{**KEYS, "eval": {"every": 2}})
    assert records(tmp_path / "run", "eval") == {} and len(records(tmp_path / "run", "train")) == 4
    assert (tmp_path / "run/checkpoints/4").is_dir()
    with pytest.raises(UserError, match=r"task mine:Mine has no `evaluate`.* write evaluate\(state, batch\)"):
        evaluate(tmp_path / "run", None, None, None, lambda *_: None)

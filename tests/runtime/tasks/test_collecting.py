"""Tasks with a loss whose evaluation collects arrays of all examples: the AUC of docs/recipes.md, as it stands."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from podrun.runtime.checkpoint.saved_model import SavedModel, find_checkpoint
from podrun.runtime.config import Config
from podrun.runtime.contract import UserError
from podrun.runtime.data import load_dataset
from podrun.runtime.evaluate.evaluate import evaluate
from podrun.runtime.tasks import collecting, make_task
from podrun.runtime.tasks.collecting import joined, numbers

from ..strategies import SECTIONS
from ..training import train

DOCS = Path(__file__).parents[3] / "docs" / "recipes.md"


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The keys of the recipe's job; its code can be imported."""
    text = DOCS.read_text()
    section = text[text.index("### An AUC") : text.index("### MLflow")]
    job, code = re.findall(r"```(?:yaml|python)\n(.*?)```", section, re.DOTALL)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my_auc.py").write_text(code)
    yield {
        **yaml.safe_load(job),
        "schedule": "constant",
        "optimizer": "adam",
        "steps": 4,
        "eval": {"every": 2, "batches": "all", "best": "max auc"},
    }
    sys.modules.pop("my_auc", None)


def change(tmp_path: Path, old: str, new: str) -> None:
    file = tmp_path / "my_auc.py"
    assert file.read_text().count(old) == 1
    file.write_text(file.read_text().replace(old, new))


def evaluations(workdir: Path) -> dict[int, dict[str, Any]]:
    records = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    return {record["step"]: record for record in records if record["kind"] == "eval"}


def expected(workdir: Path, keys: dict[str, Any]) -> dict[str, float]:
    """The metrics of the last checkpoint, computed pair by pair from the predictions for all examples at once."""
    config = Config.model_validate(keys)
    data = load_dataset(config)
    every = np.arange(data.validation.size)
    batch = data.validation.gather(every, np.zeros_like(every))
    params, _ = SavedModel(find_checkpoint(workdir, None)).trees(jnp.asarray)
    task = make_task(config, data)
    assert task.predict is not None
    predictions, labels = np.asarray(task.predict(params, batch)), batch["y"]
    score = predictions[:, 8]
    pairs = score[labels == 8][:, None] - score[labels != 8][None]
    auc = (np.sum(pairs > 0) + 0.5 * np.sum(pairs == 0)) / pairs.size
    return {"auc": float(auc), "loss": -float(np.log(predictions[every, labels]).mean())}


@pytest.mark.parametrize("name", [*SECTIONS, "ensemble"])
def test_the_auc_of_the_recipe(keys: dict[str, Any], tmp_path: Path, name: str) -> None:
    """Under every strategy it is that of all examples, in each evaluation and by `podrun evaluate`, resumed or not."""
    keys |= {"parallel": SECTIONS.get(name, name), "checkpoint": {"every": 2, "keep": 1, "keep_best": 1}}
    train(tmp_path / "run", until=2, **keys)
    train(tmp_path / "run", **keys)
    measured = evaluations(tmp_path / "run")
    assert sorted(measured) == [2, 4] and all(0 < each["auc"] <= 1 for each in measured.values())
    answer = evaluate(tmp_path / "run", None, None, None, lambda *_: None).metrics
    assert {k: answer[k] for k in ("auc", "loss")} == pytest.approx(
        {k: measured[4][k] for k in ("auc", "loss")}, rel=1e-5
    )
    best = max(measured, key=lambda step: measured[step]["auc"])
    assert {path.name for path in (tmp_path / "run/checkpoints").iterdir() if path.name.isdigit()} == {"4", str(best)}
    if name == "ensemble":
        assert len(measured[4]["members"]) == 4 and measured[4]["members"][1].keys() == {"auc", "loss"}
        assert measured[4]["best_member_loss"] == min(member["loss"] for member in measured[4]["members"])
    else:
        assert {k: measured[4][k] for k in ("auc", "loss")} == pytest.approx(expected(tmp_path / "run", keys), rel=1e-4)


@pytest.mark.parametrize("name", ["pmap", "shard_map", "jit fsdp 2", "explicit"])
def test_a_task_of_whole_batches(keys: dict[str, Any], tmp_path: Path, name: str) -> None:
    change(tmp_path, "    collects = True\n", "    collects = whole_batch = True\n")
    keys |= {"parallel": SECTIONS[name]}
    train(tmp_path / "run", **keys)
    measured = evaluations(tmp_path / "run")[4]
    assert {k: measured[k] for k in ("auc", "loss")} == pytest.approx(expected(tmp_path / "run", keys), rel=1e-4)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (
            '"labels": batch["y"]}',
            '"labels": batch["y"].sum()}',
            "its `evaluate` returns labels [], expected [32, ...]",
        ),
        (
            '{"predictions": predictions, "labels": batch["y"]}',
            "predictions",
            "returns jax.*, expected a dict of arr",
        ),
        ('"auc": auc}', '"step": auc}', "a metric called step, which is a field of podrun's own records"),
        ('"auc": auc}', '"auc": predictions}', "the metric auc as numpy.ndarray, expected a number"),
        ('"auc": auc}', '"area": auc}', "eval.best: an evaluation has no metric 'auc'; it has loss, area"),
    ],
)
def test_what_is_refused(keys: dict[str, Any], tmp_path: Path, old: str, new: str, reason: str) -> None:
    change(tmp_path, old, new)
    with pytest.raises(UserError, match=reason.replace("[]", r"\[\]").replace("[32, ...]", r"\[32, \.\.\.\]")):
        train(tmp_path / "run", **keys)


def test_arrays_are_joined_without_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of 16 bits, which numpy's functions do not know, become float32; too much ends with a reason."""
    parts = [
        {"weights": np.array([1.0, 1.0]), "a": jnp.array([1, 2], jnp.bfloat16), "n": np.array([[1], [2]])},
        {"weights": np.array([1.0, 0.0]), "a": jnp.array([3, 9], jnp.bfloat16), "n": np.array([[3], [9]])},
    ]
    values = joined("my:Task", parts)
    assert values["a"].dtype == np.float32 and values["a"].tolist() == [1, 2, 3]
    assert values["n"].tolist() == [[1], [2], [3]] and values.keys() == {"a", "n"}
    monkeypatch.setattr(collecting, "_LARGEST", 40)
    with pytest.raises(UserError, match="task my:Task: an evaluation has collected more than 0 GiB"):
        joined("my:Task", (part for _ in range(9) for part in parts))


def test_numbers_of_numpy_and_jax() -> None:
    given = {"a": np.float32(0.5), "b": jnp.int32(3), "c": np.bool_(True)}
    values = numbers("my:Task", given)
    assert values == {"a": 0.5, "b": 3.0, "c": 1.0} and all(type(value) is float for value in values.values())

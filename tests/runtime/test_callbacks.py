"""Objects of the user's that are called during a training: when, with what, and what is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podrun.runtime.callbacks import Callbacks
from podrun.runtime.config import Config
from podrun.runtime.contract import UserError

from .training import JOB, train

CODE = """
import json
import jax
import numpy as np

class Record:
    def __init__(self, options, config):
        self.file, self.seed = options["file"], config.seed

    def write(self, *what):
        with open(self.file, "a") as file:
            file.write(json.dumps([self.seed, *what]) + "\\n")

    def on_start(self, step):
        self.write("start", step)

    def on_step(self, step, metrics):
        self.write("step", step, metrics["loss"])

    def on_evaluation(self, step, metrics, state):
        self.write("evaluation", step, metrics["loss"], sum(float(np.sum(x)) for x in jax.tree.leaves(jax.device_get(state))))

    def on_end(self, step, state):
        self.write("end", step)

class Failing:
    def __init__(self, options, config): pass
    def on_step(self, step, metrics):
        raise ValueError("enough")

class Typo:
    def __init__(self, options, config): pass
    def on_start(self, step): pass
    def on_steps(self, step, metrics): pass

class Nothing:
    def __init__(self, options, config): pass

class Short:
    def __init__(self, options, config): pass
    def on_step(self, step): pass

class Config_only:
    def __init__(self, config): pass
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module called `watch`."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "watch.py").write_text(CODE)
    yield tmp_path / "watch.py"
    sys.modules.pop("watch", None)


def test_when_they_are_called(tmp_path: Path) -> None:
    """At each moment, with the metrics that are written; a resumed training starts from its step."""
    calls = tmp_path / "calls"
    keys: dict[str, Any] = {
        "steps": 6,
        "batch_size": 8,
        "log": {"every": 2},
        "eval": {"every": 3},
        "callbacks": [{"name": "watch:Record", "options": {"file": str(calls)}}],
    }
    train(tmp_path / "run", until=3, **keys)
    train(tmp_path / "run", **keys)
    train(tmp_path / "run", **keys)
    lines = [json.loads(line) for line in calls.read_text().splitlines()]
    assert [tuple(line[:3]) for line in lines] == [
        (0, "start", 0),
        *[(0, "step", 2), (0, "evaluation", 3), (0, "end", 3)],
        (0, "start", 3),
        *[(0, "step", 4), (0, "step", 6), (0, "evaluation", 6), (0, "end", 6)],
    ]
    written = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    losses = {("step" if r["kind"] == "train" else "evaluation", r["step"]): r["loss"] for r in written}
    assert {(kind, step): loss for _, kind, step, loss, *_ in [line for line in lines if len(line) > 3]} == losses
    assert len({line[4] for line in lines if line[1] == "evaluation"}) == 2  # the parameters of these steps
    assert written[-2]["share_in_callbacks"] > 0


def test_without_any(tmp_path: Path) -> None:
    train(tmp_path / "run", steps=2, batch_size=8, callbacks=[])
    assert "callbacks" not in (tmp_path / "run/metrics.jsonl").read_text()


def test_an_error_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="enough"):
        train(tmp_path / "run", steps=3, batch_size=8, callbacks=["watch:Failing"])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("watch:Typo", "has `on_steps`, which is never called; expected are on_start(step), on_step(step, metrics)"),
        ("watch:Nothing", "returns watch.Nothing, which has none of on_start(step), on_step(step, metrics), "),
        ("watch:Short", "its `on_step` takes (step), but is called with (step, metrics)"),
        ("watch:Config_only", "takes (config), but is called with (options, config)"),
        ("watch:Missing", "module 'watch' has no 'Missing'; it has: json, jax, np, Record"),
        ("nowhere:Watch", "there is no module 'nowhere'"),
    ],
)
def test_what_is_refused(name: str, reason: str) -> None:
    config = Config.model_validate({**JOB, "steps": 1, "batch_size": 4, "callbacks": [name]})
    with pytest.raises(UserError) as raised:
        Callbacks(config)
    assert str(raised.value).startswith("callbacks.0")
    assert reason in str(raised.value)

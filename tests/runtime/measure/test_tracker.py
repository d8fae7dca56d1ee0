"""A tracker of the user's: it gets all metrics, and whatever it does, training goes on and the user is told once."""

from __future__ import annotations

import importlib.util
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import podrun
from podrun import session
from podrun.runtime.config.sections import Log
from podrun.runtime.contract import UserError, Workdir
from podrun.runtime.measure import tracker
from podrun.runtime.measure.tracker import TrackedRun
from podrun.runtime.measure.writers import Tracker, make_writers

from ..training import train

DOCS = Path(__file__).parents[3] / "docs" / "recipes.md"
GOES_ON = "; training goes on, and metrics.jsonl has all metrics"
ENDS = "; metrics.jsonl has all metrics"


class Recorded:
    """A tracker that keeps its calls; `fails` names the methods that raise, and how often."""

    def __init__(self, **fails: int) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.fails = fails
        self.threads: set[int] = set()

    def _call(self, method: str, *given: Any) -> None:
        self.threads.add(threading.get_ident())
        if self.fails.get(method, 0) > 0:
            self.fails[method] -= 1
            raise ConnectionError(f"no answer to {method}\nsecond line")
        self.calls.append((method, *given))

    def start(self, config: Any, run: TrackedRun) -> None:
        self._call("start", config, run)

    def log(self, step: int, metrics: dict[str, float]) -> None:
        self._call("log", step, metrics)

    def end(self, status: str) -> None:
        self._call("end", status)


def written(code: Any, folder: Path, count: int = 3, step: int = 0) -> list[str]:
    """Write a few records to a tracker, and return what the user is told."""
    notes: list[str] = []
    writer = Tracker(code, folder, step, notes.append, {"steps": 3})
    for number in range(1, count + 1):
        writer.write(number, "train", {"loss": 1.0 / number, "epoch": 3, "name": "text"})
    writer.close("stopped")
    return notes


def test_it_gets_what_is_written(tmp_path: Path) -> None:
    """In order and in one thread that is not that of the training; the id of a workdir stays."""
    one, two = Recorded(), Recorded()
    assert written(one, tmp_path) == [] == written(two, tmp_path, step=2)
    start, *logs, end = one.calls
    assert start[1] == {"steps": 3} and (start[2].name, start[2].workdir) == (tmp_path.name, str(tmp_path))
    assert logs == [("log", n, {"train/loss": 1.0 / n}) for n in (1, 2, 3)] and end == ("end", "stopped")
    assert two.calls[0][2] == start[2]._replace(step=2) and re.fullmatch("[0-9a-f]{8}", start[2].id)
    assert len(one.threads) == 1 and threading.get_ident() not in one.threads


def test_what_it_raises_is_told_once(tmp_path: Path) -> None:
    one = Recorded(log=2)
    name = "tests.runtime.measure.test_tracker:Recorded"
    failed, lacks = written(one, tmp_path)
    assert failed.startswith(f"log.tracker {name} failed in `log`: ConnectionError: no answer to log; ")
    assert lacks == f"log.tracker {name} lacks 2 records{ENDS}"  # nothing goes on any more
    assert [call[0] for call in one.calls] == ["start", "log", "end"]


def test_a_start_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records wait for it."""
    monkeypatch.setattr(tracker, "_AGAIN", 0.01)
    one, notes, done = Recorded(start=3), list[str](), threading.Event()
    monkeypatch.setattr(one, "log", lambda step, metrics: done.set() if step == 2 else None)
    writer = Tracker(one, tmp_path, 0, notes.append, {})
    writer.write(1, "train", {"loss": 1.0})
    writer.write(2, "train", {"loss": 1.0})
    assert done.wait(60)
    writer.close()
    assert len(notes) == 1 and f"failed in `start`: ConnectionError: no answer to start{GOES_ON}" in notes[0]
    assert one.calls[-1] == ("end", "done")


def test_a_start_that_always_fails(tmp_path: Path) -> None:
    notes = written(Recorded(start=9), tmp_path)
    assert len(notes) == 2 and "lacks 3 records" in notes[1]


def test_one_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records are bounded, and so is the wait at the end."""
    monkeypatch.setattr(tracker, "_HURRY", 0.05)
    monkeypatch.setattr(tracker, "_KEPT", 10)
    answer = threading.Event()
    code = SimpleNamespace(
        start=lambda config, run: answer.wait(), log=lambda step, metrics: None, end=lambda status: None
    )
    notes = written(code, tmp_path, count=15)
    answer.set()
    assert len(notes) == 2 and "is too slow: 10 records wait for it, and further ones are left out" in notes[0]
    assert "has not ended within 0 s, and lacks up to 1" in notes[1]


def test_an_exit_is_not_that_of_the_training(tmp_path: Path) -> None:
    code = Recorded()
    code.start = lambda config, run: sys.exit(3)  # type: ignore[method-assign]
    assert "failed in `start`: SystemExit: 3" in written(code, tmp_path)[0]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "my_tracker.py"
    sys.modules.pop("my_tracker", None)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("", "module 'my_tracker' has no 'Tracker'"),
        (
            "class Tracker:\n    def start(self, config, run): 0",
            "without `log`, expected start(config, run), log(step, met",
        ),
        (
            "class Tracker:\n    def start(self): 0\n    log = end = start",
            "its `start` takes (), but is called with (config",
        ),
        ("class Tracker:\n    def __init__(self, a): 0", "takes (a), but is called with ()"),
    ],
)
def test_what_is_no_tracker(module: Path, tmp_path: Path, code: str, reason: str) -> None:
    module.write_text(code)
    with pytest.raises(UserError, match=re.escape(reason)):
        make_writers(Log(tensorboard=False, tracker="my_tracker:Tracker"), Workdir(tmp_path), 0, print, {})


CODE = """
calls = []


class Tracker:
    def start(self, config, run): calls.append(("start", config["steps"], run.step))
    def log(self, step, metrics): calls.append((step, *sorted(name for name in metrics if "loss" in name)))
    def end(self, status): calls.append(("end", status))
"""


def test_a_job_has_one(module: Path, tmp_path: Path) -> None:
    module.write_text(CODE)
    log = {"every": 1, "tensorboard": False, "tracker": "my_tracker:Tracker"}
    train(tmp_path / "run", steps=2, batch_size=8, log=log)
    import my_tracker  # type: ignore[import-not-found]

    assert my_tracker.calls == [
        ("start", 2, 0),
        (1, "train/loss"),
        (2, "train/loss"),
        (2, "eval/loss"),
        ("end", "done"),
    ]


def test_a_program_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "_current", None)
    monkeypatch.delattr(sys, "last_value", raising=False)  # of a test that has failed
    one = Recorded()
    podrun.init(tracker=one)
    podrun.report(1, loss=0.5)
    podrun.report(1, kind="test", auc=0.75)
    session.current().metrics._close()
    assert one.calls[1:] == [("log", 1, {"train/loss": 0.5}), ("log", 1, {"eval/test/auc": 0.75}), ("end", "done")]


def recipe(name: str) -> str:
    text = DOCS.read_text()
    (code,) = re.findall(rf"```python\n(# {name}\.py: .*?)```", text, re.DOTALL)
    return str(code)


@pytest.mark.parametrize("name", ["my_mlflow", "my_trackio", "my_aim"])
def test_the_recipes_are_python(name: str) -> None:
    compile(recipe(name), name, "exec")


@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="needs mlflow-skinny")
def test_the_recipe_of_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a store in a folder: a workdir is one run of MLflow, which has all metrics, however often it is resumed."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    space: dict[str, Any] = {}
    exec(recipe("my_mlflow"), space)
    (tmp_path / "run").mkdir()
    for _ in range(2):
        assert written(space["Tracker"](), tmp_path / "run") == []
    from mlflow import MlflowClient  # type: ignore[import-not-found]

    client = MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("podrun").experiment_id])
    assert (run.info.run_name, run.info.status) == ("run", "KILLED")
    assert [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "train/loss")][:3] == [
        (1, 1.0),
        (2, 0.5),
        (3, 1 / 3),
    ]

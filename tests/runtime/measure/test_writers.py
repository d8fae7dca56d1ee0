"""Views of the metrics: what they leave out, when they are on disk, and how Weights & Biases is called."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from podrun.runtime.config import Config, saved_config
from podrun.runtime.measure import writers as module
from podrun.runtime.measure.samples import Sample, sample_of
from podrun.runtime.measure.writers import JsonLines, TensorBoard, WandB, make_writers
from podrun.runtime.worker.workdir import Workdir

from .event_files import tensorboard_events

CONFIG = saved_config(Config.model_validate({"steps": 1, "batch_size": 1}))
MIXED: dict[str, Any] = {"loss": 1.5, "losses": [1.0, 2.0], "epoch": 3, "name": "x", "none": None}


def tags(folder: Path) -> list[str]:
    return [value.tag for event in tensorboard_events(folder) for value in event.summary.value]


def test_views_have_floats_alone(tmp_path: Path) -> None:
    """The members of an ensemble are lists in metrics.jsonl, of which TensorBoard knows nothing."""
    writer = TensorBoard(tmp_path, resumed_from=0)
    writer.write(1, "train", MIXED)
    writer.close()
    assert tags(tmp_path) == ["train/loss"]


def test_tensorboard_is_on_disk_while_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every ten seconds, for each flush waits for the disk."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    writer = TensorBoard(tmp_path, resumed_from=0)
    sizes = []
    for now[0] in (105.0, 110.0, 119.0, 120.0):
        writer.write(int(now[0]), "train", {"loss": 1.0})
        sizes.append(len(tags(tmp_path)))
    assert sizes == [0, 2, 2, 4]
    writer.close()


def test_an_evaluation_is_on_record_once(tmp_path: Path) -> None:
    """From the first step on; a finished run that is started again evaluates its last step again."""
    path = tmp_path / "metrics.jsonl"
    for resumed_from in (0, 1, 2):
        writer = JsonLines(path, resumed_from)
        for step in (1, 2):
            writer.write(step, "eval", {"loss": 1.0})
            assert path.read_bytes().endswith(b"\n")  # a line is on disk as soon as it is written
        writer.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


def test_records_have_the_time_and_the_seconds_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds go on where the last record before a restart ended: what was trained after it is trained again."""
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    path = tmp_path / "metrics.jsonl"
    for resumed_from in (0, 2):
        writer = JsonLines(path, resumed_from)
        for step in (resumed_from + 1, resumed_from + 2, resumed_from + 3):
            now[0] += 2.0
            writer.write(step, "train", {"loss": 1.0})
        now[0] += 50.0
        writer.close()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(r["step"], r["elapsed"]) for r in records] == [(1, 2.0), (2, 4.0), (3, 6.0), (4, 8.0), (5, 10.0)]
    assert all(r["time"] > 1e9 for r in records)
    path.write_text('{"step": 1}\n')  # of an older podrun
    JsonLines(path, 1).write(2, "train", {})
    assert json.loads(path.read_text().splitlines()[1])["elapsed"] == 0.0


class FakeWandb:
    """The two calls that are made of wandb."""

    def __init__(self) -> None:
        self.given: list[dict[str, Any]] = []
        self.logged: list[Any] = []
        self.finished = 0

    def init(self, **given: Any) -> Any:
        self.given.append(given)
        return SimpleNamespace(log=lambda values, step: self.logged.append((values, step)), finish=self._finish)

    def _finish(self) -> None:
        self.finished += 1


def test_a_workdir_is_one_run_of_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is resumed; another workdir is another one. It is told floats alone."""
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)  # type: ignore[arg-type]
    for folder in ("a", "a", "b"):
        (tmp_path / folder).mkdir(exist_ok=True)
        writer = WandB("project", tmp_path / folder, CONFIG)
        writer.write(3, "eval", MIXED)
        writer.close()
    first, again, other = (given["id"] for given in wandb.given)
    assert first == again != other and len(first) == 8 == len(other)
    assert {(given["project"], given["resume"], given["config"]["steps"]) for given in wandb.given} == {
        ("project", "allow", 1)
    }
    assert wandb.logged == [({"eval/loss": 1.5}, 3)] * 3 and wandb.finished == 3


def test_a_sample_is_a_file_of_its_own(tmp_path: Path) -> None:
    """Names that are no names of files get a digest, so that two of them are not one; a later run writes over it."""
    names = ("loss", "a/b", "a b")
    for content in ("old", "new"):
        writer = JsonLines(tmp_path / "metrics.jsonl", 0)
        for name in names:
            writer.sample(7, Sample(name, "text", f"{content} {name}"))
        writer.close()
    files = {path.name: path.read_text() for path in (tmp_path / "samples").iterdir()}
    assert set(files.values()) == {"new loss", "new a/b", "new a b"} and files["00000007-loss.txt"] == "new loss"
    assert len(files) == 3 and all(re.fullmatch(r"00000007-(loss|a_b-[0-9a-f]{8})\.txt", name) for name in files)


def test_the_distribution_of_a_histogram(tmp_path: Path) -> None:
    """TensorBoard shows mean and deviation too, which are computed from the middles of the bins."""
    writer = TensorBoard(tmp_path, resumed_from=0)
    content = {"edges": [0.0, 2.0, 4.0, 8.0], "counts": [1, 2, 4]}
    writer.sample(1, Sample("h", "histogram", json.dumps(content)))
    writer.close()
    (shown,) = [value.histo for event in tensorboard_events(tmp_path) for value in event.summary.value]
    assert (shown.min, shown.max, shown.num, shown.sum, shown.sum_squares) == (0.0, 8.0, 7.0, 31.0, 163.0)
    assert (list(shown.bucket_limit), list(shown.bucket)) == ([2.0, 4.0, 8.0], [1.0, 2.0, 4.0])


def test_wandb_gets_an_image_that_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its library reads the file at once."""
    wandb = FakeWandb()
    wandb.Image = lambda path: Path(path).read_bytes()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)  # type: ignore[arg-type]
    sample = sample_of("image", np.zeros((4, 4), np.uint8))
    WandB("project", tmp_path, CONFIG).sample(3, sample)
    assert wandb.logged == [({"image": sample.data}, 3)]


@pytest.mark.parametrize(("tracker", "in_config"), [("user", None), (None, "config"), ("user", "config"), (None, None)])
def test_the_tracker_of_a_program_goes_before_that_of_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracker: str | None, in_config: str | None
) -> None:
    """Without either there is none."""
    used: list[Any] = []
    monkeypatch.setattr(module, "Tracker", lambda code, *_: used.append(code))
    log = Config.model_validate({"steps": 1, "batch_size": 1}).log.model_copy(
        update={"tracker": in_config, "tensorboard": False}
    )
    make_writers(log, Workdir(tmp_path), 0, print, CONFIG, tracker)
    assert used == [code for code in (tracker or in_config,) if code]


@pytest.mark.parametrize(("channels", "colorspace"), [(1, 1), (3, 3), (4, 4)])
def test_an_image_in_tensorboard_has_its_size(tmp_path: Path, channels: int, colorspace: int) -> None:
    """Height, width and the number of channels come from the PNG."""
    writer = TensorBoard(tmp_path, resumed_from=0)
    writer.sample(1, sample_of("i", np.zeros((5, 7, channels), np.uint8)))
    writer.close()
    (shown,) = [value.image for event in tensorboard_events(tmp_path) for value in event.summary.value]
    assert (shown.height, shown.width, shown.colorspace) == (5, 7, colorspace)

"""`podrun.report`: metrics of any name and kind, samples, and where they go."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import podrun
from podrun import session
from podrun.runtime.measure.samples import Sample, sample_of

from ..runtime.measure.event_files import tensorboard_events

RUN = Path("runs/train")


def records() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]


def metrics(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in ("time", "elapsed")}


def test_any_name_and_kind(fresh: Callable[[], None]) -> None:
    """An evaluation of a set with a name has it before its metrics."""
    podrun.report(1, {"val/f1": 0.5, "a metric": 2}, loss=1.5)
    podrun.report(1, kind="eval", loss=1.25)
    podrun.report(1, {"f1": np.float32(0.25)}, kind="test")
    assert [metrics(record) for record in records()] == [
        {"step": 1, "kind": "train", "val/f1": 0.5, "a metric": 2.0, "loss": 1.5},
        {"step": 1, "kind": "eval", "loss": 1.25},
        {"step": 1, "kind": "eval", "test/f1": 0.25},
    ]


@pytest.mark.parametrize(
    ("names", "kind"),
    [(["val/f1"], "eval"), (["test/f1", "eval/loss"], "eval"), (["val/f1", "loss"], "train"), (["value/f1"], "train")],
)
def test_metrics_of_an_evaluation_are_known_by_their_names(
    fresh: Callable[[], None], names: list[str], kind: str
) -> None:
    """A report of nothing but metrics of an evaluation is one, and `kind` overrules that."""
    numbers = dict.fromkeys(names, 0.5)
    podrun.report(1, numbers)
    podrun.report(2, numbers, kind="train")
    assert [record["kind"] for record in records()] == [kind, "train"]


def test_tensorboard_has_all(fresh: Callable[[], None]) -> None:
    names = [f"metric {number}" for number in range(30)]
    podrun.report(3, {**dict.fromkeys(names, 1.0), "train/f1": 0.5}, sample={"text": "hello", "table": [["a|b"], [1]]})
    podrun.report(3, kind="test", auc=0.75)
    podrun.report(3, sample={"image": np.zeros((4, 6, 3)), "values": [1.0, 2.0, 2.0]})
    session.current().metrics._close()
    values = {value.tag: value for event in tensorboard_events(RUN / "tensorboard") for value in event.summary.value}
    assert {f"train/{name}" for name in names} | {"train/f1", "eval/test/auc"} <= values.keys()
    assert (values["image"].image.height, values["image"].image.width, values["image"].image.colorspace) == (4, 6, 3)
    assert values["values"].histo.num == 3 and values["values"].histo.max == 2.0
    assert values["text/text_summary"].tensor.string_val == [b"hello"]
    assert values["table/text_summary"].tensor.string_val == [b"| a\\|b |\n| --- |\n| 1 |"]


def test_no_tensorboard(fresh: Callable[[], None]) -> None:
    podrun.init(tensorboard=False)
    podrun.report(1, loss=1.0)
    assert not (RUN / "tensorboard").exists() and len(records()) == 1


@pytest.mark.parametrize(
    ("show", "line"),
    [((), "step 7  a 1.0000  b 2.0000  c 3.0000  d 4.0000"), (("e", "missing", "a"), "step 7  e 5.0000  a 1.0000")],
)
def test_shown(fresh: Callable[[], None], capsys: pytest.CaptureFixture[str], show: tuple[str, ...], line: str) -> None:
    """The line of a step has the first four metrics, or those that are named."""
    podrun.init(show=show)
    podrun.report(7, a=1, b=2, c=3, d=4, e=5)
    assert f"\n{line}  elapsed" in capsys.readouterr().out


def test_samples_are_files(fresh: Callable[[], None]) -> None:
    podrun.report(20, sample={"a/b c": "text", "grey": np.full((2, 3), 0.5), "rows": [{"x": 1, "y": "z"}, {"y": 2.5}]})
    assert sorted(path.name for path in (RUN / "samples").iterdir()) == [
        "00000020-a_b_c-904d1d86.txt",
        "00000020-grey.png",
        "00000020-rows.json",
    ]
    assert json.loads((RUN / "samples/00000020-rows.json").read_text()) == [["x", "y"], ["1", "z"], ["", "2.5"]]
    assert not (RUN / "metrics.jsonl").read_text()  # a sample alone is no record


@pytest.mark.parametrize(
    ("array", "mode"),
    [
        (np.arange(24, dtype=np.uint8).reshape(4, 6), "L"),
        (np.arange(24, dtype=np.uint8).reshape(4, 6, 1), "L"),
        (np.arange(72, dtype=np.uint8).reshape(4, 6, 3), "RGB"),
        (np.arange(96, dtype=np.uint8).reshape(4, 6, 4), "RGBA"),
    ],
)
def test_images_are_png(array: np.ndarray[Any, Any], mode: str) -> None:
    """Read back by Pillow they have the same pixels; floats are from 0 to 1."""
    images = pytest.importorskip("PIL.Image")
    for given in (array, array.astype(np.float32) / 255):
        sample = sample_of("a", given)
        image = images.open(io.BytesIO(sample.data))
        assert image.mode == mode
        np.testing.assert_array_equal(np.asarray(image).reshape(array.shape), array)


def test_odd_samples() -> None:
    assert json.loads(sample_of("a", np.array([np.nan, np.inf])).content) == {"edges": [], "counts": []}
    assert sum(json.loads(sample_of("a", np.array([1.0, np.nan, 1.0])).content)["counts"]) == 2
    assert sample_of("a", "\ud800").content == "?"
    assert base64.b64decode(sample_of("a", np.array([[np.nan, 2.0, -1.0]])).content).startswith(b"\x89PNG")
    table = json.loads(sample_of("a", [["x"] * 50, *([["y" * 1000]] * 300)]).content)
    assert len(table) == 201 and len(table[0]) == 40 and len(table[1][0]) == 504


@pytest.mark.parametrize(
    "value", [3, None, object(), np.zeros((2, 2, 2, 2)), np.zeros((2, 2, 5)), np.zeros((0, 2)), b"a"]
)
def test_what_is_no_sample(value: Any) -> None:
    with pytest.raises(TypeError, match=r"podrun\.report: sample mine"):
        sample_of("mine", value)


def test_a_sample_that_is_too_large_is_told_once(fresh: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2):
        podrun.report(step, sample={"long": "x" * (2 << 20)}, loss=1.0)
    assert (
        capsys.readouterr().out.count("sample long of step 1 is left out: it has 2.1 MB, and at most 1 MB are kept")
        == 1
    )
    assert len(records()) == 2


@pytest.mark.parametrize("name", ["time", "step", "steps", "host", "process", "event", "kind", "elapsed", "shown"])
def test_names_of_fields(fresh: Callable[[], None], name: str) -> None:
    """They would take the place of what podrun writes."""
    with pytest.raises(
        ValueError, match=f"a metric is named {name}, which is a field of podrun's records; .* my_{name}"
    ):
        podrun.report(1, {name: 1.0})


@pytest.mark.parametrize(("keys", "error"), [({"metrics": {3: 1.0}}, TypeError), ({"metrics": {"": 1.0}}, TypeError)])
def test_names_that_are_none(fresh: Callable[[], None], keys: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="expected a text"):
        podrun.report(1, **keys)


@pytest.mark.parametrize("kind", ["", "a/b", 3])
def test_kinds_that_are_none(fresh: Callable[[], None], kind: Any) -> None:
    with pytest.raises(ValueError, match=r"kind is .*, expected train, eval or the name of a set"):
        podrun.report(1, kind=kind, loss=1.0)


def test_an_epoch_may_be_reported(fresh: Callable[[], None]) -> None:
    podrun.report(1, epoch=3, loss=1.0)
    assert metrics(records()[0]) == {"step": 1, "kind": "train", "epoch": 3.0, "loss": 1.0}


def test_forms() -> None:
    assert sample_of("a", [1, 2, 3]).form == "histogram" and sample_of("a", [(1, 2)]).form == "table"
    assert Sample("a", "text", "b").data == b"b"


def test_another_call_of_init_changes_nothing(fresh: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    podrun.init(show=["b"], tensorboard=False)
    assert podrun.init().leads
    podrun.report(1, a=1, b=2)
    assert "\nstep 1  b 2.0000  elapsed" in capsys.readouterr().out and not (RUN / "tensorboard").exists()


def test_a_sample_without_a_name(fresh: Callable[[], None]) -> None:
    with pytest.raises(TypeError, match=r"podrun\.report: sample is str, expected samples by name"):
        podrun.report(1, sample="text")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    [
        np.full(8, np.finfo(np.float32).min),
        [0.1 + 0.2, 0.3],
        [2**60, 2**60 + 1],
        [-1e308, 1e308],
        [0, 5e-324],
        [[1, [2, 3]], ["a", (1, (2, 3))]],
    ],
)
def test_samples_that_are_hard_to_draw(fresh: Callable[[], None], value: Any) -> None:
    """Histograms of numbers too close or too far apart, and cells that are lists, do not end the program."""
    podrun.report(1, sample={"x": value})
    assert len([*(RUN / "samples").iterdir()]) == 1


def test_samples_with_similar_names(fresh: Callable[[], None]) -> None:
    names = ["a/b", "a_b", "a b", "\u4e16" * 90, "x" * 300, "x" * 299]
    podrun.report(1, sample=dict.fromkeys(names, "text"))
    assert len([*(RUN / "samples").iterdir()]) == len(names)


def test_values_that_are_no_samples(fresh: Callable[[], None]) -> None:
    for value in ([1, [2]], np.array([[300, 0]]), np.array([[-1, 0]])):
        with pytest.raises(TypeError, match=r"podrun\.report: sample x (is|has)"):
            podrun.report(1, sample={"x": value})
    podrun.report(1, sample={"x": np.arange(4).reshape(2, 2) * 85})
    assert len([*(RUN / "samples").iterdir()]) == 1
    with pytest.raises(TypeError, match=r"expected names of metrics: show=\['loss'\]"):
        podrun.init(show="loss")


def test_an_evaluation_without_a_loss_has_its_values_on_the_console(
    fresh: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    podrun.report(20, {"val/accuracy": 0.5}, kind="eval")
    assert "validation at step 20: val/accuracy 0.5000\n" in capsys.readouterr().out


def test_a_sample_that_cannot_be_written_is_told(fresh: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    """The program goes on: TensorBoard has no number for the squares of these, and a file stands where the folder would."""
    podrun.report(1, sample={"large": [1e200, 2e200, 5.0]})
    podrun.report(2, loss=1.0)
    shutil.rmtree(RUN / "samples")
    (RUN / "samples").write_text("")
    podrun.report(3, sample={"text": "x"})
    out = capsys.readouterr().out
    assert "sample large of step 1 is left out: " in out and "sample text of step 3 is left out: " in out
    assert "step 2  loss 1.0000" in out


@pytest.mark.parametrize(
    ("step", "metrics", "message"),
    [
        (1, 0.5, r"metrics is float, expected numbers by name"),
        (1.5, {"loss": 1.0}, r"step is 1\.5, expected a whole number"),
        (10**20, {"loss": 1.0}, r"step is 10{20}, expected at most"),
        (1, {"a\nb": 1.0}, r"a metric is named 'a\\nb'; expected at most 120 printable characters"),
        (1, {"a\ud800": 1.0}, r"a metric is named 'a\\ud800'; expected at most 120"),
        (1, {"x" * 5000: 1.0}, r"a metric is named 'x{120}\.\.\.'; expected at most 120"),
    ],
)
def test_reports_that_are_refused(fresh: Callable[[], None], step: Any, metrics: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"podrun\.report: {message}"):
        podrun.report(step, metrics)

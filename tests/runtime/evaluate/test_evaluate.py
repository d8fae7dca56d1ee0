"""`podrun evaluate` gives the metrics that a run itself has written, and says what cannot be evaluated."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from podrun.runtime.config import Config
from podrun.runtime.contract import CHECKPOINT_MANIFEST, UserError, Workdir
from podrun.runtime.evaluate.data import data_at
from podrun.runtime.evaluate.evaluate import evaluate
from podrun.runtime.models import make_language_model
from podrun.runtime.models.pretrained import load_here
from podrun.runtime.queries import EvaluateAnswer

from ..data.prepared_folder import prepared_folder, text_documents
from ..models.published import arrays_of, config_of, write_folder, write_tokenizer
from ..strategies import SECTIONS
from ..training import train

LETTERS = "abcdefghijklmnopqrstuvwxyz ,.!?-"  # one for each of the 32 token ids
DIGITS: dict[str, Any] = {
    "task": "classification",
    "model": {"name": "mlp", "width": 16, "layers": 1},
    "data": {"name": "digits"},
    "steps": 4,
    "batch_size": 48,  # the validation set is no multiple of it
    "eval": {"every": 2, "batches": "all"},
    "checkpoint": {"every": 2, "keep": 5},
}
WORDS: dict[str, Any] = {
    **DIGITS,
    "task": "language_model",
    "model": {"name": "decoder", "layers": 2, "heads": 2, "width": 16, "context": 16},
    "optimizer": {"name": "adamw", "learning_rate": 1e-2},
    "batch_size": 12,
    "sample": {"tokens": 0},
    "ema": 0.5,
}


def run(folder: Path, step: Any = None, data: Path | None = None, tokenizer: Path | None = None) -> EvaluateAnswer:
    return evaluate(folder, step, str(data) if data else None, tokenizer, lambda done, total: None)


def validations(workdir: Path) -> dict[int, dict[str, Any]]:
    """Return what a run has written about its evaluations, by step."""
    records = [json.loads(line) for line in Workdir(workdir).metrics.read_text().splitlines()]
    return {record["step"]: record for record in records if record["kind"] == "eval"}


def assert_equal(metrics: dict[str, Any], record: dict[str, Any]) -> None:
    """Each metric to 1e-6; accuracies and counts exactly."""
    assert metrics
    for name, value in metrics.items():
        if name == "members":
            for member, expected in zip(value, record[name], strict=True):
                assert_equal(member, expected)
        else:
            assert value == pytest.approx(record[name], rel=1e-6, abs=0), name


def text(count: int, seed: int = 0) -> str:
    choose = random.Random(seed).choice
    return "".join(choose(LETTERS[:20]) for _ in range(count))


@pytest.fixture(scope="module")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a text, which validates on two batches of it."""
    folder = tmp_path_factory.mktemp("evaluate")
    (folder / "text.txt").write_text(text(6000))
    data = {"name": "text", "path": str(folder / "text.txt"), "tokenizer": "char"}
    parallel = SECTIONS["jit fsdp 2"]  # its loss is computed in other parts than that of one device
    train(folder / "run", **{**WORDS, "data": data, "eval": {"every": 2, "batches": 2}, "parallel": parallel})
    return folder / "run"


@pytest.mark.parametrize("name", ["pmap", "explicit fsdp 4", "ensemble"])
def test_as_the_run(tmp_path: Path, name: str) -> None:
    """Of whole and divided states: with the average of the parameters, at any step; of an ensemble with all its metrics."""
    train(tmp_path, **DIGITS, parallel=SECTIONS.get(name, name), ema=0.5)
    expected = validations(tmp_path)
    assert expected[2]["loss"] != expected[4]["loss"]
    for step in (2, 4):
        report = run(tmp_path, step)
        assert (report.step, report.weights, report.is_of_run) == (step, "ema", True)
        assert report.examples == 359
        assert_equal(report.metrics, expected[step])
    assert ("members" in report.metrics) == (name == "ensemble")


@pytest.mark.long
def test_a_language_model(tmp_path: Path) -> None:
    """In windows that do not fill the last batch, with a loss that the run computes in other parts."""
    (tmp_path / "text.txt").write_text(text(5000))
    data = {"name": "text", "path": str(tmp_path / "text.txt")}
    train(tmp_path / "run", **{**WORDS, "data": data, "parallel": SECTIONS["jit fsdp 2"]})
    assert_equal(run(tmp_path / "run").metrics, validations(tmp_path / "run")[4])


def test_batches_of_the_run(workdir: Path) -> None:
    """As many as the run takes, wherever its text is; of another text all."""
    expected = validations(workdir)
    report = run(workdir)
    assert (report.examples, report.tokens) == (24, 16)
    assert_equal(report.metrics, expected[4])
    elsewhere = workdir.parent / "elsewhere.txt"
    elsewhere.write_text(text(6000))
    assert run(workdir, None, elsewhere) == report
    best = min(expected, key=lambda step: expected[step]["loss"])
    assert run(workdir, "best") == run(workdir, best)


def test_another_text(workdir: Path) -> None:
    """Its loss is the mean over the losses of its halves, if windows do not cross them."""
    whole, *halves = (workdir.parent / name for name in ("whole.txt", "first.txt", "second.txt"))
    letters = text(16 * 40 + 1, seed=1)
    whole.write_text(letters)
    halves[0].write_text(letters[: 16 * 30 + 1])
    halves[1].write_text(letters[16 * 30 :])
    report, *parts = (run(workdir, None, path) for path in (whole, *halves))
    assert (report.data, report.is_of_run, report.examples) == (str(whole), False, 40)
    assert [part.examples for part in parts] == [30, 10]
    mean = np.average([part.metrics["loss"] for part in parts], weights=[30, 10])
    assert report.metrics["loss"] == pytest.approx(mean, rel=1e-6)


def test_prepared_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's own folder gives what the run validates with, wherever it is; another folder or a text gives all."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    documents = text_documents(text(3000), [5, 12, 30])
    own, other = (prepared_folder(tmp_path / name, [documents[first:]]) for name, first in (("own", 0), ("other", 80)))
    data = {"name": "prepared", "path": str(own), "packing": "fit"}
    train(tmp_path / "run", **{**WORDS, "data": data})
    expected = validations(tmp_path / "run")[4]
    assert_equal(run(tmp_path / "run").metrics, expected)
    own.rename(tmp_path / "moved")
    assert_equal(run(tmp_path / "run", None, tmp_path / "moved").metrics, expected)
    report = run(tmp_path / "run", None, other)
    assert (report.data, report.is_of_run) == (str(other), False) and report.metrics["loss"] != expected["loss"]
    (tmp_path / "plain.txt").write_text(text(16 * 8 + 1, seed=2))
    assert run(tmp_path / "run", None, tmp_path / "plain.txt").examples == 8
    (tmp_path / "other/tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer.json is not the tokenizer that the tokens were made with"):
        run(tmp_path / "run", None, other)


def test_a_published_model(tmp_path: Path) -> None:
    """The loss of its own logits, token by token."""
    folder = write_folder(tmp_path / "llama", config_of("llama"), arrays_of("llama"))
    letters = "".join(random.Random(2).choice(LETTERS) for _ in range(129))
    (tmp_path / "text.txt").write_text(letters)
    with pytest.raises(UserError, match=r"llama has no tokenizer.json; give its tokenizer.json with --tokenizer FILE"):
        run(folder, None, tmp_path / "text.txt")
    write_tokenizer(tmp_path / "tokenizer.json", LETTERS)
    report = run(folder, None, tmp_path / "text.txt", tmp_path / "tokenizer.json")
    assert (report.examples, report.tokens, report.step) == (2, 64, None)
    ids = np.array([LETTERS.index(letter) for letter in letters])
    job, params = load_here(folder)
    model = make_language_model(job, 32, np.dtype("float32"))  # type: ignore[arg-type]
    logits = np.asarray(jax.nn.log_softmax(model(params, np.stack([ids[:64], ids[64:128]]))), np.float64)
    targets = np.stack([ids[1:65], ids[65:129]])
    loss = -np.take_along_axis(logits, targets[..., None], -1).mean()
    assert report.metrics["loss"] == pytest.approx(loss, rel=1e-6)
    assert report.metrics["loss"] == pytest.approx(np.log(report.metrics["perplexity"]), rel=1e-6)


def test_a_model_that_the_code_does_not_make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model of a user is evaluated by the user's code, unless it has changed since."""
    (tmp_path / "networks.py").write_text(
        "import flax.linen as nn\n\nWIDTH = 3\n\ndef make(options, outputs, dtype):\n"
        "    return nn.Sequential([lambda x: x.reshape(len(x), -1), nn.Dense(WIDTH), nn.tanh, nn.Dense(outputs)])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    train(tmp_path / "run", **{**DIGITS, "model": "networks:make"})
    assert_equal(run(tmp_path / "run").metrics, validations(tmp_path / "run")[4])
    monkeypatch.setattr("networks.WIDTH", 4)
    with pytest.raises(UserError) as error:
        run(tmp_path / "run")
    assert "params.layers_1.bias has the shape [3] in the checkpoint, [4] in this code" in str(error.value)


def test_data_that_is_not_the_runs(workdir: Path) -> None:
    """A text at its place with other characters is refused, another one with the same is named, and a missing one, too."""
    path = workdir.parent / "text.txt"
    before = path.read_text()
    try:
        path.write_text(before[::-1])
        report = run(workdir)
        assert "which is not the run's" in report.data and not report.is_of_run
        path.write_text(before.replace("b", "A"))
        with pytest.raises(UserError, match=r"it has another tokenizer: .*'A'.*; give the run's data, or another text"):
            run(workdir)
        path.unlink()
        with pytest.raises(
            UserError, match=r"the data of the run is not here: .*text.txt.*; say where it is with --data"
        ):
            run(workdir)
    finally:
        path.write_text(before)


def test_checkpoints_that_cannot_be_read(workdir: Path, tmp_path: Path) -> None:
    """A damaged one is noticed before it is used, and so is one of a version with other keys."""
    copy = tmp_path / "copy"
    shutil.copytree(workdir, copy)
    largest = max((copy / "checkpoints/4/state").rglob("*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"checkpoint 4 .*`podrun checkpoints .*copy` lists which are whole"):
        run(copy)
    meta = copy / "checkpoints/2/meta/metadata"
    meta.write_text(meta.read_text().replace('"layers"', '"floors"'))
    (copy / "checkpoints/2" / CHECKPOINT_MANIFEST).unlink()
    with pytest.raises(UserError, match=r"is of a job that this podrun does not know: model.decoder.floors: "):
        run(copy, 2)


def test_what_cannot_be_evaluated(workdir: Path, tmp_path: Path) -> None:
    """Each message says what is wrong, and what to do."""
    (other := tmp_path / "other.txt").write_text("ABC, which the text never has")
    (tiny := tmp_path / "tiny.txt").write_text("a")
    folder = write_folder(tmp_path / "llama", config_of("llama"), arrays_of("llama"))
    cases: list[tuple[Path, Any, Path | None, str]] = [
        (workdir, 3, None, "has no checkpoint of step 3; there are 2, 4"),
        (tmp_path, None, None, "a workdir is the folder that a run writes to"),
        (workdir, None, other, "the character 'A' does not occur in the training text"),
        (workdir, None, tiny, "too short: 1 tokens"),
        (workdir, None, tmp_path / "none", "no file, folder or match for"),
        (folder, None, None, "and no data; give a text with --data FILE"),
        (folder, 3, None, "which has no steps; leave it out"),
    ]
    for place, step, data, message in cases:
        with pytest.raises(UserError) as error:
            run(place, step, data)
        assert message in str(error.value)


def test_other_data_has_another_fingerprint(tmp_path: Path) -> None:
    """By it the hosts of a pod notice that they have different files under the same path."""
    folders = [
        prepared_folder(tmp_path / name, [text_documents(text(200), [size])]) for name, size in (("a", 9), ("b", 7))
    ]
    for seed in (1, 2):
        (tmp_path / f"{seed}.txt").write_text(text(200, seed))
    config = Config.model_validate({**WORDS, "data": {"name": "prepared", "path": str(folders[0])}})
    meta: Any = {"fingerprint": "", "tokenizer": {"name": "byte"}}
    places = [*folders, tmp_path / "1.txt", tmp_path / "2.txt"]
    fingerprints = [data_at(str(place), config, None, meta).dataset.fingerprint for place in places]
    assert all(fingerprints) and len({*fingerprints}) == len(places)

"""Plug-ins that are not what docs/plugins.md asks for: refused before training, or with the first batch that is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optax
import pytest

from podrun.runtime.config import Config
from podrun.runtime.contract import UserError
from podrun.runtime.data import load_dataset
from podrun.runtime.models import make_language_model
from podrun.runtime.optim import make_optimizer
from podrun.runtime.tasks import make_task

SOURCE = """
import numpy as np
from podrun.runtime.data.base import Dataset

class Tokens:
    size = 100
    def gather(self, indices, epochs):
        n = len(indices)
        return {"tokens": np.zeros((n, 65), np.int32), "weights": np.ones((n, 64), np.float32)}

class Arrays:
    size = 100
    def gather(self, indices, epochs):
        n = len(indices)
        return {"x": np.zeros((n, 4), np.float32), "y": np.zeros(n, np.int32), "weights": np.ones(n, np.float32)}

class Bad(BASE):
    def gather(self, indices, epochs):
        batch = super().gather(indices, epochs)
        n = len(indices)
        CHANGE
        return batch

def tokens(options, config):
    return Dataset(Tokens(), Bad(), b"mine", vocabulary=256)

def arrays(options, config):
    return Dataset(Arrays(), Bad(), b"mine", shape=(4,), outputs=3)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of a module called `mine`."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "mine.py"
    sys.modules.pop("mine", None)


def job(**keys: Any) -> Config:
    values = {"steps": 5, "batch_size": 12, "model": {"context": 64}, "data": "mine:tokens", **keys}
    return Config.model_validate(values)


def refusal(config: Config) -> str:
    with pytest.raises(UserError) as raised:
        load_dataset(config)
    return str(raised.value)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            "batch['tokens'] = batch['tokens'][:, :7]",
            "have tokens [12, 7], expected [12, 65] (the model's context of 64",
        ),
        ("batch['tokens'] = batch['tokens'][0]", "have tokens [65], expected [12, ...]: one for each index"),
        ("batch['tokens'] = batch['tokens'][:5]", "have tokens [5, 65], expected [12, ...]: one for each index"),
        ("batch['tokens'] = batch['tokens'] + 0.5", "have tokens of dtype float64, expected integers"),
        ("batch['tokens'] = batch['tokens'] + 256", "have tokens from 256 to 256, expected 0 to 255"),
        ("batch['tokens'] = batch['tokens'] - 1", "have tokens from -1 to -1, expected 0 to 255"),
        ("batch['tokens'] = batch['tokens'].tolist()", "have a list as tokens, expected a numpy array"),
        ("batch['tokens'] = batch['tokens'].astype(str)", "expected numbers"),
        ("batch['text'] = batch.pop('tokens')", "have text, weights, but no tokens, which the task reads"),
        ("del batch['weights']", "have tokens, but no weights, which the task reads"),
        ("batch['weights'] = batch['weights'][:, 0]", "have weights [12], expected [12, 64] (one for each token"),
        ("batch['weights'] = batch['weights'].astype(int)", "have weights of dtype int64, expected floats"),
        ("return None", "are NoneType, expected a dict of arrays"),
        ("return batch['tokens']", "are ndarray, expected a dict of arrays"),
        ("next(iter(()))", "come to an end"),
    ],
)
def test_batches_of_tokens(module: Path, change: str, reason: str) -> None:
    """Batches for evaluation are checked beforehand too; the message has name, file, split, what is wrong and what to do."""
    module.write_text(SOURCE.replace("BASE", "Tokens").replace("CHANGE", change))
    message = refusal(job())
    assert message.startswith(f"data.name mine:tokens ({module}): its validation examples ")
    assert reason in message
    assert message.endswith("; docs/plugins.md says what is expected")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("batch['x'] = batch['x'][:, :3]", "have x [12, 3], expected [12, 4] (the dataset's own `shape`)"),
        ("batch['y'] = batch['y'][:, None]", "have y [12, 1], expected [12] (labels)"),
        ("batch['y'] = batch['y'] + 3", "have y from 3 to 3, expected 0 to 2 (labels)"),
        ("batch['y'] = batch['y'] * 1.0", "have y of dtype float64, expected integers (labels)"),
        ("del batch['x']", "have weights, y, but no x"),
    ],
)
def test_batches_of_arrays(module: Path, change: str, reason: str) -> None:
    module.write_text(SOURCE.replace("BASE", "Arrays").replace("CHANGE", change))
    assert reason in refusal(job(task="classification", model="mlp", data="mine:arrays"))


def test_good_batches(module: Path) -> None:
    """They come as the source made them, in any number."""
    module.write_text(SOURCE.replace("BASE", "Tokens").replace("CHANGE", "pass"))
    data = load_dataset(job())
    assert (data.train.size, data.validation.size, data.vocabulary) == (100, 100, 256)
    for size in (1, 12, 100):
        batch = data.validation.gather(np.arange(size), np.zeros(size, np.int64))
        assert batch["tokens"].shape == (size, 65)


def test_a_batch_that_is_wrong_later(module: Path) -> None:
    """Every batch is checked, not only the first."""
    module.write_text(SOURCE.replace("BASE", "Tokens").replace("CHANGE", "if 99 in indices: del batch['tokens']"))
    data = load_dataset(job())
    with pytest.raises(UserError, match="but no tokens"):
        data.validation.gather(np.arange(90, 100), np.zeros(10, np.int64))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("def tokens(options, config): return None", "returns None, expected podrun.runtime.data.base.Dataset"),
        ("def tokens(options, config): pass", "returns None, expected podrun.runtime.data.base.Dataset"),
        ("def tokens(options, config): return []", "returns list, expected podrun.runtime.data.base.Dataset"),
        ("def tokens(options): pass", "takes (options), but is called with (options, config)"),
        ("def tokens(*, path): pass", "takes (*, path), but is called with (options, config)"),
        (
            "def tokens(options, config):\n    return next(iter([]))",
            "raises StopIteration at mine.py:2: an iterator had nothing more; give `next` a second argument",
        ),
        (
            "import flax.linen as nn\nclass tokens(nn.Module):\n    width: int = 1\n    depth: int = 1",
            "has the fields width, depth, parent, name, but is called with (options, config): name a function that makes one",
        ),
        ("tokens = 5", "is int, which cannot be called with (options, config)"),
        (
            "from podrun.runtime.data.base import Dataset\ndef tokens(options, config): return Dataset([], [], b'')",
            "its vocabulary is 0, expected the number of token ids",
        ),
        (
            "from podrun.runtime.data.base import Dataset\ndef tokens(o, c): return Dataset([], [], b'', vocabulary=9)",
            "its train examples are list, which has no `gather`",
        ),
        (
            "from podrun.runtime.data.base import Dataset\ndef tokens(o, c): return Dataset([], [], 'x', vocabulary=9)",
            "its fingerprint is 'x', expected bytes",
        ),
    ],
)
def test_sources(module: Path, code: str, reason: str) -> None:
    """Sources that are called in another way, or return something else."""
    module.write_text(code)
    assert f"data.name mine:tokens ({module}): {reason}; docs/plugins.md" in refusal(job())


def test_other_plugins(module: Path) -> None:
    """Models, optimizers and tasks are checked in the same way."""
    module.write_text("def model(options): pass\ndef optimizer(options, steps): return 3, 4\nclass Task: pass\n")
    config = job(task="mine:Task", model={"name": "mine:model", "options": {"context": 64}}, optimizer="mine:optimizer")
    with pytest.raises(UserError, match=r"takes \(options\), but is called with \(options, vocabulary, dtype\)"):
        make_language_model(config, 256, np.dtype(np.float32))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"returns \(int, int\), expected \(GradientTransformation, schedule\)"):
        make_optimizer(config, 5)
    with pytest.raises(UserError, match=r"mine:Task .*takes \(\), but is called with \(config, data\)"):
        make_task(config, None)  # type: ignore[arg-type]
    module.write_text("import optax\ndef optimizer(options, steps): return optax.sgd(1.0), lambda step: 1.0\n")
    sys.modules.pop("mine")
    assert isinstance(make_optimizer(config, 5)[0], optax.GradientTransformation)

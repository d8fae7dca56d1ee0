"""Models with running statistics on pods of several processes: averaged, saved and restored as on one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..conftest import Sandbox
from ..tiers import mostly_long
from .trained import run, saved_state

pytest.importorskip("equinox", reason="the extra `test` has it")
pytestmark = pytest.mark.timeout(600)
MODELS = Path(__file__).parents[1] / "runtime" / "models" / "mlps.py"
TRAIN = """\
task: classification
data: {{name: make_classification, samples: 400, features: 12, classes: 3, informative: 6}}
model: {{name: "mlps:{}_mlp", options: {{features: 12, norm: true, dropout: 0.0}}}}
optimizer: {{name: adam, learning_rate: 0.003}}
schedule: {{name: constant}}
steps: 10
batch_size: 32
log: {{every: 1, tensorboard: false}}
eval: {{every: 0, batches: all}}
checkpoint: {{every: 0}}
"""


def arrays(tree: Any, path: str = "") -> dict[str, Any]:
    """Return the arrays of a nested dictionary by their paths."""
    if not isinstance(tree, dict):
        return {path: np.asarray(tree)}
    return {name: array for key, value in tree.items() for name, array in arrays(value, f"{path}/{key}").items()}


@pytest.mark.parametrize(
    ("framework", "parallel"),
    mostly_long([("linen", "pmap"), ("plain", "jit")], lambda *_: False, lambda number, _: number == 0),
)
def test_running_statistics_on_two_processes(sandbox: Sandbox, framework: str, parallel: str) -> None:
    """Losses and state are those of one process; a run in two parts is the whole run bit for bit."""
    shutil.copy(MODELS, sandbox.path)
    (sandbox.path / "train.yaml").write_text(TRAIN.format(framework))
    override = f"parallel={parallel}"
    for slice in ("cpu-1x2", "cpu-2x1"):
        run(sandbox, slice, slice, override)
    expected = sandbox.losses("cpu-1x2")
    assert sorted(expected) == [*range(1, 11)]
    assert expected[10] < 0.95 * expected[1]
    assert sandbox.losses("cpu-2x1") == pytest.approx(expected, rel=1e-5)
    one, two = (sandbox.metrics(slice, "eval")[10]["loss"] for slice in ("cpu-1x2", "cpu-2x1"))
    assert two == pytest.approx(one, rel=1e-5)

    for steps in (4, 10):
        run(sandbox, "cpu-2x1", "parts", override, f"steps={steps}")
    assert sandbox.losses("parts") == sandbox.losses("cpu-2x1")
    one, two, parts = (
        arrays(saved_state(sandbox.path / workdir / "checkpoints" / "10"))
        for workdir in ("cpu-1x2", "cpu-2x1", "parts")
    )
    statistics = {name for name in one if "batch_stats" in name}
    assert {name.rpartition("/")[2] for name in statistics} == {"mean", "var"}
    for name in statistics:
        assert not np.allclose(two[name], 0 if name.endswith("mean") else 1, atol=1e-2), name
    assert one.keys() == two.keys() == parts.keys()
    for name, array in two.items():
        np.testing.assert_allclose(array, one[name], rtol=1e-4, atol=1e-6, err_msg=name)
        np.testing.assert_array_equal(parts[name], array, name)

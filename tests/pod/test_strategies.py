"""Ways of being parallel on pods of several processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ..conftest import Sandbox
from .trained import run, saved_state

REGRESSION = """\
task: regression
data: {name: sine, samples: 250}
model: {name: mlp, layers: 2, width: 160}
optimizer: {name: adam, learning_rate: 0.003}
schedule: {name: constant}
steps: 20
batch_size: 8
log: {every: 1, tensorboard: false}
eval: {every: 0, batches: all}
checkpoint: {every: 0}
"""
LOGISTIC = """\
task: logistic_regression
data: {name: make_classification, samples: 502, features: 16, classes: 3, informative: 8}
model: {name: linear, l2: 0.01}
steps: 20
log: {every: 1, tensorboard: false}
eval: {every: 0, batches: all}
checkpoint: {every: 0}
"""
DECODER = """\
data: {name: text, path: text.txt}
model:
  name: decoder
  layers: 2
  width: 32
  heads: 4
  kv_heads: 2
  context: 16
  qk_norm: true
  layer_types: [sliding, full]
  window: 4
  rope: {name: llama3, theta: 1000, factor: 4, original_context: 16}
optimizer: {name: adam, eps: 0.001}
steps: 6
batch_size: 8
log: {every: 1, tensorboard: false}
eval: {every: 0, batches: 2}
checkpoint: {every: 0}
sample: {tokens: 4}
"""
FSDP = "parallel={{name: {}, mesh: {{fsdp: {}}}}}"


@pytest.mark.long
def test_a_run_goes_on_under_one_strategy_after_another(sandbox: Sandbox) -> None:
    """On two hosts, in one workdir, each for five steps from the checkpoint of the one before: whole arrays, parts, whole
    again. All losses are those of a single device that was never interrupted, to 1e-5."""
    (sandbox.path / "train.yaml").write_text(REGRESSION)
    run(sandbox, "cpu-1x1", "single", "parallel=single")
    expected = sandbox.losses("single")
    assert sorted(expected) == list(range(1, 21))
    assert expected[20] < expected[1]
    order = ["pmap", FSDP.format("explicit", 4), "single", "shard_map"]
    for number, parallel in enumerate(order, start=1):
        override = parallel if "=" in parallel else f"parallel={parallel}"
        run(sandbox, "cpu-2x2", "chain", override, f"steps={5 * number}")
        assert sorted(sandbox.losses("chain")) == list(range(1, 5 * number + 1))
    assert sandbox.losses("chain") == pytest.approx(expected, rel=1e-5)
    validation = [sandbox.metrics(workdir, "eval")[20]["loss"] for workdir in ("single", "chain")]
    assert validation[1] == pytest.approx(validation[0], rel=1e-5)


@pytest.mark.long
def test_a_decoder_over_three_axes(sandbox: Sandbox) -> None:
    """On 2 x 4 devices, killed once, then on two hosts that share each matrix: the losses are those of a single device."""
    (sandbox.path / "train.yaml").write_text(DECODER)
    job = ("batch_size=16", "schedule.name=constant")
    run(sandbox, "cpu-1x1", "single", "parallel=single", *job)
    expected = sandbox.losses("single")
    assert sorted(expected) == list(range(1, 7))
    assert expected[6] < expected[1]
    mesh = "parallel={name: jit, mesh: {fsdp: 2, model: 2}}"
    words = (*job, mesh, "steps=4", "checkpoint.every=2")
    run(sandbox, "cpu-2x4", "axes", *words, "launch.max_restarts=1", "--inject", "kill:host=1@step=3")
    run(sandbox, "cpu-2x1", "axes", *job, "parallel={name: jit, mesh: {model: 2}}")
    assert sandbox.losses("axes") == pytest.approx(expected, rel=1e-5)
    evaluated = [sandbox.metrics(of, "eval")[6]["loss"] for of in ("single", "axes")]
    assert evaluated[1] == pytest.approx(evaluated[0], rel=1e-5)


def kernels(checkpoint: Path) -> dict[str, Any]:
    """The matrices of a checkpoint, [member, ...] each."""
    return {name: layer["kernel"] for name, layer in saved_state(checkpoint)["params"].items()}


@pytest.mark.long
def test_an_ensemble_does_not_depend_on_the_hosts(sandbox: Sandbox) -> None:
    """Four members on one host and on two start bit for bit the same, end with the same losses, and resume."""
    (sandbox.path / "train.yaml").write_text(REGRESSION)
    for slice in ("cpu-1x4", "cpu-2x2"):
        # A step too short to change a weight, so that its checkpoint has the initial ones.
        run(sandbox, slice, slice, "parallel=ensemble", "steps=1", "optimizer.learning_rate=1e-30")
        run(sandbox, slice, slice, "parallel=ensemble", "steps=21")
    one, two = (kernels(sandbox.path / slice / "checkpoints" / "1") for slice in ("cpu-1x4", "cpu-2x2"))
    for name, matrices in one.items():
        assert len({matrix.tobytes() for matrix in matrices}) == 4
        np.testing.assert_array_equal(matrices, two[name], name)
    losses = sandbox.losses("cpu-1x4")
    assert sorted(losses) == list(range(1, 22))
    assert losses[21] < 0.8 * losses[2]
    assert sandbox.losses("cpu-2x2") == pytest.approx(losses, rel=1e-3)
    first, second = (sandbox.metrics(slice, "eval")[21] for slice in ("cpu-1x4", "cpu-2x2"))
    assert len(first["members"]) == 4
    assert len({member["loss"] for member in first["members"]}) == 4
    assert second["loss"] == pytest.approx(first["loss"], rel=1e-3)
    for a, b in zip(first["members"], second["members"], strict=True):
        assert b == pytest.approx(a, rel=1e-3)


@pytest.mark.long
def test_lbfgs_on_two_hosts(sandbox: Sandbox) -> None:
    """Line searches of hosts that hold parts of the data agree: the losses are those of one host under jit."""
    (sandbox.path / "train.yaml").write_text(LOGISTIC)
    for slice, parallel in (("cpu-1x2", "jit"), ("cpu-2x1", "pmap")):
        run(sandbox, slice, parallel, f"parallel={parallel}")
    expected = sandbox.losses("jit")
    assert expected[1] == pytest.approx(np.log(3), rel=1e-5)
    assert expected[20] < 0.8 * expected[1]
    assert sandbox.losses("pmap") == pytest.approx(expected, rel=1e-4)

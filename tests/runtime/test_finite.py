"""The key `skip_nonfinite`: steps whose gradient is not finite change nothing, and too many in a row end the run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from pydantic import ValidationError

from podrun.runtime.config import Config
from podrun.runtime.contract import NotFiniteError, Workdir, WorkerEnv
from podrun.runtime.data import load_dataset
from podrun.runtime.data.base import Dataset
from podrun.runtime.measure.finite import FiniteCheck
from podrun.runtime.state import Batch
from podrun.runtime.train import Trainer
from podrun.runtime.worker.progress import Reporter

from ..tiers import mostly_long
from .parallel.reference import batches
from .strategies import SECTIONS, assert_close, assert_identical, copies, job, make, strategy, train
from .training import JOB, OTHERS

SPIKES = (4, 5, 9)
"""Steps of `spiky` with an example that is not finite."""


def damaged(batch: Batch) -> Batch:
    """A single infinite number in the part of one device is noticed as well."""
    x = batch["x"].copy()
    x[3, 0] = np.inf
    return {**batch, "x": x}


@pytest.mark.parametrize(
    "name",
    mostly_long(
        SECTIONS,
        lambda _, name: name in ("pmap", "jit fsdp 2"),
        lambda _, name: name in ("explicit fsdp 4", "shard_map", "single"),
    ),
)
def test_a_skipped_step_changes_nothing(name: str) -> None:
    """Only the number of steps differs from a training without that step."""
    first, second = batches(2)
    one = strategy(name, skip_nonfinite=1, ema=0.9)
    state, found = train(one, one.init(), [first, damaged(first)])
    after = copies(one.savable(state))
    state, more = train(one, state, [second])
    expected, wanted = train(one, one.init(), [first, second])
    assert not np.isfinite(found[1]["grad_norm"])
    assert after["step"] == 2
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(after["params"]))
    assert_identical({**copies(one.savable(state)), "step": None}, {**copies(one.savable(expected)), "step": None})
    assert more == wanted[1:]


def test_an_ensemble_skips_by_member_and_microbatches_together() -> None:
    """All members see the same batch here, so that all of them skip it; a spike in one of two parts skips the step."""
    for config in (job("ensemble", skip_nonfinite=1), job("pmap", skip_nonfinite=1, accumulate=2)):
        one = make(config, load_dataset(config))
        first = batches(1)[0]
        state, _ = train(one, one.init(), [first])
        before = copies(one.savable(state))
        state, _ = train(one, state, [damaged(first)])
        assert_close({**one.savable(state), "step": 0}, {**before, "step": 0}, rtol=0, atol=0)


def test_check() -> None:
    """`allowed` steps in a row are skipped; a finite one between them begins the count again."""
    notes: list[str] = []
    check = FiniteCheck(2, notes.append)
    good, bad = {"loss": 1.0, "grad_norm": 1.0}, {"loss": 2.0, "grad_norm": float("nan")}
    given = [good, bad, bad, good, bad, {"loss": float("inf")}]
    assert [check.passes(step, values) for step, values in enumerate(given)] == [True, False, False, True, False, False]
    assert notes[0] == "step 1 is skipped: its loss or gradient is not finite (loss 2  grad_norm nan)"
    assert notes[-1].endswith("(loss inf); 4 so far")
    with pytest.raises(NotFiniteError, match=r"in step 6 .*, nor in the 2 before it, which were skipped"):
        check.passes(6, bad)
    with pytest.raises(NotFiniteError, match=r"not finite in step 0 \(loss inf\); a lower learning rate"):
        FiniteCheck(0, notes.append).passes(0, {"loss": float("inf")})
    many = FiniteCheck(10_000, notes.append)
    notes.clear()
    for step in range(1000):
        many.passes(step, bad)
    assert len(notes) == 15  # the first five, and then each hundredth


class Spiky:
    """Examples of which those of some steps are not finite, in the order in which they are taken."""

    def __init__(self, examples: Any) -> None:
        self._examples, self.size = examples, examples.size
        self._steps = -1  # the first batch is one that the data is checked by

    def gather(self, indices: Any, epochs: Any) -> Any:
        self._steps += 1
        batch = self._examples.gather(indices, epochs)
        return {**batch, "y": batch["y"] * np.float32(np.nan)} if self._steps in SPIKES else batch


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, **keys: Any) -> tuple[list[dict[str, Any]], str]:
    """Train on data with spikes; return the records of the metrics and what was told."""
    folder.mkdir()

    def load(config: Config, *_: Any) -> Dataset:
        data = load_dataset(config)
        return replace(data, train=Spiky(data.train))

    monkeypatch.setattr("podrun.runtime.train.load_data", load)
    Workdir(folder).token("run", 0).touch()
    config = Config.model_validate({**JOB, "parallel": "pmap", "batch_size": 8, **OTHERS, **keys})
    env = WorkerEnv("run", 0, "host-0", 0, 1, (0, 1, 2, 3), "cpu-1x4", folder)
    trainer = Trainer(config, env, Workdir(folder), Reporter(folder / "events"))
    try:
        trainer.start()
        trainer.run()
        trainer.finish()
    finally:
        trainer.close()
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()], (
        folder / "events"
    ).read_text()


def test_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The skipped steps have no metrics, also in the means of an epoch, and the log names them."""
    records, events = run(tmp_path / "a", monkeypatch, epochs=3, skip_nonfinite=2)
    assert [r["step"] for r in records if r["kind"] == "train"] == [s for s in range(1, 16) if s not in SPIKES]
    means = [r["loss"] for r in records if r["kind"] == "epoch"]
    assert len(means) == 3 and np.isfinite(means).all()
    assert all(f"step {step} is skipped" in events for step in SPIKES)
    with pytest.raises(NotFiniteError, match=r"step 5 .*, nor in the 1 before it"):
        run(tmp_path / "b", monkeypatch, steps=15, skip_nonfinite=1)
    with pytest.raises(NotFiniteError, match="step 4 "):
        run(tmp_path / "c", monkeypatch, steps=15)


def test_a_line_search_cannot_skip() -> None:
    with pytest.raises(
        ValidationError, match="skip_nonfinite: a step of lbfgs begins with the loss of the step before"
    ):
        job("single", optimizer="lbfgs", schedule={}, batch_size="all", skip_nonfinite=1)

"""An evaluation ends when a stop is asked for: over a large split it would take minutes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from podrun.runtime.config import Config
from podrun.runtime.contract import Workdir, WorkerEnv
from podrun.runtime.train import Trainer
from podrun.runtime.worker.preempt import Preempted
from podrun.runtime.worker.progress import Reporter


class Stop:
    """Stop that is reached at the third time of asking."""

    def __init__(self) -> None:
        self.asked = 0

    def reached(self) -> bool:
        self.asked += 1
        return self.asked == 3


@pytest.mark.parametrize(("stop_at", "evaluated"), [(None, [2, 4, 6]), (2, [2])], ids=["steps left", "no steps left"])
def test_an_evaluation_ends_when_a_stop_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: int | None, evaluated: list[int]
) -> None:
    """After the batch at which all processes agree, with a checkpoint of the step that was reached.

    The next run makes up for it before it goes on.
    """
    env = WorkerEnv("run", 0, "host-0", 0, 1, (0, 1, 2, 3), "cpu-1x4", tmp_path)
    workdir = Workdir(tmp_path)
    workdir.token("run", 0).touch()
    config = Config.model_validate(
        {
            "task": "regression",
            "steps": 6,
            "stop_at": stop_at,
            "batch_size": 8,
            "data": {"name": "sine", "samples": 200},
            "parallel": "single",
            "eval": {"every": 2, "batches": "all"},
            "log": {"tensorboard": False},
        }
    )
    trainer = Trainer(config, env, workdir, Reporter(tmp_path / "events"))
    trainer.start()
    stop = Stop()
    monkeypatch.setattr(trainer, "_stop", stop)
    with pytest.raises(Preempted):
        trainer.run(None)  # asked after step 1, and then in the evaluation of step 2: after two of its batches
    trainer.close()
    assert stop.asked == 3
    assert [path.name for path in workdir.checkpoints.iterdir() if path.name.isdigit()] == ["2"]
    workdir.token("run", 0).touch()
    trainer = Trainer(config, env, workdir, Reporter(tmp_path / "events"))
    trainer.start()
    trainer.run()
    trainer.finish()
    trainer.close()
    records = [json.loads(line) for line in workdir.metrics.read_text().splitlines()]
    assert [record["step"] for record in records if record["kind"] == "eval"] == evaluated

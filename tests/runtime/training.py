"""A training in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from podrun.runtime.config import Config
from podrun.runtime.contract import Workdir, WorkerEnv
from podrun.runtime.train import Trainer
from podrun.runtime.worker.progress import Reporter

JOB = {"task": "regression", "data": {"name": "sine", "samples": 50}, "optimizer": "adam"}


OTHERS = {"eval": {"every": 0}, "checkpoint": {"every": 0}, "log": {"every": 1, "tensorboard": False}}


Epochs = list[tuple[int, int]]
"""(last step, number) of each."""


def train(
    workdir: Path, until: int | None = None, attempt: int = 0, memory: Path | None = None, **keys: Any
) -> tuple[int, Epochs]:
    """Train until a step, or to the end; return the last step, and the epochs that have ended.

    `memory`: the folder for checkpoints in memory.
    """
    workdir.mkdir(exist_ok=True)
    files = Workdir(workdir)
    kept = str(memory or "")
    env = WorkerEnv("run", attempt, "host-0", 0, 1, (0, 1, 2, 3), "cpu-1x4", workdir, "127.0.0.1:1", memory=kept)
    files.token("run", attempt).touch()
    config = Config.model_validate({**JOB, "parallel": "single", **OTHERS, **keys})
    trainer = Trainer(config, env, files, Reporter(workdir / "events"))
    trainer.start()
    trainer.run(until)
    trainer.finish()
    trainer.close()
    records = [json.loads(line) for line in files.metrics.read_text().splitlines()]
    return records[-1]["step"], [(r["step"], r["epoch"]) for r in records if r["kind"] == "epoch"]

"""THE loop: the only file that orders step, metrics, evaluation, checkpoint and stop.

The order within a step matters:
1. wait for the oldest step in flight, so that no more than `window` are: XLA's CPU collectives deadlock in deep queues
2. dispatch the next step, then read the metrics of the older one while the devices work
3. evaluate, then save: a checkpoint knows its validation loss, and metrics never lag behind a checkpoint
4. stop only between steps, when all processes have agreed to
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from typing import Any

import jax
import numpy as np
import yaml

from .checkpoint import Checkpoints
from .config import Config, saved_config
from .contract import EventKind, NotFiniteError, Phase, Workdir, WorkerEnv
from .data import load_dataset
from .data.pipeline import Prefetcher, TrainBatches, evaluation_batches
from .distributed import agree
from .metrics import Writer, make_writers
from .optim import make_optimizer
from .parallel import strategy_class
from .preempt import Preempted, StopRequest
from .progress import Reporter
from .state import Batch, TrainState
from .tasks import make_task
from .tasks.base import Scalars


def train(config: Config, env: WorkerEnv, workdir: Workdir, reporter: Reporter) -> None:
    """Trains to the last step, from the newest checkpoint if there is one.

    Raises UserError for what the user can mend, NotFiniteError, and Preempted after a stop that was asked for.
    """
    reporter.phase(Phase.SETUP)
    trainer = Trainer(config, env, workdir, reporter)
    trainer.start()
    try:
        trainer.run()
        trainer.finish()
    except Preempted:
        trainer.close()
        raise
    trainer.close()  # not after a failure, which is to be reported at once; the process ends then anyway


class Trainer:
    """One process's part of a training job."""

    def __init__(self, config: Config, env: WorkerEnv, workdir: Workdir, reporter: Reporter) -> None:
        self._config = config
        self._workdir = workdir
        self._reporter = reporter
        self._process = jax.process_index()
        self._num_processes = jax.process_count()
        self._data = load_dataset(config)
        token = workdir.token(env.run_id, env.attempt)
        agree(env, token, self._data.fingerprint)
        if self._process == 0:
            token.unlink()
        self._task = make_task(config, self._data)
        optimizer, schedule = make_optimizer(config)
        self._strategy = strategy_class(config.parallel)(
            self._task, optimizer, schedule, config.seed, config.accumulate
        )
        self._window = 1 if jax.default_backend() == "cpu" else 2
        self._in_flight: deque[tuple[int, Scalars]] = deque()
        self._stop = StopRequest()
        self._clock = Clock(config.batch_size, self._task.units_per_example, self._task.unit)
        self._writers: list[Writer] = []
        self._batches: Prefetcher[Batch] | None = None
        self._checkpoints = Checkpoints(workdir.checkpoints, config.checkpoint, primary=self._process == 0)
        self._state: TrainState
        self._step = 0
        self._position = 0
        self._evaluated: tuple[int, float] | None = None  # step and loss of the last evaluation
        self._saved: int | None = None

    # --- phases ---

    def start(self) -> None:
        """Initial or restored state, data from its position on, and the writers."""
        state = self._strategy.init()
        latest = self._checkpoints.latest()
        if latest is not None:
            self._reporter.phase(Phase.RESTORE)
            template = self._strategy.to_host(state)
            restored = self._checkpoints.restore(latest, template, self._config, self._data.fingerprint)
            state = self._strategy.place(restored.state)
            self._step = self._saved = restored.step
            self._position = restored.position
            if self._process == 0:
                self._reporter.event(EventKind.RESUME, step=self._step)
        self._state = state
        if self._process == 0:
            self._workdir.config.write_text(yaml.safe_dump(saved_config(self._config), sort_keys=False))
            self._writers = make_writers(self._config, self._workdir, resumed_from=self._step)
        train_batches = TrainBatches(
            self._data.train, self._config.batch_size, self._process, self._num_processes, self._config.seed
        )
        if self._step < self._config.steps:
            self._batches = Prefetcher(
                lambda position: self._strategy.shard(train_batches.at(position)),
                self._position,
                self._config.batch_size,
            )

    def run(self, until: int | None = None) -> None:
        """All steps that are left, or those up to step `until`."""
        config = self._config
        if self._batches is None:
            if self._process == 0:
                self._reporter.note(f"already at step {self._step} of {config.steps}: nothing left to train")
            return
        self._reporter.phase(Phase.COMPILE)
        self._clock.start(self._step)
        first = self._step + 1
        for step in range(first, (until or config.steps) + 1):
            self._reporter.step = step
            batch = self._batches.get()
            done = self._wait_for_oldest()
            self._state, metrics = self._strategy.step(self._state, batch)
            self._in_flight.append((step, metrics))
            self._step = step
            self._position += config.batch_size
            if step == first:
                jax.block_until_ready(metrics)
                self._reporter.phase(Phase.TRAIN)
                self._clock.start(step)
            if done:
                self._record(*done)
            self._report_completed_save()
            if _due(step, config.eval.every):
                self._evaluate()
            if _due(step, config.checkpoint.every) and step < config.steps:
                self._save()
            if self._stop.reached():
                self._save_and_stop()
        self._drain()

    def finish(self) -> None:
        """Final evaluation, final checkpoint, and what the task does with its result."""
        if self._evaluated is None or self._evaluated[0] != self._step:
            self._evaluate()
        if self._saved != self._step:
            self._save()
        self._reporter.phase(Phase.SAVE)
        self._report_completed_save(wait=True)
        self._reporter.phase(Phase.SAMPLE)
        if self._process == 0:
            params = jax.tree.map(np.asarray, self._state.params)
            text = self._task.after_training(params, self._reporter)
            if text is not None:
                self._workdir.sample.write_text(text, encoding="utf-8")
                self._reporter.event(EventKind.TEXT, text=text)

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()
        for writer in self._writers:
            writer.close()

    # --- metrics ---

    def _wait_for_oldest(self) -> tuple[int, Scalars] | None:
        """Waits until there is room for one more step in flight; returns the step that made it."""
        if len(self._in_flight) < self._window:
            return None
        step, metrics = self._in_flight.popleft()
        jax.block_until_ready(metrics)
        return step, metrics

    def _drain(self) -> None:
        """Waits for all steps in flight, and records them."""
        while self._in_flight:
            self._record(*self._in_flight.popleft())

    def _record(self, step: int, metrics: Scalars) -> None:
        """Raises NotFiniteError, in all processes alike, for a loss or gradient that is not finite."""
        values = {name: float(value) for name, value in jax.device_get(metrics).items()}
        if not (math.isfinite(values["loss"]) and math.isfinite(values.get("grad_norm", 0.0))):
            self._reporter.step = step
            shown = "  ".join(f"{k} {v:g}" for k, v in values.items())
            raise NotFiniteError(
                f"the loss or its gradient is not finite in step {step} ({shown}); "
                "a lower learning rate, warm-up steps, or clipping may help"
            )
        if not (_due(step, self._config.log.every) or step == self._config.steps):
            return
        record = {**self._task.train_metrics(values), **self._clock.rates(step)}
        for writer in self._writers:
            writer.write(step, "train", record)
        self._reporter.progress(step, self._config.steps, record)

    # --- evaluation, checkpoints, stop ---

    def _evaluate(self) -> None:
        self._drain()
        self._reporter.phase(Phase.EVALUATE)
        with self._clock.paused():
            metrics = self._task.summarize(self._evaluation_sums())
        self._evaluated = (self._step, metrics["loss"])
        for writer in self._writers:
            writer.write(self._step, "eval", metrics)
        if self._process == 0:
            self._reporter.event(EventKind.EVAL, step=self._step, **metrics)
        self._reporter.phase(Phase.TRAIN)

    def _evaluation_sums(self) -> dict[str, float]:
        """Added up on the host in float64: the whole split may be more than float32 can count."""
        limit = None if self._config.eval.batches == "all" else self._config.eval.batches
        batches = evaluation_batches(
            self._data.validation, self._config.batch_size, self._process, self._num_processes, limit
        )
        sums: dict[str, float] = {}
        for batch in batches:
            part: Any = jax.device_get(self._strategy.evaluate(self._state.params, self._strategy.shard(batch)))
            for name, value in part.items():
                sums[name] = sums.get(name, 0.0) + float(value)
            if self._stop.reached():
                self._save_and_stop()
        return sums

    def _save(self) -> None:
        self._drain()
        self._reporter.phase(Phase.SAVE)
        with self._clock.paused():
            self._report_completed_save(wait=True)
            loss = self._evaluated[1] if self._evaluated and self._evaluated[0] == self._step else None
            self._checkpoints.save(
                self._step,
                self._strategy.to_host(self._state),
                self._position,
                self._config,
                self._data.fingerprint,
                loss,
            )
        self._saved = self._step
        self._reporter.phase(Phase.TRAIN)

    def _report_completed_save(self, wait: bool = False) -> None:
        step = self._checkpoints.completed(wait)
        if step is not None and self._process == 0:
            self._reporter.event(EventKind.CHECKPOINT, step=step)

    def _save_and_stop(self) -> None:
        if self._saved != self._step:
            self._save()
        self._reporter.phase(Phase.SAVE)
        self._report_completed_save(wait=True)
        raise Preempted(f"stopped at step {self._step}; its checkpoint is complete")


class Clock:
    """Throughput over the steps since the last record, without evaluations and saves."""

    def __init__(self, batch_size: int, units_per_example: int, unit: str) -> None:
        self._units = batch_size * units_per_example
        self._name = f"{unit}_per_second"
        self._since = 0.0
        self._step = 0
        self._paused = 0.0

    def start(self, step: int) -> None:
        self._since, self._step, self._paused = time.perf_counter(), step, 0.0

    def rates(self, step: int) -> dict[str, float]:
        """Throughput and seconds per step since the last call."""
        steps = step - self._step
        seconds = time.perf_counter() - self._since - self._paused
        self.start(step)
        if steps <= 0 or seconds <= 0:
            return {}
        return {self._name: steps * self._units / seconds, "seconds_per_step": seconds / steps}

    def paused(self) -> _Pause:
        return _Pause(self)

    def add_pause(self, seconds: float) -> None:
        self._paused += seconds


class _Pause:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __enter__(self) -> None:
        self._start = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self._clock.add_pause(time.perf_counter() - self._start)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def load_config(path: Any) -> Config:
    """The resolved job that the launcher wrote."""
    return Config.model_validate(json.loads(path.read_text(encoding="utf-8")))

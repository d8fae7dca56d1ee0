"""THE loop: the only file that orders step, metrics, evaluation, checkpoint and stop.

The order within a step matters:
1. wait for the oldest step in flight, so that no more than `window` are: XLA's CPU collectives deadlock in deep queues.
   To read its metrics is to wait: for one device only, while the others finish what needs nobody else
2. dispatch the next step, then write the metrics of the older one while the devices work
3. evaluate, then save: a checkpoint knows its validation loss, and metrics never lag behind a checkpoint
4. stop only between steps, when all processes have agreed to
"""

from __future__ import annotations

import json
import math
from collections import deque
from typing import Any

import jax
import numpy as np
import yaml

from .checkpoint import Checkpoints
from .config import LBFGS, Config, Ensemble, Single, saved_config
from .contract import EventKind, NotFiniteError, Phase, Workdir, WorkerEnv
from .data import load_dataset
from .data.pipeline import (
    Constant,
    Prefetcher,
    TrainBatches,
    batch_shapes,
    evaluation_batches,
    full_batch,
    padded,
)
from .distributed import agree
from .flops import step_flops
from .metrics import Writer, make_writers
from .optim import make_optimizer
from .parallel import make_strategy
from .parallel.metrics import StepMetrics
from .peak import peak_of, seconds_at_peak
from .preempt import Preempted, StopRequest
from .progress import Reporter
from .state import Batch, TrainState
from .tasks import make_task
from .throughput import Clock

Completed = tuple[int, StepMetrics, dict[str, float]]
"""A step, and what it said of itself."""


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
        self._strategy = make_strategy(config, self._task, optimizer, schedule)
        parts = self._strategy.shares * config.accumulate
        self._batch_size = padded(self._data.train.size, parts) if config.batch_size == "all" else config.batch_size
        self._window = 1 if jax.default_backend() == "cpu" else 2
        self._in_flight: deque[tuple[int, StepMetrics]] = deque()
        self._stop = StopRequest()
        self._clock = Clock(self._batch_size, self._task.units_per_example, self._task.unit, self._seconds_at_peak())
        self._writers: list[Writer] = []
        self._batches: Prefetcher[Batch] | Constant[Batch] | None = None
        self._checkpoints = Checkpoints(workdir.checkpoints, config.checkpoint, self._strategy.saves_in_parts)
        self._state: TrainState
        self._step = 0
        self._position = 0
        self._evaluated: tuple[int, float] | None = None  # step and loss of the last evaluation
        self._saved: int | None = None

    def _seconds_at_peak(self) -> float | None:
        """How long a step takes at the least on these devices; None if their peak is not known."""
        kind = jax.devices()[0].device_kind
        if peak_of(kind) is None or isinstance(self._config.optimizer, LBFGS):  # whose steps differ in length
            return None
        params = jax.eval_shape(self._task.init, jax.random.key(0))
        flops = step_flops(self._task, params, batch_shapes(self._data.train, self._batch_size))
        models = jax.device_count() if isinstance(self._config.parallel, Ensemble) else 1
        devices = 1 if isinstance(self._config.parallel, Single) else jax.device_count()
        return None if flops is None else seconds_at_peak(flops * models, kind, devices, self._config.precision)

    # --- phases ---

    def start(self) -> None:
        """Initial or restored state, data from its position on, and the writers."""
        latest = self._checkpoints.latest()
        if latest is None:
            self._state = self._strategy.init()
        else:
            self._reporter.phase(Phase.RESTORE)
            template = self._strategy.template()
            restored = self._checkpoints.restore(latest, template, self._config, self._data.fingerprint)
            self._state = self._strategy.place(restored.state)
            self._step = self._saved = restored.step
            self._position = restored.position
            if self._process == 0:
                self._reporter.event(EventKind.RESUME, step=self._step)
        if self._process == 0:
            self._workdir.config.write_text(yaml.safe_dump(saved_config(self._config), sort_keys=False))
            self._writers = make_writers(self._config, self._workdir, resumed_from=self._step)
        if self._step < self._config.steps:
            self._batches = self._train_batches()

    def _train_batches(self) -> Prefetcher[Batch] | Constant[Batch]:
        """The batches of the steps from the position on, on the devices."""
        examples, feeds = self._data.train, self._strategy.feeds
        if self._config.batch_size == "all":
            parts = self._strategy.shares * self._config.accumulate
            return Constant(self._strategy.shard(full_batch(examples, parts, *feeds)))
        batches = TrainBatches(examples, self._batch_size, *feeds, self._config.seed)
        return Prefetcher(lambda at: self._strategy.shard(batches.at(at)), self._position, self._batch_size)

    def run(self, until: int | None = None) -> None:
        """All steps that are left, or those up to step `until`."""
        config = self._config
        if self._batches is None:
            if self._process == 0:
                self._reporter.note(f"already at step {self._step} of {config.steps}: nothing left to train")
            return
        self._reporter.phase(Phase.COMPILE)
        first = self._step + 1
        for step in range(first, (until or config.steps) + 1):
            self._reporter.step = step
            with self._clock.waiting():
                batch = self._batches.get()
            done = self._complete_oldest() if len(self._in_flight) == self._window else None
            self._state, metrics = self._strategy.step(self._state, batch)
            self._in_flight.append((step, metrics))
            self._batches.refill()
            self._step = step
            self._position += self._batch_size
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
        if self._task.uses_result:
            self._reporter.phase(Phase.SAMPLE)
            params = self._strategy.result(self._state)
            text = self._task.after_training(params, self._reporter) if self._process == 0 else None
            if text is not None:
                self._workdir.sample.write_text(text, encoding="utf-8")
                self._reporter.event(EventKind.TEXT, text=text)

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()
        for writer in self._writers:
            writer.close()

    # --- metrics ---

    def _complete_oldest(self) -> Completed:
        """Waits for the oldest step in flight."""
        step, metrics = self._in_flight.popleft()
        values = metrics.read()
        self._clock.step_done(step)
        return step, metrics, values

    def _drain(self) -> None:
        """Waits for all steps in flight, and records them."""
        while self._in_flight:
            self._record(*self._complete_oldest())

    def _record(self, step: int, metrics: StepMetrics, values: dict[str, float]) -> None:
        """Raises NotFiniteError for a loss or gradient of this process that is not finite."""
        if not (math.isfinite(values["loss"]) and math.isfinite(values.get("grad_norm", 0.0))):
            self._reporter.step = step
            shown = "  ".join(f"{k} {v:g}" for k, v in values.items())
            raise NotFiniteError(
                f"the loss or its gradient is not finite in step {step} ({shown}); "
                "a lower learning rate, warm-up steps, or clipping may help"
            )
        if not _due(step, self._config.log.every) and step != self._config.steps:
            return
        averaged = self._strategy.average(metrics)
        if averaged is not metrics:
            values = averaged.read()
        record = {**self._task.train_metrics(values), **self._clock.rates()}
        for writer in self._writers:
            writer.write(step, "train", record)
        self._reporter.progress(step, self._config.steps, record)

    # --- evaluation, checkpoints, stop ---

    def _evaluate(self) -> None:
        self._drain()
        self._reporter.phase(Phase.EVALUATE)
        with self._clock.paused("evaluation"):
            metrics = self._strategy.summarize(self._evaluation_sums())
        self._evaluated = (self._step, metrics["loss"])
        for writer in self._writers:
            writer.write(self._step, "eval", metrics)
        if self._process == 0:
            self._reporter.event(EventKind.EVAL, step=self._step, **metrics)
        self._reporter.phase(Phase.TRAIN)

    def _evaluation_sums(self) -> dict[str, Any]:
        """Added up on the host in float64: the whole split may be more than float32 can count."""
        examples, batches = self._data.validation, self._config.eval.batches
        limit = None if batches == "all" else batches
        size = self._batch_size
        if self._config.batch_size == "all":
            size = padded(examples.size, self._strategy.shares)
        sums: Any = None
        for batch in evaluation_batches(examples, size, *self._strategy.feeds, limit):
            part = jax.device_get(self._strategy.evaluate(self._state, self._strategy.shard(batch)))
            wide = jax.tree.map(np.float64, part)
            sums = wide if sums is None else jax.tree.map(np.add, sums, wide)
            if self._stop.reached():
                self._save_and_stop()
        found: dict[str, Any] = sums
        return found

    def _save(self) -> None:
        self._drain()
        self._reporter.phase(Phase.SAVE)
        with self._clock.paused("checkpoints"):
            self._report_completed_save(wait=True)
            loss = self._evaluated[1] if self._evaluated and self._evaluated[0] == self._step else None
            self._checkpoints.save(
                self._step,
                self._strategy.savable(self._state),
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


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def load_config(path: Any) -> Config:
    """The resolved job that the launcher wrote."""
    return Config.model_validate(json.loads(path.read_text(encoding="utf-8")))

"""THE loop: the only file that orders step, metrics, evaluation, checkpoint and stop.

The order within a step matters:
1. wait for the oldest step in flight, so that no more than `window` are: XLA's CPU collectives deadlock in deep queues.
   Reading its metrics waits for one device only, while the others finish their local work
2. dispatch the next step, then write the metrics of the older one while the devices work
3. evaluate, then save: a checkpoint knows its validation loss, and metrics never lag behind a checkpoint
4. stop only between steps, when all processes have agreed to
"""

from __future__ import annotations

import json
import math
from collections import deque
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import yaml

from .checkpoint.pieces import connect
from .checkpoint.restore import restore_newest
from .checkpoint.store import Checkpoints, Restored
from .config import Config, saved_config
from .contract import EventKind, NotFiniteError, Phase, UserError, Workdir, WorkerEnv
from .data import load_dataset
from .data.pipeline import Constant, Prefetcher, TrainBatches, batch_shapes, evaluation_batches, full_batch, padded
from .data.saved_tokenizer import Saved, restored_tokenizer, saved_form
from .distributed import agree, meet
from .measure.epochs import EpochMeans
from .measure.flops import step_flops
from .measure.peak import peak_of, seconds_at_peak
from .measure.throughput import Clock
from .measure.writers import Writer, make_writers
from .optim import make_optimizer
from .parallel import make_strategy
from .parallel.base import Strategy
from .parallel.metrics import StepMetrics
from .state import Batch, TrainState
from .storage import make_storage
from .storage.base import Storage
from .tasks import make_task
from .worker.preempt import Preempted, StopRequest
from .worker.progress import Reporter
from .worker.workdir import replace_text

Completed = tuple[int, StepMetrics, dict[str, float]]
"""A step, its metrics as the strategy returned them, and the same as numbers."""


def train(config: Config, env: WorkerEnv, workdir: Workdir, reporter: Reporter, storage: Storage | None = None) -> None:
    """Train to the last step, from the newest checkpoint if there is one.

    `storage` is that of a bucket; None: it is found out what the folder is.

    Raises UserError for what the user can mend, NotFiniteError, and Preempted after a stop that was asked for.
    """
    reporter.phase(Phase.SETUP)
    trainer = Trainer(config, env, workdir, reporter, storage)
    trainer.start()
    try:
        trainer.run()
        trainer.finish()
    except Preempted:
        trainer.close()
        raise
    trainer.close()  # not after a failure, which must be reported at once; the process ends then anyway


class Trainer:
    """One process's part of a training job."""

    def __init__(
        self, config: Config, env: WorkerEnv, workdir: Workdir, reporter: Reporter, storage: Storage | None = None
    ) -> None:
        self._config = config
        self._workdir = workdir
        self._attempt = env.attempt
        self._reporter = reporter
        self._beat = reporter.beat
        self._process = jax.process_index()
        self._num_processes = jax.process_count()
        self._data = load_dataset(config)
        token = workdir.token(env.run_id, env.attempt)
        self._beat.part()
        is_shared = agree(env, token, self._data.fingerprint)
        self._storage = storage or make_storage(env, is_shared)
        if self._process == 0:
            token.unlink()
        self._task = make_task(config, self._data)
        self._steps = config.total_steps(self._data.train.size)
        self._strategy = self._make_strategy()
        if not self._storage.everyone_reads:
            connect()
        elif self._strategy.saves_in_parts:
            meet("before the first save")
        parts = self._strategy.shares * config.accumulate
        self._consumed = self._data.train.size if config.batch_size == "all" else config.batch_size  # by a step
        self._batch_size = padded(self._consumed, parts)  # a pod that has lost a host may not divide the job's
        self._epoch_size = config.epoch_size(self._data.train.size)
        self._means = EpochMeans(self._epoch_size) if config.epochs is not None else None
        self._ended_epochs: dict[int, int] = {}  # epoch by the step that ends it
        self._scores: dict[int, dict[str, float]] = {}  # of steps in flight
        self._window = 1 if jax.default_backend() == "cpu" else 2
        self._in_flight: deque[tuple[int, StepMetrics]] = deque()
        self._stop = StopRequest()
        self._clock = Clock(self._consumed, self._task.units_per_example, self._task.unit, self._seconds_at_peak())
        self._writers: list[Writer] = []
        self._batches: Prefetcher[Batch] | Constant[Batch] | None = None
        self._checkpoints = Checkpoints(
            workdir.checkpoints,
            config.checkpoint,
            self._strategy.saves_in_parts,
            saved_form(self._data.tokenizer),
            self._storage,
        )
        self._state: TrainState
        self._step = 0
        self._position = 0
        self._evaluated: tuple[int, float] | None = None  # step and loss of the last evaluation
        self._saved: int | None = None

    def _make_strategy(self) -> Strategy:
        optimizer, schedule = make_optimizer(self._config, self._steps)
        return make_strategy(self._config, self._task, optimizer, schedule)

    def _seconds_at_peak(self) -> float | None:
        """Return the least time of a step on these devices; None if their peak is not known."""
        kind = jax.devices()[0].device_kind
        if peak_of(kind) is None or self._config.optimizer.whole_set:  # L-BFGS, whose steps differ in length
            return None
        params = jax.eval_shape(self._task.init, jax.random.key(0))
        flops = step_flops(self._task, params, batch_shapes(self._data.train, self._batch_size))
        if flops is None:
            return None
        return seconds_at_peak(flops * self._strategy.models, kind, self._strategy.devices, self._config.precision)

    # --- phases ---

    def start(self) -> None:
        """Set up the initial or restored state, data from its position on, and the writers."""
        if self._process == 0 and (summary := self._storage.summary(self._workdir.path)):
            self._reporter.note(summary)
        restored = restore_newest(
            self._checkpoints, self._strategy.template, self._config, self._data.fingerprint, self._reporter
        )
        if restored is None:
            self._tell_of_lost_disk()
            self._state = self._strategy.init()
        else:
            self._resume(restored)
        if self._process == 0:
            self._write_config()
            self._writers = make_writers(self._config, self._workdir, self._step, self._reporter.note)
            self._storage.after_write()
        if self._step < self._steps:
            self._batches = self._train_batches()

    def _tell_of_lost_disk(self) -> None:
        """Warn of a restart without a checkpoint on process 0's disk: another host may have been the first one."""
        if self._process == 0 and self._attempt and not self._storage.everyone_reads:
            where = self._storage.where(self._workdir.path)
            self._reporter.note(
                f"the run has started again, but there is no checkpoint on {where}: it begins with "
                "step 1. If another host was the first one before, checkpoints may be on its disk"
            )

    def _write_config(self) -> None:
        path = self._workdir.config
        try:
            replace_text(path, yaml.safe_dump(saved_config(self._config), sort_keys=False))
        except OSError as error:
            raise UserError(
                f"the job's config cannot be written to {path}: {error.strerror}; move it away, or choose another workdir "
                "with --workdir DIR"
            ) from None

    def _resume(self, restored: Restored) -> None:
        """Go on from a checkpoint. The schedule is for the total number of steps with this job's batches."""
        self._step = self._saved = restored.step
        self._position = restored.position
        self._use_tokenizer(restored.tokenizer)
        if self._means is not None:
            self._means.restore(restored.epoch_means)
            if self._config.drop_last:
                self._position = self._means.position_from(restored.epoch_means, self._position, self._consumed)
        steps = self._config.total_steps(self._data.train.size, self._step, self._position)
        if steps != self._steps:
            self._steps = steps
            self._strategy = self._make_strategy()
        self._state = self._strategy.place(restored.state)
        if self._process == 0:
            self._report_resume(restored)

    def _use_tokenizer(self, saved: Saved | None) -> None:
        """Sample text with the checkpoint's tokenizer if this job names none."""
        if saved is None or self._data.tokenizer is not None or not self._config.sample.tokens:
            return
        self._data = replace(self._data, tokenizer=restored_tokenizer(saved))
        self._task = make_task(self._config, self._data)
        self._strategy = self._make_strategy()

    def _report_resume(self, restored: Restored) -> None:
        self._reporter.event(EventKind.RESUME, step=restored.step)
        if restored.changes:
            rows = "\n".join(f"  {row}" for row in restored.changes)
            self._reporter.note(f"resumed with other values than those of the checkpoint\n{rows}")

    def _train_batches(self) -> Prefetcher[Batch] | Constant[Batch]:
        """Return the batches of the steps from the position on, on the devices."""
        examples, shard = self._data.train, self._strategy.data_shard
        parts = self._strategy.shares * self._config.accumulate
        if self._config.batch_size == "all":
            return Constant(self._strategy.shard(full_batch(examples, parts, *shard)))
        batches = TrainBatches(examples, self._consumed, *shard, self._config.seed, self._epoch_size, parts)
        return Prefetcher(lambda at: self._strategy.shard(batches.at(at)), self._position, self._consumed)

    def run(self, until: int | None = None) -> None:
        """Run all remaining steps, or those up to step `until`."""
        config = self._config
        if self._batches is None:
            if self._process == 0:
                self._reporter.note(f"already at step {self._step} of {self._steps}: nothing left to train")
            return
        self._reporter.phase(Phase.COMPILE)
        first = self._step + 1
        for step in range(first, (until or self._steps) + 1):
            self._reporter.begin_step(step)
            if self._reporter.rehearsal is not None:
                self._state = self._reporter.rehearsal.state(self._state)
            with self._clock.waiting(), self._beat.data:
                batch = self._batches.get()
            done = self._complete_oldest() if len(self._in_flight) == self._window else None
            if step == first:
                self._beat.part()  # from here on it needs nobody but the compiler
            if self._is_logged(step) and (scores := self._strategy.scores(self._state, batch)):
                self._scores[step] = scores
            with self._beat.dispatch:
                self._state, metrics = self._strategy.step(self._state, batch)
            self._beat.arrive(step)
            self._in_flight.append((step, metrics))
            self._batches.refill()
            self._step = step
            self._position += self._consumed
            if self._means is not None and (epoch := self._means.epoch_of(self._position, self._consumed)):
                self._ended_epochs[step] = epoch
            if step == first:
                jax.block_until_ready(metrics)
                self._reporter.phase(Phase.TRAIN)
                self._clock.start(step)
                self._checkpoints.prepare()
            if done:
                self._record(*done)
            self._report_completed_save()
            if _due(step, config.eval.every):
                self._evaluate()
            if _due(step, config.checkpoint.every) and step < self._steps:
                self._save()
            if self._stop.reached():
                self._save_and_stop()
        self._drain()

    def finish(self) -> None:
        """Do the final evaluation, the final checkpoint, and the task's work with the result."""
        if self._evaluated is None or self._evaluated[0] != self._step:
            self._evaluate()
        if self._saved != self._step:
            self._save()
        self._reporter.phase(Phase.SAVE)
        self._report_completed_save(wait=True)
        if self._task.uses_result:
            if self._stop.reached():  # nothing is left to save, and the text may take longer than the grace
                raise Preempted("stopped before text was sampled; the checkpoint of the last step is complete")
            self._reporter.phase(Phase.SAMPLE)
            params = self._strategy.result(self._state)
            after_training = self._task.after_training if self._process == 0 else None
            text = after_training(params, self._reporter) if after_training is not None else None
            if text is not None:
                replace_text(self._workdir.sample, text)
                self._storage.after_write()
                self._reporter.event(EventKind.TEXT, text=text)

    def close(self) -> None:
        if self._batches is not None:
            self._batches.close()
        for writer in self._writers:
            writer.close()
        if self._process == 0:
            self._storage.after_write()
            self._storage.close()

    # --- metrics ---

    def _complete_oldest(self) -> Completed:
        """Wait for the oldest step in flight."""
        step, metrics = self._in_flight.popleft()
        with self._beat.waiting:
            values = metrics.read()
        self._beat.complete(step)
        self._clock.step_done(step)
        return step, metrics, values

    def _drain(self) -> None:
        """Wait for all steps in flight, and record them."""
        while self._in_flight:
            self._record(*self._complete_oldest())

    def _record(self, step: int, metrics: StepMetrics, values: dict[str, float]) -> None:
        """Record a step. Raises NotFiniteError for a loss or gradient of this process that is not finite."""
        if not (math.isfinite(values["loss"]) and math.isfinite(values.get("grad_norm", 0.0))):
            self._reporter.step = step
            shown = "  ".join(f"{k} {v:g}" for k, v in values.items())
            raise NotFiniteError(
                f"the loss or its gradient is not finite in step {step} ({shown}); "
                "a lower learning rate, warm-up steps, or clipping may help"
            )
        logged = self._is_logged(step)
        if not logged and self._means is None:
            return
        averaged = self._strategy.average(metrics)
        if averaged is not metrics:
            values = averaged.read()
        values = {**values, **self._scores.pop(step, {})}
        if logged:
            record = {**self._task.train_metrics(values), **self._clock.rates()}
            self._write(step, "train", record)
            self._reporter.progress(step, self._steps, record)
        if self._means is not None:
            self._means.add(values)
            if epoch := self._ended_epochs.pop(step, None):
                self._record_epoch(step, epoch, self._task.train_metrics(self._means.take()))

    def _record_epoch(self, step: int, epoch: int, means: dict[str, float]) -> None:
        self._write(step, "epoch", {"epoch": epoch, **means})
        if self._process == 0:
            self._reporter.event(EventKind.EPOCH, step=step, epoch=epoch, epochs=self._config.epochs, **means)

    def _write(self, step: int, kind: str, metrics: dict[str, Any]) -> None:
        if self._process != 0:
            return
        for writer in self._writers:
            writer.write(step, kind, metrics)
        self._storage.after_write()

    def _is_logged(self, step: int) -> bool:
        return _due(step, self._config.log.every) or step == self._steps

    # --- evaluation, checkpoints, stop ---

    def _evaluate(self) -> None:
        self._drain()
        self._reporter.phase(Phase.EVALUATE)
        with self._clock.paused("evaluation"):
            metrics = self._strategy.summarize(self._evaluation_sums())
        self._evaluated = (self._step, metrics["loss"])
        self._write(self._step, "eval", metrics)
        if self._process == 0:
            self._reporter.event(EventKind.EVAL, step=self._step, **metrics)
        self._reporter.phase(Phase.TRAIN)

    def _evaluation_sums(self) -> dict[str, Any]:
        """Return sums over the split, added up on the host in float64: float32 cannot count a large split exactly."""
        examples, batches = self._data.validation, self._config.eval.batches
        limit = None if batches == "all" else batches
        size = examples.size if self._config.batch_size == "all" else self._consumed
        sums: Any = None
        for batch in evaluation_batches(examples, size, *self._strategy.data_shard, limit, self._strategy.shares):
            shard = self._strategy.shard(batch)
            self._beat.part()
            part = jax.device_get(self._strategy.evaluate(self._state, shard))
            wide = jax.tree.map(np.float64, part)
            sums = wide if sums is None else jax.tree.map(np.add, sums, wide)
            if self._stop.reached():
                self._save_and_stop()
        totals: dict[str, Any] = sums
        return totals

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
                self._means.saved() if self._means else None,
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
    """Return the resolved job that the launcher wrote, as JSON. Raises OSError or ValueError."""
    return Config.model_validate(json.loads(path.read_text(encoding="utf-8")))

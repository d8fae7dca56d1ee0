"""The training loop: the only module that orders step, metrics, evaluation, checkpoint and stop.

The order within a step matters:
1. Wait for the oldest step in flight, so that at most `window` steps are in flight: XLA's CPU collectives deadlock in deep
   queues. Reading its metrics waits for one device only, while the others finish their local work.
2. Dispatch the next step, then write the metrics of the older one while the devices work.
3. Evaluate, then save, so that a checkpoint has its validation loss, and metrics never lag behind a checkpoint.
4. Stop only between steps, when all processes have agreed to.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from .callbacks import Callbacks
from .checkpoint.first_model import with_first_model
from .checkpoint.store import Restored
from .config import Config
from .config.model import DecoderModel, GPT2Model
from .config.optimizer import AdamW, Cosine, Curve
from .config.sections import Eval
from .contract import NotFiniteError, Phase, UserError, Workdir, WorkerEnv
from .data.base import Dataset, Examples
from .data.pipeline import evaluation_batches, padded
from .data.saved_tokenizer import with_saved_tokenizer
from .devices import Devices
from .disk_cache import DiskCache
from .distributed import gather
from .events import SHOWN, EventKind
from .executables.pod_executables import Executables, StoredExecutables
from .feed import TrainFeed, open_feed
from .job_counts import JobCounts, is_due
from .measure.epochs import EpochMeans
from .measure.finite import FiniteCheck, arrays_with_nan
from .measure.flops import step_seconds_at_peak
from .measure.throughput import Clock
from .measure.tracker import Ending
from .measure.validation import validate
from .models.attention import resolve
from .models.pretrained import load_weights
from .optim import make_optimizer
from .parallel import make_strategy
from .parallel.base import Strategy
from .parallel.metrics import StepMetrics
from .replicas import check_initial
from .results import Results, agree_on_storage
from .save_pace import SavePace
from .state import Batch, TrainState
from .storage.base import Storage
from .storage.bucket_data import load_data
from .storage.bucket_model import model_in_bucket
from .tasks import make_task
from .verification import Verifier
from .wording import counted, first_names
from .worker.blocked import BlockedData, pod_store
from .worker.fault_injection import WRONG_FACTOR
from .worker.memory import freed_memory_returned
from .worker.preempt import Preempted, StopRequest
from .worker.profiler import Profiler
from .worker.progress import Reporter

_NAMED = 3  # most parameters or metrics that a line names


@dataclass(frozen=True)
class DispatchedStep:
    """A step that was given to the devices."""

    step: int
    position: int
    """Number of examples consumed, with those of the step."""
    metrics: StepMetrics
    """Its metrics on the devices."""
    scores: dict[str, float]
    """Further metrics, computed before the step; none if it is not logged."""
    epoch: int | None
    """Number of the epoch that ends with it; None if none does."""


def train(
    config: Config,
    env: WorkerEnv,
    workdir: Workdir,
    reporter: Reporter,
    storage: Storage | None = None,
    cache: DiskCache | None = None,
) -> None:
    """Train to the last step, starting from the newest checkpoint if there is one.

    Args:
        config: the job.
        env: this process's place in the pod.
        workdir: folder of the results on this host.
        reporter: gets events and notes.
        storage: storage of a workdir in a bucket; None: find out whether the processes share the folder.
        cache: cache of executables.

    Raises:
        UserError: the user can correct the error.
        NotFiniteError: the loss or gradient is not finite.
        Preempted: the pod was asked to stop, and the checkpoint is saved.
    """
    reporter.phase(Phase.SETUP)
    trainer = Trainer(config, env, workdir, reporter, storage, cache)
    trainer.start()
    try:
        trainer.run()
        trainer.finish()
    except Preempted:
        trainer.close("stopped")
        raise
    trainer.close()  # not after a failure, which must be reported at once and ends the process


class Trainer:
    """One process's part in a training job."""

    def __init__(
        self,
        config: Config,
        env: WorkerEnv,
        workdir: Workdir,
        reporter: Reporter,
        storage: Storage | None = None,
        cache: DiskCache | None = None,
    ) -> None:
        config, self._published = with_first_model(config, workdir, storage, reporter.note)
        self._reporter = reporter
        reporter.shown = config.log.show
        self._leads = jax.process_index() == 0
        self._config, kernel = resolve(config, Devices.here())
        self._data = load_data(config, reporter.note if self._leads else None, reporter.record.part)
        reporter.record.part()
        if self._data.note:
            self._note(self._data.note)
        if kernel is not None and kernel.has_alternatives:
            self._note(str(kernel))
        storage = agree_on_storage(env, workdir, self._data.fingerprint, storage)
        self._counts = JobCounts.at_start(self._config, self._data)
        stored = None
        if env.executables:
            tell = reporter.note if self._leads else None
            stored = StoredExecutables(Path(env.executables).expanduser(), env.host, tell)
        self._executables = Executables(pod_store(), jax.process_index(), cache, reporter.record, stored)
        self._make_step()
        if self._task.has_step and (names := _unused(config, self._data)):
            self._note(
                f"task {config.task} has a `step` of its own: podrun ignores {' and '.join(names)}, which its code can read "
                "in `config`"
            )
        self._results = Results(
            config, env, workdir, storage, self._data, self._strategy.saves_in_parts, reporter, self._published
        )
        self._in_flight: deque[DispatchedStep] = deque(maxlen=1 if jax.default_backend() == "cpu" else 2)
        self._finite = FiniteCheck(config.skip_nonfinite, self._note, self._task.has_step)
        self._callbacks = Callbacks(config)
        self._stop = StopRequest()
        self._profiler = Profiler(
            env.directory, jax.process_index(), reporter, lambda: jax.block_until_ready(self._state)
        )
        self._blocked = BlockedData(reporter, config.launch.stop_grace / 2, pod_store())
        consumed = self._counts.consumed
        size = padded(consumed, self._strategy.shares * config.accumulate)  # more on a pod that has lost a host
        least = step_seconds_at_peak(config, self._task, self._strategy, self._data.train, size)
        self._clock = Clock(consumed, self._task.units_per_example, self._task.unit, least)
        self._feed: TrainFeed | None = None  # while no step is left
        self._owes_evaluation = False  # an earlier run was stopped in the evaluation after the step that is resumed
        self._was_complete = False  # an earlier run has done and evaluated all steps of the same job
        self._first = 0  # number of the first step of this process
        self._host = env.host
        self._batch: Batch = {}  # of the last step, if steps are compared
        self._compared, self._comparisons = 0, 0  # the last step that was compared between processes, and how many were
        self._pace: SavePace | None = None  # with `checkpoint.every: auto`, from the first step on
        self._told_pace = 0  # number of steps between two saves that the user was told
        self._state: TrainState

    def _make_step(self, is_shared: bool = True) -> None:
        """Make the task and the strategy for the job's number of steps. `is_shared`: one process compiles for all."""
        self._task = make_task(self._config, self._data)
        optimizer, schedule = make_optimizer(self._config, self._counts.steps, self._task.stacked)
        self._strategy: Strategy = make_strategy(self._config, self._task, optimizer, schedule)
        if is_shared:
            self._strategy.share_executables(self._executables)

    def _note(self, message: str) -> None:
        """Tell the user something that is the same on all processes: process 0 does."""
        if self._leads:
            self._reporter.note(message)

    # --- phases ---

    def start(self) -> None:
        """Set up the initial or restored state, the writers, and the batches from the state's position on."""
        restored = self._results.restore(self._strategy.template)
        if restored is None:
            self._begin()
        else:
            self._resume(restored)
        if skipped := self._counts.order.skipped:
            self._note(f"data.skip leaves out {sum(b - a for a, b in skipped):,} examples")
        if raised := self._strategy.raised:
            self._note(
                f"the initial parameters {first_names(raised, _NAMED)} become float32, which the optimizer needs; "
                "`precision` is for the computation"
            )
        schedule = None if self._task.has_step else self._config.schedule
        if isinstance(schedule, Curve) and (short := schedule.cut_short(self._counts.steps)):
            self._note(short)
        self._make_verifier()
        self._results.open(self._counts.step)
        if not self._counts.is_over:
            states = restored.counters.streams if restored else None
            self._feed = open_feed(self._config, self._data.train, self._strategy, self._counts, states, self._note)
            if restored is not None:
                self._keep_in_memory()  # a host that is new here lacks its part

    def _begin(self) -> None:
        """Make the initial state: of random parameters, or of those of a published model."""
        section = self._config.model
        published = self._published
        if isinstance(section, DecoderModel) and published is not None:
            folder = model_in_bucket(self._config, self._reporter.note)
            with freed_memory_returned():
                self._state = self._strategy.init_from(
                    lambda form: load_weights(section, published, form, self._reporter.record.part, folder=folder)
                )
                jax.block_until_ready(self._state)  # its optimizer state is still being made
            advice = f"every host must have the same files in {folder or section.init_from}"
            self._note(f"the weights come from {folder or section.init_from}")
        else:
            self._state = self._strategy.init()
            advice = "`init` may use only its key: no other random numbers, no time, no host name"
        if not self._strategy.model_per_device:  # otherwise each device has another model
            check_initial((self._state.params, self._state.model_state), advice)

    def _resume(self, restored: Restored) -> None:
        """Continue from a checkpoint. The schedule is for the total number of steps, which depends on the batch size."""
        before = self._counts.steps
        self._counts.resume(restored.step, restored.position, restored.counters)
        if restored.metrics is not None:
            self._counts.evaluated = restored.step, restored.metrics
        data = with_saved_tokenizer(self._data, restored.tokenizer) if self._config.sample.tokens else self._data
        if self._counts.steps != before or data is not self._data:
            self._data = data
            self._make_step()
        self._state = self._strategy.place(restored.state)
        self._owes_evaluation = is_due(restored.step, self._config.eval.every) and restored.counters.evaluated is False
        self._was_complete = self._counts.is_over and bool(restored.counters.evaluated) and not restored.changes

    def run(self, until: int | None = None) -> None:
        """Run the remaining steps, up to step `until` if it is given."""
        config, counts, feed, record = self._config, self._counts, self._feed, self._reporter.record
        if self._owes_evaluation:
            self._evaluate()
        if feed is None or counts.best.is_exhausted:
            if counts.best.is_exhausted:
                self._note(counts.early_end())
            elif counts.is_cut:
                # `podrun ps` and the page show where it is
                self._reporter.progress(counts.step, max(counts.step, counts.last), {})
                self._note(counts.cut())
            else:
                self._reporter.nothing_left(counts.step, counts.steps)
            return
        every = config.checkpoint.every
        if every != "auto" and is_due(counts.step, every) and self._results.saved != counts.step > 0:
            self._save(then=None)  # resumed from memory, because its save on disk has failed
            if self._stop.reached():  # now: compiling may take longer than the grace period
                self._save_and_stop()
        self._callbacks.call("on_start", counts.step)
        self._reporter.phase(Phase.COMPILE)
        self._first = first = counts.step + 1
        for step in range(first, (until or counts.last) + 1):
            self._reporter.begin_step(step)
            self._profiler.begin_step(step)
            if self._reporter.faults is not None:
                self._state = self._reporter.faults.state(self._state)
                if self._reporter.faults.computes_wrongly and self._strategy.gradient_factor == 1 and step > first:
                    self._compute_wrongly()  # the pod has compiled its shared step
            with self._clock.waiting(), record.data:
                batch = feed.batches.get(self._check_blocked)
            if self._verifier is not None:
                self._batch = batch
            done = self._complete_oldest() if len(self._in_flight) == self._in_flight.maxlen else None
            if step == first:
                record.part()  # from here on it waits only for the compiler
            scores = self._strategy.scores(self._state, batch) if counts.is_logged(step) else {}
            with record.dispatch:
                self._state, metrics = self._strategy.step(self._state, batch)
            record.arrive(step)
            epoch = counts.advance()
            self._in_flight.append(DispatchedStep(step, counts.position, metrics, scores, epoch))
            feed.batches.refill()
            if step == first:
                jax.block_until_ready(metrics)
                self._verify()  # now, so that its program is compiled in the phase for that
                self._reporter.phase(Phase.TRAIN)
                self._clock.start(step)
                self._results.prepare_saves()
                if every == "auto":
                    self._pace = SavePace(config.eval.every, step, time.monotonic())
            if done:
                self._record(*done)
            self._results.check_save()
            if is_due(step, config.launch.verify_every):
                self._verify()
            if is_due(step, config.eval.every):
                self._evaluate()
                if counts.best.is_exhausted and step < counts.last:
                    break
            saves = step < counts.last and self._is_save_due(step)
            if (saves or is_due(step, config.checkpoint.memory_every)) and step < counts.last:
                self._keep_in_memory()  # also one that is saved, so that no newer one is on disk
            if saves:
                begun = time.monotonic()
                self._verify()
                self._save()
                self._plan_next_save(begun)
            if self._stop.reached():
                self._save_and_stop()
        self._profiler.end()
        self._drain()
        if counts.best.is_exhausted and counts.step < counts.steps:
            self._note(counts.early_end())
        elif counts.is_cut:
            self._note(counts.cut())

    def finish(self) -> None:
        """Do the final evaluation, the final checkpoint, and the task's work with the trained parameters.

        What an earlier run has done is not repeated. A run that ends before the job's last step only saves.
        """
        if self._counts.evaluation() is None and not self._was_complete and not self._counts.is_cut:
            self._evaluate()
        self._complete_save()
        if self._comparisons:
            self._note(
                f"launch.verify_every: all devices agreed bit for bit in {counted(self._comparisons, 'comparison')}"
            )
        if self._counts.is_cut:
            return
        if self._feed is not None:
            self._call_back("on_end", self._counts.step, self._state)
        if self._task.uses_result and not (self._was_complete and self._results.was_sampled()):
            if self._stop.reached():  # everything is saved, and sampling may take longer than the grace period
                raise Preempted("stopped before text was sampled; the checkpoint of the last step is complete")
            self._reporter.phase(Phase.SAMPLE)
            params = self._strategy.result(self._state)
            after_training = self._task.after_training if self._leads else None
            text = after_training(params, self._reporter) if after_training is not None else None
            if text is not None:
                self._results.write_sample(text)

    def close(self, status: Ending = "done") -> None:
        if self._feed is not None:
            self._feed.batches.close()
        self._results.close(status)

    # --- metrics ---

    def _complete_oldest(self) -> tuple[DispatchedStep, dict[str, float]]:
        """Wait for the oldest step in flight, and return it with its metrics as numbers."""
        done = self._in_flight.popleft()
        with self._reporter.record.waiting:
            values = done.metrics.read()
        self._reporter.record.complete(done.step)
        self._clock.step_done(done.step)
        return done, values

    def _drain(self) -> None:
        """Wait for all steps in flight and record them."""
        while self._in_flight:
            self._record(*self._complete_oldest())

    def _record(self, done: DispatchedStep, values: dict[str, float]) -> None:
        """Record a completed step.

        Raises NotFiniteError if its loss or gradient is not finite and no more steps may be skipped.
        """
        try:
            is_finite = self._finite.passes(done.step, values)
        except NotFiniteError:
            self._reporter.step = done.step
            raise
        logged, is_first = self._counts.is_logged(done.step), done.step == self._first
        if not logged and not is_first and self._counts.epoch is None:
            return
        averaged = self._strategy.average(done.metrics)
        if averaged is not done.metrics:
            values = averaged.read()
        values = {**values, **done.scores}
        if (logged or is_first) and is_finite:  # the first one is shown, so that the user sees that the job works
            epochs = {
                f"{name}/epochs": value for name, value in self._counts.order.source_epochs(done.position).items()
            }
            seen = {**self._task.units_seen(done.position), **epochs}
            record = {**self._task.train_metrics(values), **seen, **self._clock.rates()}
            if self._config.log.show == SHOWN and not values.keys() & {*SHOWN}:
                self._reporter.shown = tuple(values)[:_NAMED]
            if logged:
                self._results.write(done.step, "train", record)
            self._reporter.progress(done.step, self._counts.last, record)
            if logged:
                self._call_back("on_step", done.step, dict(record))
        if self._counts.epoch is not None:
            self._count_in_epoch(self._counts.epoch, done, values if is_finite else {})

    def _count_in_epoch(self, means: EpochMeans, done: DispatchedStep, values: dict[str, float]) -> None:
        """Add a step's metrics to the means of its epoch, and report the means if the epoch ends with this step."""
        means.add(values)
        if done.epoch is None or not means.sums:  # no sums: all steps of the epoch were skipped
            return
        record = {"epoch": done.epoch, **self._task.train_metrics(means.take())}
        epochs = self._config.epochs
        assert epochs is not None
        self._results.report(
            {"event": EventKind.EPOCH, "step": done.step, "epoch": done.epoch, "epochs": epochs}, record
        )

    # --- verification ---

    def _compute_wrongly(self) -> None:
        """Compute slightly wrong gradients from now on, by programs that this process alone compiles.

        A step of global arrays stays as it is, since processes with different programs would wait for each other in vain.
        """
        if self._task.has_step or self._strategy.saves_in_parts:
            raise UserError(
                "--inject wrong_sum needs a task with a `loss`, and devices that hold the whole state; take bitflip"
            )
        if not self._strategy.is_global:
            before = self._strategy
            self._make_step(is_shared=False)
            self._strategy.take_place_of(before)
        elif self._verifier is None:
            raise UserError(
                "--inject wrong_sum with `parallel: jit` or `explicit` changes only comparisons; set launch.verify_every"
            )
        self._strategy.gradient_factor = WRONG_FACTOR
        self._make_verifier(is_shared=False)

    def _make_verifier(self, is_shared: bool = True) -> None:
        """Prepare the comparisons between processes, if the job has some and they can be made."""
        self._verifier: Verifier | None = None
        if not self._config.launch.verify_every or self._strategy.model_per_device:
            return
        executables = self._executables if is_shared else None
        agreed = self._compared or None
        verifier = Verifier(self._config, self._task, self._strategy, self._host, executables, agreed)
        if not verifier.can_compare(self._state):
            self._note("launch.verify_every: no two devices hold the same part of the state, so nothing is compared")
            return
        self._verifier = verifier
        if is_shared and verifier.why_state_only:
            self._note(f"launch.verify_every compares the state only, because {verifier.why_state_only}")

    def _verify(self) -> None:
        """Compare the devices after the last step, unless that was done. Raises DivergedError if they differ."""
        step = self._counts.step
        if self._verifier is None or self._compared == step or not self._batch:
            return
        if step != self._first:
            self._drain()
        self._reporter.record.part()
        with self._clock.paused("verification"):
            jax.block_until_ready(self._state)
            record = self._verifier.check(self._state, self._batch, step, self._note)
        if self._leads:
            self._reporter.event(record)
        self._compared = step
        self._comparisons += 1

    # --- evaluation, checkpoints, stop ---

    def _evaluate(self) -> None:
        if not self._task.evaluates:
            return
        self._drain()
        self._reporter.phase(Phase.EVALUATE)
        strategy = self._strategy
        with self._clock.paused("evaluation"):
            metrics = validate(
                self._data, strategy, lambda examples: strategy.sums(self._state, self._evaluation_batches(examples))
            )
        numbers = {name: float(value) for name, value in metrics.items() if isinstance(value, (int, float))}
        if not self._counts.add_evaluation(numbers) and (
            not self._task.has_step or self._config.eval.best != Eval().best or self._config.eval.patience
        ):
            metric, names = self._counts.best.ranking.metric, ", ".join(numbers)
            raise UserError(f"eval.best: an evaluation has no metric {metric!r}; it has {names}")
        self._results.report({"event": EventKind.EVAL, "step": self._counts.step}, metrics)
        self._call_back("on_evaluation", self._counts.step, dict(metrics), self._state)
        self._reporter.phase(Phase.TRAIN)

    def _call_back(self, moment: str, step: int, *rest: Any) -> None:
        """Call the callbacks that have a method for this moment, on all processes.

        The time of this call does not count as step time.
        """
        if not self._callbacks:
            return
        given = [self._task.users_state(one.best) if isinstance(one, TrainState) else one for one in rest]
        with self._clock.paused("callbacks"):
            self._callbacks.call(moment, step, *given)
        self._reporter.record.part()

    def _evaluation_batches(self, examples: Examples) -> Iterator[Batch]:
        """Yield the batches of an evaluation, sharded over the devices. Raises Preempted if the pod stops meanwhile."""
        batches = self._config.eval.batches
        limit = None if batches == "all" else batches
        size = examples.size if self._config.batch_size == "all" else self._counts.consumed
        for batch in evaluation_batches(examples, size, *self._strategy.data_shard, limit, self._strategy.shares):
            shard = self._strategy.shard(batch)
            self._reporter.record.part()
            yield shard
            if self._stop.reached():
                self._save_and_stop()

    def _save(self, then: Phase | None = Phase.TRAIN) -> None:
        """Start a save of the present state. `then`: the phase that follows; None: the caller begins it."""
        self._drain()
        self._require_finite()
        self._reporter.phase(Phase.SAVE)
        with self._clock.paused("checkpoints"):
            counts = self._counts
            self._results.save(
                counts.step,
                self._strategy.savable(self._state),
                counts.position,
                counts.evaluation() or {},
                counts.counters(self._streams()),
            )
        if then is not None:
            self._reporter.phase(then)

    def _is_save_due(self, step: int) -> bool:
        """Return whether to save after a step that is not the last one. The same on all processes."""
        every = self._config.checkpoint.every
        if every != "auto":
            return is_due(step, every)
        if self._pace is None or step != self._pace.next:
            return False
        self._drain()
        self._results.prepare_saves(wait=True)  # no part of what a save costs
        later = self._of_process_zero(self._pace.waits(step) if self._results.is_saving else 0)
        self._look_at(step + later)
        return not later

    def _plan_next_save(self, begun: float) -> None:
        """Agree after which step to save next, now that the cost of the last save is known: with `checkpoint.every: auto`."""
        if self._pace is None:
            return
        step, now = self._counts.step, time.monotonic()
        until = self._of_process_zero(self._pace.saved(step, begun, now))
        self._look_at(step + until)
        if not self._told_pace or not self._told_pace / 2 <= until <= self._told_pace * 2:
            self._told_pace = until
            self._note(
                f"checkpoint.every: auto: the next save is {counted(self._results.next_save - step, 'step')} later; training "
                f"stopped for {now - begun:.2g} s for this one"
            )

    def _look_at(self, step: int) -> None:
        """Set after which step to look whether to save. The last step is saved in any case."""
        assert self._pace is not None
        self._pace.next, self._results.next_save = step, min(step, self._counts.last)

    def _of_process_zero(self, steps: int) -> int:
        """Return a number of process 0, which alone knows the times. No step may be in flight."""
        with self._clock.paused("checkpoints"):
            jax.block_until_ready(self._state)  # on CPU, only one collective operation may be in flight
            return int(gather([steps])[0, 0])

    def _keep_in_memory(self) -> None:
        """Keep the state in the memory of the hosts, if the job wants that."""
        if not self._results.keeps_in_memory:
            return
        self._verify()
        self._drain()
        self._require_finite()
        with self._clock.paused("checkpoints"):
            counts, state = self._counts, self._strategy.savable(self._state)
            jax.block_until_ready(state)  # on CPU, only one collective operation may be in flight
            self._results.keep_in_memory(
                counts.step, state, counts.position, counts.evaluation(), counts.counters(self._streams())
            )

    def _streams(self) -> list[str] | None:
        return self._feed.streams_at(self._counts.position) if self._feed is not None else None

    def _require_finite(self) -> None:
        """Raise NotFiniteError if the state has NaN, which only a task with its own step has not noticed."""
        if self._task.has_step and (names := arrays_with_nan(self._state.params)):
            raise NotFiniteError(
                f"the state after step {self._counts.step} has NaN ({first_names(names, _NAMED)}), with which no resumed run "
                "could go on, so it is not saved; a lower learning rate or clipping may help"
            )

    def _complete_save(self) -> None:
        """Save the last step done, unless it is saved, and wait until its checkpoint is complete."""
        self._results.next_save = 0  # there is none after it
        if self._results.saved != self._counts.step:
            self._verify()
            self._save()
        self._reporter.phase(Phase.SAVE)
        self._results.check_save(wait=True)

    def _save_and_stop(self) -> None:
        self._complete_save()
        raise Preempted(f"stopped at step {self._counts.step}; its checkpoint is complete")

    def _check_blocked(self) -> None:
        """Save alone and end this process, if the pod is asked to stop while it waits for data."""
        self._blocked.check(self._can_save_alone, self._save_alone)

    def _can_save_alone(self) -> bool:
        ready = all(done.metrics.complete for done in self._in_flight)
        # The states of iterators come from all processes.
        alone = self._results.can_save_alone and self._feed is not None and self._feed.stream is None
        return ready and self._reporter.last_phase == Phase.TRAIN and alone

    def _save_alone(self) -> None:
        self._drain()
        self._results.save_alone(self._counts.step, self._save)
        self._results.close("stopped")


def _unused(config: Config, data: Dataset) -> list[str]:
    """Return the sections that the job sets although a task with its own step ignores them.

    With data of tokens, `model` is not returned, because its context is used.
    """
    defaults = {"model": GPT2Model(), "optimizer": AdamW(), "schedule": Cosine()}
    given = [name for name, default in defaults.items() if getattr(config, name) != default]
    return [name for name in given if name != "model" or not data.vocabulary]

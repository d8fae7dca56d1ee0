"""Compute steps of a run again from its checkpoint, several times, and report their digests: `podrun replay`.

The launcher compares them: between repetitions, between devices, and with the run's record. Nothing is written to the
workdir, in which the run may be training.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import NamedTuple

import jax

from .checkpoint.messages import connect
from .checkpoint.metadata import JobInputs
from .checkpoint.restore import restore_step
from .checkpoint.saved_model import checkpoint_before, checkpoint_of
from .checkpoint.store import Checkpoints, Restored
from .config import Config
from .contract import Phase, RefusedError, Replay, UserError, Workdir, WorkerEnv
from .data.saved_tokenizer import saved_form
from .devices import Devices
from .disk_cache import DiskCache
from .evaluate.pod import Chosen, choose
from .events import EventKind
from .executables.pod_executables import Executables
from .feed import open_feed
from .job_counts import JobCounts
from .majority import odd_results
from .models.attention import resolve
from .models.pretrained import with_architecture
from .optim import make_optimizer
from .parallel import make_strategy
from .parallel.base import Strategy
from .ranking import Ranking
from .state import Batch, TrainState
from .storage.base import Storage
from .storage.bucket_data import load_data
from .storage.process_disk import ProcessDisk
from .storage.shared_folder import SHARED_FOLDER
from .tasks import make_task
from .verification import Verifier
from .wording import first_names
from .worker.blocked import pod_store
from .worker.fault_injection import WRONG_FACTOR, inject_faults
from .worker.progress import Reporter


def replay(
    config: Config,
    env: WorkerEnv,
    workdir: Workdir,
    bucket: str | None,
    reporter: Reporter,
    cache: DiskCache | None = None,
) -> None:
    """Compute steps again, and report their digests on process 0. Called on all processes.

    Args:
        config: the job of the run.
        env: this process's place in the pod, with the `Replay`.
        workdir: folder of the results on this host.
        bucket: URL of the workdir if it is in a bucket. Process 0 downloads the checkpoint to its folder of this attempt.
        reporter: gets events and notes.
        cache: cache of executables.

    Raises:
        UserError: there is no checkpoint before the steps, it cannot be read, or the run has fewer steps.
        UnavailableError: the bucket cannot be reached.
    """
    wanted = Replay(**json.loads(env.replay))
    reporter.phase(Phase.SETUP)
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=env.directory) as spool:
        start = choose(
            workdir, bucket, Path(spool, "start"), lambda dir: checkpoint_before(dir, wanted.first), reporter
        )
        assert start is not None
        replayer = Replayer(start, wanted, config, env, workdir, reporter, cache)
        for repetition in range(1, wanted.times + 1):
            replayer.repeat(repetition)
        end = choose(workdir, bucket, Path(spool, "end"), lambda dir: checkpoint_of(dir, wanted.last), reporter)
        if end is not None:
            replayer.report_saved(end)


class _Program(NamedTuple):
    """The program of the steps, and of their digests."""

    strategy: Strategy
    verifier: Verifier


class Replayer:
    """One process's part in a replay."""

    def __init__(
        self,
        start: Chosen,
        wanted: Replay,
        config: Config,
        env: WorkerEnv,
        workdir: Workdir,
        reporter: Reporter,
        cache: DiskCache | None,
    ) -> None:
        if published := start.meta.get("published"):
            config = with_architecture(config, published)
        self._start, self._wanted, self._env, self._workdir, self._reporter = start, wanted, env, workdir, reporter
        self._leads = jax.process_index() == 0
        self._config = resolve(config, Devices.here())[0]
        self._data = load_data(self._config, reporter.note if self._leads else None, reporter.record.part)
        self._counts = JobCounts.at_start(self._config, self._data)
        self._executables: Executables | None = None
        if not wanted.is_rehearsal:  # a process with a fault compiles other programs, and the others would wait for its
            self._executables = Executables(pod_store(), jax.process_index(), cache, reporter.record, None)
        self._program = self._make_program()
        self._wrong: _Program | None = None
        """The program with a rehearsed fault, which this process alone compiles."""
        self._batch: Batch = {}
        self._is_named = False
        """True once the names of the parameters are reported."""

    def _make_program(self, factor: float = 1) -> _Program:
        task = make_task(self._config, self._data)
        optimizer, schedule = make_optimizer(self._config, self._counts.steps, task.stacked)
        strategy = make_strategy(self._config, task, optimizer, schedule)
        strategy.gradient_factor = factor
        if self._executables:
            strategy.share_executables(self._executables)
        return _Program(strategy, Verifier(self._config, task, strategy, self._env.host, self._executables))

    def repeat(self, repetition: int) -> None:
        """Compute all steps from the checkpoint on, and report the digests of the wanted ones."""
        wanted, reporter = self._wanted, self._reporter
        inject_faults(self._env, self._workdir, reporter)  # in each repetition
        restored = self._restore(self._start)
        if restored.changes and restored.step != wanted.resumed:
            raise UserError(
                f"the checkpoint of step {restored.step} in {self._start.workdir} was saved by another run, which had other "
                f"settings ({first_names(restored.changes, 3)}): replay that run (`podrun ps --all`), or a step after a "
                "checkpoint of this one"
            )
        counts = JobCounts.at_start(self._config, self._data)
        counts.resume(restored.step, restored.position, restored.counters)
        if counts.steps != self._counts.steps:  # the schedule depends on it
            self._counts = counts
            self._program = self._make_program()
        if wanted.last > counts.steps:
            raise UserError(f"--step: the run ends with step {counts.steps}, and there is no step {wanted.last}")
        strategy = self._program.strategy
        state = strategy.place(restored.state)
        streams = restored.counters.streams
        feed = open_feed(self._config, self._data.train, strategy, counts, streams, lambda _: None)
        if self._leads:
            reporter.note(
                f"repetition {repetition} of {wanted.times}: steps {counts.step + 1} to {wanted.last}, from the checkpoint "
                f"of step {counts.step}"
            )
        reporter.phase(Phase.EVALUATE)
        try:
            for step in range(counts.step + 1, wanted.last + 1):
                reporter.begin_step(step)
                if reporter.faults is not None:
                    state = reporter.faults.state(state)
                self._batch = feed.batches.get()
                reporter.record.part()
                program = self._present_program()
                state, metrics = program.strategy.step(state, self._batch)
                feed.batches.refill()
                metrics.read()
                jax.block_until_ready(state)
                if step >= wanted.first:
                    self._report(program.verifier, repetition, step, state)
        finally:
            feed.batches.close()

    def _present_program(self) -> _Program:
        """Return the program of the next step, which computes slightly wrong gradients if that is rehearsed."""
        if self._reporter.faults is None or not self._reporter.faults.computes_wrongly:
            return self._program
        if self._wrong is None:
            if self._program.verifier.why_state_only:
                raise UserError(
                    f"--inject wrong_sum changes gradients, and only states are compared, because "
                    f"{self._program.verifier.why_state_only}; take bitflip"
                )
            self._wrong = self._make_program(WRONG_FACTOR)
            if self._program.strategy.is_global:  # its step must be that of the other processes
                self._wrong = self._wrong._replace(strategy=self._program.strategy)
        return self._wrong

    def _report(self, verifier: Verifier, repetition: int, step: int, state: TrainState) -> None:
        """Report the digests after a step, and how often devices do not repeat their gradients if devices differ in them."""
        digests = verifier.digests(state, self._batch)
        odd = odd_results([one.sums for one in verifier.repeated(state, self._batch, digests)])
        differing = verifier.differing_names(state, digests)
        if not self._leads:
            return
        record = verifier.record(state, digests, step)
        names = [] if self._is_named else verifier.recorded_names(state)
        self._is_named = True
        self._reporter.event(
            {
                "event": EventKind.REPLAYED,
                "repetition": repetition,
                "step": step,
                "state": record["state"],
                "gradients": record["gradients"],
                "setting": record["setting"],
                "processes": [device.process_index for device in verifier.devices],
                "groups": verifier.groups,
                "states": [bytes(row.tobytes()).hex() for row in digests.summary[:, :2]],
                "sums": [bytes(row.tobytes()).hex() for row in digests.summary[:, 2:]],
                "odd": odd,
                "differing": differing,
                "names": names,
            }
        )

    def report_saved(self, end: Chosen) -> None:
        """Report the digests of the state that the run has saved after the last step."""
        try:
            restored = self._restore(end)
        except UserError as error:
            if self._leads:
                self._reporter.note(f"the result is not compared with the checkpoint of step {end.step}: {error}")
            return
        strategy, verifier = self._program
        state = strategy.place(restored.state)
        digests = verifier.digests(state, self._batch)
        if self._leads:
            record = verifier.record(state, digests, end.step)
            self._reporter.event({**record, "setting": ""})  # whatever has saved it

    def _restore(self, chosen: Chosen) -> Restored:
        """Restore the whole state of a checkpoint. Raises UserError if that fails."""
        strategy = self._program.strategy
        storage: Storage = SHARED_FOLDER if chosen.is_shared else ProcessDisk(self._env.host)
        if not storage.everyone_reads:
            connect()
        checkpoints = Checkpoints(
            chosen.checkpoint.parent,
            self._config.checkpoint,
            strategy.saves_in_parts,
            storage,
            Ranking.parse(self._config.eval.best),
            JobInputs(saved_form(self._data.tokenizer), None, None),
            reads_only=True,
        )
        target = checkpoints.target(strategy.template, self._config, self._data.fingerprint)
        try:
            return restore_step(checkpoints, chosen.step, target, self._reporter)
        except RefusedError:
            raise
        except UserError as error:
            if chosen.checkpoint.is_dir():
                raise
            raise UserError(
                f"the checkpoint of step {chosen.step} was removed during the replay, because the run keeps its newest "
                f"{self._config.checkpoint.keep} (checkpoint.keep); `podrun checkpoints {chosen.workdir} keep STEP` keeps "
                "one from now on"
            ) from error

"""Write the results of a training job to its storage: checkpoints, metrics, config and sampled text.

Every process has a `Results`. Process 0 writes everything but the checkpoints, which other processes may write as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import jax
import yaml

from .checkpoint.messages import connect
from .checkpoint.metadata import Counters, JobInputs
from .checkpoint.missing import warn_of_missing
from .checkpoint.restore import keep_if_whole, restore_newest, set_aside_newer
from .checkpoint.store import Checkpoints, Restored
from .config import Config, saved_config
from .contract import Phase, UserError, Workdir, WorkerEnv
from .data.base import Dataset
from .data.saved_tokenizer import saved_form
from .distributed import agree, barrier, gather
from .events import CheckpointEvent, EpochEvent, EvalEvent, EventKind, Metrics, ResumeEvent, WorkerEvent
from .measure.tracker import Ending
from .measure.writers import Writer, make_writers
from .memory.store import MemoryCheckpoints
from .models.weight_files import ConfigJson
from .ranking import Ranking
from .state import StateDict
from .storage import make_storage
from .storage.base import Storage
from .worker.progress import Reporter
from .worker.workdir import replace_text

_POLL = 0.1  # seconds


def agree_on_storage(env: WorkerEnv, workdir: Workdir, fingerprint: bytes, bucket: Storage | None) -> Storage:
    """Return the storage of the workdir: `bucket`, or else a shared folder or process 0's disk. Called on all processes.

    Raises UserError unless `fingerprint`, the digest of the data, is the same on all processes.
    """
    token = workdir.token(env.run_id, env.attempt)
    is_shared = agree(token, fingerprint)
    if jax.process_index() == 0:
        token.unlink()
    return bucket or make_storage(env, is_shared)


class Results:
    """The results of one training job."""

    def __init__(
        self,
        config: Config,
        env: WorkerEnv,
        workdir: Workdir,
        storage: Storage,
        data: Dataset,
        in_parts: bool,
        reporter: Reporter,
        published: ConfigJson | None = None,
    ) -> None:
        """Open the folder of the checkpoints. Called on all processes.

        Args:
            config: the job.
            env: this process's place in the pod.
            workdir: the folder of the results on this host.
            storage: the storage that the workdir belongs to.
            data: the job's data.
            in_parts: the state is divided over the processes.
            reporter: gets events and notes.
            published: config.json of the model that the job begins with.

        Raises:
            UserError: the folder cannot be created.
        """
        if not storage.everyone_reads:
            connect()
        elif in_parts:
            barrier("before the first save")
        self._config = config
        self._env = env
        self._workdir = workdir
        self._storage = storage
        self._fingerprint = data.fingerprint
        self._reporter = reporter
        self._in_parts = in_parts
        self._leads = jax.process_index() == 0
        self._writers: list[Writer] = []
        self._checkpoints = Checkpoints(
            workdir.checkpoints,
            config.checkpoint,
            in_parts,
            storage,
            Ranking.parse(config.eval.best),
            JobInputs(
                saved_form(data.tokenizer),
                {"vocabulary": data.vocabulary, "end": data.end_of_text} if data.vocabulary else None,
                published,
            ),
        )
        self._checkpoints.when_complete(self._tell_complete)
        self.next_save = 0
        """Step of the next save, if it is known, with `checkpoint.every: auto`; otherwise 0."""
        self._memory: MemoryCheckpoints | None = None
        self.saved: int | None = None
        """Step of the checkpoint on disk that was restored, or of the last save that was started."""

    def _tell_complete(self, step: int) -> None:
        """Report that a checkpoint is complete. Called in the thread that completes it."""
        event: CheckpointEvent = {"event": EventKind.CHECKPOINT, "step": step}
        if self.next_save > step:
            event["next"] = self.next_save
        self._reporter.event(event)

    def restore(self, template: Callable[[], StateDict]) -> Restored | None:
        """Restore the newest checkpoint that can be read; None if there is none. Raises as `restore_newest` does."""
        if self._leads and (summary := self._storage.summary(self._workdir.path)):
            self._reporter.note(summary, one_disk=self._storage.is_one_disk)
        restored, where = self._newest(template)
        known = restored.step if restored else None
        if self._memory is not None:
            self._memory.forget_after(known or 0)
        warn_of_missing(self._env, self._storage, self._workdir.checkpoints, known, self._reporter)
        if restored is not None and self._leads:
            resumed: ResumeEvent = {"event": EventKind.RESUME, "step": restored.step}
            if where:
                set_aside_newer(self._checkpoints, restored.step, self._reporter)
                self._checkpoints.link_frozen_on_disk(restored.state, self._config)
                resumed["memory"] = where
                if (on_disk := self._checkpoints.latest()) is not None:
                    resumed["disk"] = on_disk
            self._reporter.event(resumed)
            if restored.changes:
                rows = "\n".join(f"  {row}" for row in restored.changes)
                self._reporter.note(f"resumed with values that differ from the checkpoint\n{rows}")
        return restored

    def _newest(self, template: Callable[[], StateDict]) -> tuple[Restored | None, str]:
        """Restore the newest checkpoint that can be read. Returns it, and where it was in memory; empty if it was on disk."""

        def from_disk(newer_than: int | None) -> Restored | None:
            restored = restore_newest(
                self._checkpoints, template, self._config, self._fingerprint, self._reporter, newer_than
            )
            self.saved = restored.step if restored else None
            return restored

        if not self._config.checkpoint.memory_every:
            return from_disk(None), ""
        if not self._env.memory:
            if self._leads:
                self._reporter.note(
                    "checkpoint.memory_every has no effect here: only podrun's agents keep memory for a run"
                )
            return from_disk(None), ""
        self._memory = MemoryCheckpoints(self._env, template(), self._reporter)
        target = self._checkpoints.target(template, self._config, self._fingerprint)
        newest = self._memory.restore(target, from_disk)
        checkpoint, restored = newest
        if checkpoint is None or restored is None:
            return restored, ""
        is_on_disk = self._leads and keep_if_whole(self._checkpoints, restored.step, self._reporter)
        self.saved = restored.step if gather([is_on_disk])[0, 0] else None
        return restored, checkpoint.described()

    def open(self, step: int) -> None:
        """Write the job's config, and open the metrics file to continue after `step`. Raises UserError if that fails."""
        if self._leads:
            self._write_config()
            self._writers = make_writers(
                self._config.log, self._workdir, step, self._reporter.note, saved_config(self._config)
            )
            self._storage.after_write()

    def _write_config(self) -> None:
        path = self._workdir.config
        try:
            replace_text(path, yaml.safe_dump(saved_config(self._config), sort_keys=False))
        except OSError as error:
            raise UserError(
                f"the job's config cannot be written to {path}: {error.strerror}; move it away, or choose another workdir "
                "with --workdir DIR"
            ) from None

    def write(self, step: int, kind: str, metrics: Metrics) -> None:
        """Write a step's metrics as a record of `kind`."""
        if self._leads:
            for writer in self._writers:
                writer.write(step, kind, metrics)
            self._storage.after_write()

    def report(self, event: EvalEvent | EpochEvent, metrics: Metrics) -> None:
        """Write the metrics of an evaluation or epoch to the metrics file, and send the event with them to the launcher."""
        self.write(event["step"], event["event"], metrics)
        if self._leads:
            self._reporter.event(cast(WorkerEvent, {**event, **metrics}))

    def write_sample(self, text: str) -> None:
        """Write and report the text that was sampled from the model. Called on process 0 only."""
        replace_text(self._workdir.sample, text)
        self._storage.after_write()
        self._reporter.event({"event": EventKind.TEXT, "text": text})

    def was_sampled(self) -> bool:
        """Return whether text was sampled from the restored checkpoint. Called on all processes; process 0 decides."""
        try:
            made = (self._workdir.checkpoints / str(self.saved)).stat().st_mtime
            sampled = self._workdir.sample.stat().st_mtime >= made
        except OSError:
            sampled = False
        return bool(gather([sampled])[0, 0])

    def prepare_saves(self, wait: bool = False) -> None:
        """Import the modules that a save needs, in a background thread. `wait`: wait until that is done."""
        self._checkpoints.prepare(wait)

    def save(
        self,
        step: int,
        state: StateDict,
        position: int,
        metrics: Metrics,
        counters: Counters,
    ) -> None:
        """Start a save, after waiting for the previous one. Called on all processes. Raises SaveError if either fails."""
        self.check_save(wait=True)
        self._checkpoints.save(step, state, position, self._config, self._fingerprint, metrics, counters)
        self.saved = step

    def keep_in_memory(
        self, step: int, state: StateDict, position: int, metrics: dict[str, float] | None, counters: Counters
    ) -> None:
        """Start a checkpoint in memory, after waiting for the previous one. Called on all processes."""
        if self._memory is not None:
            meta = self._checkpoints.meta(state, position, self._config, self._fingerprint, counters)
            meta["metrics"] = metrics
            self._memory.save(step, state, meta)

    @property
    def keeps_in_memory(self) -> bool:
        """Return whether checkpoints are kept in memory."""
        return self._memory is not None and self._memory.is_on

    def check_save(self, wait: bool = False) -> None:
        """Raise SaveError if the save in progress has failed. `wait`: wait until it is complete."""
        self._checkpoints.completed(wait)

    @property
    def is_saving(self) -> bool:
        """Return whether a save on disk has been started here and was not seen complete."""
        return self._checkpoints.is_saving

    @property
    def can_save_alone(self) -> bool:
        """Return whether this process can save without the others."""
        return not self._in_parts and (self._leads or self._storage.everyone_reads)

    def save_alone(self, step: int, save: Callable[[], None]) -> None:
        """Call `save` to save a step on this process alone, while the others are blocked, unless it is saved already."""
        if self.saved != step:
            if not self._leads:
                self._checkpoints.stand_in()
            save()
        self._reporter.phase(Phase.SAVE)
        self.check_save(wait=True)
        while not self._leads and self._checkpoints.latest() != step:
            time.sleep(_POLL)  # process 0 is saving it in the background

    def close(self, status: Ending = "done") -> None:
        """Close the metrics file, and wait until everything is stored. `status`: how the training ended."""
        if self._memory is not None:
            self._memory.close()
        for writer in self._writers:
            writer.close(status)
        if self._leads:
            self._storage.after_write()
            self._storage.close()

"""The checkpoints of a training job: state, resolved config, position in the data and the data's fingerprint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import Checkpoint, Config, saved_config
from ..contract import UserError
from ..data.saved_tokenizer import Saved
from ..state import StateDict
from ..storage.base import Storage
from ..storage.shared_folder import SHARED_FOLDER
from .damage import check_job
from .folder import CheckpointFolder, Target
from .same_job import changes, obstacles, refusal, shapes_of


@dataclass(frozen=True)
class Restored:
    """The contents of a checkpoint."""

    step: int
    state: StateDict
    position: int
    changes: list[str]
    """`key: before -> after` for every value in which this job differs from that of the checkpoint."""
    epoch_means: dict[str, Any] | None
    """The value of `EpochMeans.saved` at the save, if the job counts epochs."""
    tokenizer: Saved | None
    """The tokenizer at the save, if the job had one of podrun's."""


class Checkpoints(CheckpointFolder):
    """The checkpoints of one workdir."""

    def __init__(
        self,
        directory: Path,
        section: Checkpoint,
        in_parts: bool = False,
        tokenizer: Saved | None = None,
        storage: Storage = SHARED_FOLDER,
    ) -> None:
        """Open the directory.

        Args:
            directory: the folder of the checkpoints, which is made.
            section: which are kept.
            in_parts: every process has a part of the state; else process 0 has all of it.
            tokenizer: this job's tokenizer, which is saved with each checkpoint and compared with the restored one's.
            storage: where the directory is.
        """
        super().__init__(directory, section.keep, section.keep_best, in_parts, storage)
        self._tokenizer = tokenizer

    def save(
        self,
        step: int,
        state: StateDict,
        position: int,
        config: Config,
        fingerprint: bytes,
        loss: float | None,
        epoch_means: dict[str, Any] | None = None,
    ) -> None:
        """Start to save, as `write` does. `loss` is the validation loss at this step, if known."""
        meta = {
            "config": saved_config(config),
            "position": position,
            "fingerprint": fingerprint.hex(),
            "shapes": shapes_of(state),
            "epoch_means": epoch_means,
            "tokenizer": self._tokenizer,
        }
        self.write(step, state, meta, loss)

    def restore(self, step: int, template: StateDict, config: Config, fingerprint: bytes) -> Restored:
        """Read a checkpoint into arrays as those of `template`: numpy's, or jax's with their shardings.

        Raises UserError if it is of another model, optimizer or data, DamagedCheckpointError if it is damaged, and
        HostFaultError if this host has tried twice and cannot read it now.
        """
        return self.load(step, self.target(lambda: template, config, fingerprint))

    def target(self, template: Callable[[], StateDict], config: Config, fingerprint: bytes) -> Target[Restored]:
        """Return what a checkpoint of this job is restored into: arrays as those of `template`."""

        def accept(step: int, meta: dict[str, Any], arrays: StateDict) -> None:
            try:
                rows = obstacles(meta, config, fingerprint, shapes_of(arrays), self._tokenizer)
                changes(meta, config, self._tokenizer)
            except (KeyError, TypeError, AttributeError, StopIteration, IndexError) as error:
                raise self.no_metadata(step, error) from None
            if rows:
                raise UserError(refusal(self.directory.parent, step, rows))

        def build(step: int, meta: dict[str, Any], state: StateDict) -> Restored:
            changed = changes(meta, config, self._tokenizer)
            self._tokenizer = self._tokenizer or meta.get("tokenizer")  # later checkpoints must not lose it
            return Restored(step, state, meta["position"], changed, meta.get("epoch_means"), meta.get("tokenizer"))

        return Target(check_job, accept, template, build)

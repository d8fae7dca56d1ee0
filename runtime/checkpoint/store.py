"""Checkpoints of a training job: state, resolved config, position in the data, and the data's fingerprint."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flax.traverse_util import empty_node, flatten_dict, unflatten_dict

from ..array_names import Arrays, Place
from ..config import Checkpoint, Config, saved_config
from ..contract import UserError
from ..data.saved_tokenizer import Saved
from ..events import Metrics
from ..ranking import LOWEST_LOSS, Ranking
from ..state import StateDict
from ..storage.base import Storage
from ..storage.shared_folder import SHARED_FOLDER
from .damage import DamagedCheckpointError, HostFaultError, read_meta
from .folder import METADATA, CheckpointFolder, Target
from .metadata import Counters, JobInputs, JobMeta, job_meta
from .retention import Retention
from .same_job import changes, obstacles, refusal, shapes_of


@dataclass(frozen=True)
class Restored:
    """The contents of a restored checkpoint."""

    step: int
    state: StateDict
    position: int
    changes: list[str]
    """`key: before -> after` for every value of this job that differs from the checkpoint's."""
    counters: Counters
    tokenizer: Saved | None
    """The saved tokenizer, if the job had a built-in one."""
    metrics: dict[str, float] | None = None
    """Metrics of the evaluation at this step, if it was restored from memory and there was one."""


class Checkpoints(CheckpointFolder):
    """The checkpoints of one workdir."""

    def __init__(
        self,
        directory: Path,
        section: Checkpoint,
        in_parts: bool = False,
        storage: Storage = SHARED_FOLDER,
        ranking: Ranking = LOWEST_LOSS,
        inputs: JobInputs = JobInputs(),  # noqa: B008 (immutable)
        reads_only: bool = False,
    ) -> None:
        """Open the directory.

        Args:
            directory: folder of the checkpoints, created if it does not exist.
            section: the job's section `checkpoint`, which says how many to keep.
            in_parts: the state is divided over the processes; otherwise process 0 has all of it.
            storage: the storage that the folder belongs to.
            ranking: order of the evaluations, to know the best.
            inputs: the job's tokenizer, special tokens and published model.
            reads_only: change nothing in the folder, because another run may be saving there.
        """
        super().__init__(directory, Retention(section.keep, section.keep_best, ranking), in_parts, storage, reads_only)
        self._inputs = inputs

    def save(
        self,
        step: int,
        state: StateDict,
        position: int,
        config: Config,
        fingerprint: bytes,
        metrics: Metrics | None,
        counters: Counters = Counters(),  # noqa: B008 (immutable)
    ) -> None:
        """Start a save, as `write` does. Called on all processes.

        Args:
            step: number of the last step done.
            state: arrays to save.
            position: number of examples consumed.
            config: the job.
            fingerprint: digest of the job's data.
            metrics: metrics of the evaluation at this step, by name; None if there was none.
            counters: the job's other counters.
        """
        rest, frozen = without_frozen(state, config.trained_names)
        meta = self.meta(state, position, config, fingerprint, counters)
        self.write(step, rest, {**meta, "frozen": _dtypes(frozen)}, metrics, frozen)

    def link_frozen_on_disk(self, state: StateDict, config: Config) -> None:
        """Let later saves link to the frozen parameters on disk, if the state was restored from this run's memory.

        Called on process 0 only.
        """
        frozen, step = _dtypes(without_frozen(state, config.trained_names)[1]), self.latest()
        if not frozen or step is None:
            return
        try:
            meta = read_meta(step, self.path(step), METADATA, job_meta)
        except (DamagedCheckpointError, HostFaultError):
            return  # they are written once more
        if meta.get("frozen") == frozen:
            self.link_frozen(step, is_verified=False)

    def meta(self, state: StateDict, position: int, config: Config, fingerprint: bytes, counters: Counters) -> JobMeta:
        """Return the metadata of a checkpoint that has all arrays in one place. The arguments are those of `save`."""
        return {
            "config": saved_config(config),
            "position": position,
            "fingerprint": fingerprint.hex(),
            "shapes": shapes_of(state),
            "epoch_means": counters.epoch_means,
            "best": counters.best,
            "mixture": counters.mixture,
            "skipped": counters.skipped,
            "streams": counters.streams,
            "evaluated": counters.evaluated,
            "published": self._inputs.published,
            "token_ids": self._inputs.token_ids,
            "tokenizer": self._inputs.tokenizer,
        }

    def target(
        self, template: Callable[[], StateDict], config: Config, fingerprint: bytes
    ) -> Target[JobMeta, Restored]:
        """Return the functions that check and restore a checkpoint of this job. `template`: see `Target.template`."""

        def accept(step: int, meta: JobMeta, arrays: StateDict) -> None:
            try:
                rows = obstacles(meta, config, fingerprint, shapes_of(arrays), self._inputs.tokenizer)
                changes(meta, config, self._inputs.tokenizer)
            except (KeyError, TypeError, AttributeError, StopIteration, IndexError) as error:
                raise self.no_metadata(step, error) from None
            if rows:
                raise UserError(refusal(self.directory.parent, step, rows))

        def build(step: int, meta: JobMeta, state: StateDict) -> Restored:
            changed = changes(meta, config, self._inputs.tokenizer)
            frozen = _dtypes(without_frozen(state, config.trained_names)[1])
            if frozen and frozen == meta.get("frozen"):
                self.link_frozen(step)
            # Later checkpoints must not lose them.
            tokenizer = self._inputs.tokenizer or meta.get("tokenizer")
            self._inputs = replace(self._inputs, tokenizer=tokenizer, published=meta.get("published"))
            counters = Counters(*(meta.get(name) for name in Counters._fields))  # type: ignore[arg-type]
            return Restored(
                step, state, meta["position"], changed, counters, meta.get("tokenizer"), meta.get("metrics")
            )

        return Target(job_meta, accept, lambda _: template(), build)


def without_frozen(state: StateDict, trained_names: str | None) -> tuple[StateDict, Arrays]:
    """Return a state without the parameters that are not trained, and those, as a state has them.

    `trained_names`: regular expression that matches the full names of the trained ones; None: all are.
    """
    if trained_names is None:
        return state, {}
    parts: tuple[dict[Place, Any], dict[Place, Any]] = {}, {}
    for place, leaf in flatten_dict(state["params"], keep_empty_nodes=True).items():
        is_frozen = leaf is not empty_node and re.fullmatch(trained_names, ".".join(place)) is None
        parts[is_frozen][place] = leaf
    trained, frozen = map(unflatten_dict, parts)
    rest: StateDict = {**state, "params": trained}
    return rest, {"params": frozen} if frozen else {}


def _dtypes(frozen: Arrays) -> dict[str, str]:
    return {".".join(place): str(leaf.dtype) for place, leaf in flatten_dict(frozen.get("params", {})).items()}

"""Checkpoints through orbax: asynchronous, atomic, one copy of the state. The only importer of orbax.

A checkpoint holds the state, the resolved config, the position in the data and the data's fingerprint. orbax refuses the
host-local arrays of a multi-process pmap, so the state is saved as numpy arrays, which the first process writes.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as policy

from .config import Checkpoint, Config
from .contract import UserError
from .parallel.base import HostState

_STATE, _META = "state", "meta"


@dataclass(frozen=True)
class Restored:
    """What a checkpoint holds."""

    step: int
    state: HostState
    position: int


class Checkpoints:
    """The checkpoints of one workdir."""

    def __init__(self, directory: Path, section: Checkpoint, primary: bool) -> None:
        """`primary` is true in one process: it clears away what a killed save left behind."""
        self._directory = directory
        if primary:
            directory.mkdir(parents=True, exist_ok=True)
            for leftover in directory.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(leftover, ignore_errors=True)
        best = policy.BestN(
            # orbax keeps the highest: the lowest loss is the best.
            get_metric_fn=lambda metrics: -metrics["loss"],
            n=section.keep_best,
            keep_checkpoints_without_metrics=False,
        )
        policies = [policy.LatestN(section.keep), *([best] if section.keep_best else [])]
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy.AnyPreservationPolicy(policies), create=True, save_root_metadata=False
        )
        self._manager = ocp.CheckpointManager(directory, options=options, item_names=(_STATE, _META))
        self._saving: int | None = None

    def latest(self) -> int | None:
        """The newest complete checkpoint's step."""
        return self._manager.latest_step()

    def save(
        self, step: int, state: HostState, position: int, config: Config, fingerprint: bytes, loss: float | None
    ) -> None:
        """Starts to save; waits for an earlier save first. `loss` is the validation loss at this step, if known.

        Raises whatever made the earlier save fail.
        """
        meta = {"config": config.model_dump(mode="json"), "position": position, "fingerprint": fingerprint.hex()}
        self._manager.save(
            step,
            args=ocp.args.Composite(**{_STATE: ocp.args.StandardSave(state), _META: ocp.args.JsonSave(meta)}),
            metrics=None if loss is None else {"loss": loss},
        )
        self._saving = step

    def completed(self, wait: bool = False) -> int | None:
        """The step of a save that has become complete since the last call. Raises whatever made it fail."""
        if self._saving is None or (self._manager.is_saving_in_progress() and not wait):
            return None
        self._manager.wait_until_finished()
        self._manager.check_for_errors()
        step, self._saving = self._saving, None
        return step

    def restore(self, step: int, template: HostState, config: Config, fingerprint: bytes) -> Restored:
        """Reads a checkpoint into numpy arrays shaped as `template`.

        Raises UserError if it is of another model, optimizer or data.
        """
        meta = self._restore(step, _META, ocp.args.JsonRestore())
        self._check_same_job(step, meta, config, fingerprint)
        state = self._restore(step, _STATE, ocp.args.StandardRestore(template))
        return Restored(step, state, meta["position"])

    def close(self) -> None:
        self._manager.close()

    def _restore(self, step: int, item: str, how: Any) -> Any:
        return self._manager.restore(step, args=ocp.args.Composite(**{item: how}))[item]

    def _check_same_job(self, step: int, meta: dict[str, Any], config: Config, fingerprint: bytes) -> None:
        saved, now = meta["config"], config.model_dump(mode="json")
        rows = [
            f"  {key}: {json.dumps(before)} in the checkpoint, {json.dumps(after)} in this job"
            for section in ("task", "model", "optimizer")
            for key, before, after in _differences(section, _identity(saved, section), _identity(now, section))
        ]
        if meta["fingerprint"] != fingerprint.hex():
            rows.append(f"  data: not the same as it was (data.name {saved['data']['name']}, now {now['data']['name']})")
        if rows:
            more = [f"  and {len(rows) - 8} more"] if len(rows) > 8 else []
            raise UserError(
                f"workdir {self._directory.parent} holds a checkpoint (step {step}) of another job:\n"
                + "\n".join(rows[:8] + more)
                + "\nchoose another --workdir to start anew, or give the values of the checkpoint to resume it"
            )


_TUNABLE = {"dropout", "preset", "learning_rate", "weight_decay", "clip_norm", "b1", "b2", "eps"}


def _identity(config: dict[str, Any], section: str) -> Any:
    """What must be the same to resume: sizes and structure, not what may be tuned on the way."""
    value = config[section]
    if not isinstance(value, dict):
        return value
    kept = {k: v for k, v in value.items() if k not in _TUNABLE}
    if "clip_norm" in value:  # the state has a part for clipping, or has not
        kept["clip_norm"] = "set" if value["clip_norm"] is not None else None
    return kept


def _differences(prefix: str, before: Any, after: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [*before, *(k for k in after if k not in before)]
        return [row for k in keys for row in _differences(f"{prefix}.{k}", before.get(k), after.get(k))]
    return [] if before == after else [(prefix, before, after)]

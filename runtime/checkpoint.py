"""Checkpoints through orbax: asynchronous, atomic, one copy of the state. The only importer of orbax.

A checkpoint holds the state, the resolved config, the position in the data and the data's fingerprint. orbax refuses the
host-local arrays of a multi-process pmap, so the state is saved as numpy arrays, by process 0 alone: orbax then needs no
barrier between processes, in which all would wait for ever for one whose disk is full.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as policy

from .config import Checkpoint, Config, saved_config
from .contract import UserError
from .parallel.base import HostState

_STATE, _META = "state", "meta"


class _Manager(ocp.CheckpointManager):
    """orbax asks JAX's preemption service with step numbers of its own; that would move the point the loop agrees on."""

    def reached_preemption(self, step: int) -> bool:
        return False


@dataclass(frozen=True)
class Restored:
    """What a checkpoint holds."""

    step: int
    state: HostState
    position: int


class Checkpoints:
    """The checkpoints of one workdir."""

    def __init__(self, directory: Path, section: Checkpoint, primary: bool) -> None:
        """`primary` is true in one process: it saves, and clears away what a killed save left behind."""
        self._directory = directory
        self._primary = primary
        directory.mkdir(parents=True, exist_ok=True)
        if primary:
            for leftover in directory.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(leftover, ignore_errors=True)
        me = jax.process_index()
        best = policy.BestN(get_metric_fn=_quality, n=section.keep_best)
        policies = [policy.LatestN(section.keep), *([best] if section.keep_best else [])]
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy.AnyPreservationPolicy(policies),
            best_fn=_quality,  # without it the losses are not written, and a resumed run would not know the best
            create=False,
            save_root_metadata=False,
            read_only=not primary,
            multiprocessing_options=ocp.options.MultiprocessingOptions(primary_host=me, active_processes={me}),
        )
        self._manager = _Manager(directory, options=options, item_names=(_STATE, _META))
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
        if not self._primary:
            return
        meta = {
            "config": saved_config(config),
            "position": position,
            "fingerprint": fingerprint.hex(),
            "shapes": _shapes(state),
        }
        self._manager.save(
            step,
            args=ocp.args.Composite(**{_STATE: ocp.args.StandardSave(state), _META: ocp.args.JsonSave(meta)}),
            metrics={"loss": loss},
        )
        self._saving = step

    def completed(self, wait: bool = False) -> int | None:
        """The step of a save that has become complete since the last call. Raises whatever made it fail."""
        if self._saving is None:
            return None
        if self._manager.is_saving_in_progress() and not wait:
            return None
        step, self._saving = self._saving, None
        self._manager.wait_until_finished()
        self._manager.check_for_errors()
        return step

    def restore(self, step: int, template: HostState, config: Config, fingerprint: bytes) -> Restored:
        """Reads a checkpoint into numpy arrays shaped as `template`.

        Raises UserError if it is of another model, optimizer or data.
        """
        meta = self._restore(step, _META, ocp.args.JsonRestore())
        self._check_same_job(step, meta, config, fingerprint, _shapes(template))
        state = self._restore(step, _STATE, ocp.args.StandardRestore(template))
        return Restored(step, state, meta["position"])

    def close(self) -> None:
        self._manager.close()

    def _restore(self, step: int, item: str, how: Any) -> Any:
        return self._manager.restore(step, args=ocp.args.Composite(**{item: how}))[item]

    def _check_same_job(
        self, step: int, meta: dict[str, Any], config: Config, fingerprint: bytes, shapes: dict[str, Any]
    ) -> None:
        saved, now = meta["config"], saved_config(config)
        rows = [
            f"  {key}: {json.dumps(before)} in the checkpoint, {json.dumps(after)} in this job"
            for section in ("task", "model", "optimizer")
            for key, before, after in _differences(section, _identity(saved, section), _identity(now, section))
        ]
        if meta["fingerprint"] != fingerprint.hex():
            rows.append(
                f"  data: not the same as it was (data.name {saved['data']['name']}, now {now['data']['name']})"
            )
        if not rows:  # what the config does not show, for example a user's model whose code has changed
            rows = [
                f"  {key}: shape {json.dumps(before)} in the checkpoint, {json.dumps(after)} in this job"
                for key, before, after in _differences("state", meta["shapes"], shapes)
            ]
        if rows:
            more = [f"  and {len(rows) - 8} more"] if len(rows) > 8 else []
            raise UserError(
                f"workdir {self._directory.parent} holds a checkpoint (step {step}) of another job:\n"
                + "\n".join(rows[:8] + more)
                + "\nchoose another --workdir to start anew, or give the values of the checkpoint to resume it"
            )


def _quality(metrics: dict[str, float | None]) -> float:
    """orbax keeps the highest: the lowest loss is the best, and one that is unknown the worst."""
    loss = metrics["loss"]
    return -loss if loss is not None and math.isfinite(loss) else -math.inf


def _shapes(state: HostState) -> dict[str, Any]:
    """The shape of every array, under the names that the state has."""
    return {k: _shapes(v) if isinstance(v, dict) else list(np.shape(v)) for k, v in state.items() if v is not None}


_TUNABLE = {"dropout", "initializer_range", "preset", "learning_rate", "weight_decay", "clip_norm", "b1", "b2", "eps"}


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

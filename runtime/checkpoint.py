"""Checkpoints through orbax: asynchronous, atomic, one copy of the state. The only importer of orbax.

A checkpoint holds the state, the resolved config, the position in the data and the data's fingerprint. orbax refuses the
host-local arrays of a multi-process pmap, so a state that is the same everywhere is saved as numpy arrays, by process 0
alone: orbax then needs no barrier between processes, in which all would wait for ever for one whose disk is full. A state of
which each process has a part is saved by all, as arrays over all processes. On disk both are the same, so either is restored
from either.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as policy

from .config import Checkpoint, Config, saved_config
from .contract import UserError
from .state import StateDict

_STATE, _META = "state", "meta"
_POLL = 0.02  # seconds


class _Manager(ocp.CheckpointManager):
    """orbax asks JAX's preemption service with step numbers of its own; that would move the point the loop agrees on."""

    def reached_preemption(self, step: int) -> bool:
        return False


@dataclass(frozen=True)
class Restored:
    """What a checkpoint holds."""

    step: int
    state: StateDict
    position: int


class Checkpoints:
    """The checkpoints of one workdir."""

    def __init__(self, directory: Path, section: Checkpoint, in_parts: bool = False) -> None:
        """`in_parts`: every process saves its part of the state; else process 0 saves all of it."""
        self._directory = directory
        self._in_parts = in_parts
        primary = jax.process_index() == 0
        self._saves = primary or in_parts
        directory.mkdir(parents=True, exist_ok=True)
        if primary:  # clears away what a killed save left behind
            for leftover in directory.glob("*.orbax-checkpoint-tmp*"):
                shutil.rmtree(leftover, ignore_errors=True)
        alone = {jax.process_index()}
        together = ocp.options.MultiprocessingOptions(
            primary_host=0 if in_parts else jax.process_index(), active_processes=None if in_parts else alone
        )
        best = policy.BestN(get_metric_fn=_quality, n=section.keep_best)
        policies = [policy.LatestN(section.keep), *([best] if section.keep_best else [])]
        options = ocp.CheckpointManagerOptions(
            preservation_policy=policy.AnyPreservationPolicy(policies),
            best_fn=_quality,  # without it the losses are not written, and a resumed run would not know the best
            create=False,
            save_root_metadata=False,
            read_only=not self._saves,
            multiprocessing_options=together,
        )
        self._manager = _Manager(directory, options=options, item_names=(_STATE, _META))
        self._saving: int | None = None

    def latest(self) -> int | None:
        """The newest complete checkpoint's step."""
        return self._manager.latest_step()

    def save(
        self, step: int, state: StateDict, position: int, config: Config, fingerprint: bytes, loss: float | None
    ) -> None:
        """Starts to save; waits for an earlier save first. `loss` is the validation loss at this step, if known.

        Raises whatever made the earlier save fail.
        """
        if not self._saves:
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
        step = self._saving
        try:
            while self._manager.is_saving_in_progress():
                if self._in_parts:
                    # A process that fails must not wait for the others, which wait for its part. Only then: an error is told
                    # once, and orbax's own thread, if it does not get it, removes old checkpoints as if there were a new one.
                    self._manager.check_for_errors()
                if not wait:
                    return None
                time.sleep(_POLL)
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except BaseException:
            self._saving = None
            raise
        self._saving = None
        return step

    def restore(self, step: int, template: StateDict, config: Config, fingerprint: bytes) -> Restored:
        """Reads a checkpoint into arrays as those of `template`: numpy's, or jax's with their shardings.

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
            for section in ("task", "model", "optimizer", "parallel", "ema")
            for key, before, after in _differences(section, _identity(saved, section), _identity(now, section))
        ]
        if meta["fingerprint"] != fingerprint.hex():
            rows.append(
                f"  data: not the same as it was (data.name {saved['data']['name']}, now {now['data']['name']})"
            )
        if not rows and now["parallel"]["name"] == "ensemble":
            before, after = (_first_shape(shapes["params"])[0] for shapes in (meta["shapes"], shapes))
            if before != after:
                rows = [f"  members: {before} in the checkpoint, {after} in this job, one for each device of its slice"]
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


def _shapes(state: StateDict) -> dict[str, Any]:
    """The shape of every array, under the names that the state has."""
    return {k: _shapes(v) if isinstance(v, dict) else list(v.shape) for k, v in state.items() if v is not None}


def _first_shape(shapes: dict[str, Any] | list[int]) -> list[int]:
    return _first_shape(next(iter(shapes.values()))) if isinstance(shapes, dict) else shapes


_TUNABLE = {"dropout", "initializer_range", "preset", "learning_rate", "weight_decay", "clip_norm", "b1", "b2", "eps"}
_TUNABLE |= {"adam_learning_rate", "nesterov", "max_evaluations", "l2"}


def _identity(config: dict[str, Any], section: str) -> Any:
    """What must be the same to resume: sizes and structure, not what may be tuned on the way."""
    value: Any = config.get(section)
    if section == "parallel":  # all ways have the same state, but for the members of an ensemble
        return "ensemble" if value["name"] == "ensemble" else "one model"
    if section == "ema":
        return "on" if value is not None else "off"
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

"""PURE: compare the job of a checkpoint with this job: what must be the same to resume, and what has changed."""

from __future__ import annotations

import json
from typing import Any, get_args

from ..config import Config, saved_config
from ..config.base import name_of
from ..config.job import tunable_keys
from ..data.saved_tokenizer import Saved, difference

_SECTIONS = ("task", "model", "optimizer", "parallel", "ema")
_SHOWN = 8

Row = tuple[str, Any, Any]
"""A key, its value before, and its value now."""


def obstacles(
    meta: dict[str, Any], config: Config, fingerprint: bytes, shapes: dict[str, Any], tokenizer: Saved | None = None
) -> list[tuple[str, str]]:
    """Return why a checkpoint with this `meta` cannot be resumed: (key, reason) rows, none if it can.

    Args:
        meta: what the checkpoint says of its job.
        config: this job.
        fingerprint: digest of this job's data.
        shapes: the shape of every array of this job's state.
        tokenizer: this job's tokenizer.
    """
    saved, now = _completed(meta["config"]), saved_config(config)
    rows = [
        (key, f"{json.dumps(before)} in the checkpoint, {json.dumps(after)} in this job")
        for section in _SECTIONS
        for key, before, after in differences(section, _identity(saved, section), _identity(now, section))
    ]
    if meta["fingerprint"] != fingerprint.hex():
        rows.append(("data", f"not the same as it was (data.name {saved['data']['name']}, now {now['data']['name']})"))
        if (other := difference(meta.get("tokenizer"), tokenizer)) is not None:
            rows.append(("data.tokenizer", f"another: {other}"))
    if not rows and config.parallel.model_per_device:
        before, after = [_first_shape(shapes["params"])[0] for shapes in (meta["shapes"], shapes)]
        if before != after:
            rows = [("members", f"{before} in the checkpoint, {after} in this job, one for each device of its slice")]
    if not rows:  # differences that the config does not show, such as changed code of a user's model
        rows = [
            (key, f"shape {json.dumps(before)} in the checkpoint, {json.dumps(after)} in this job")
            for key, before, after in differences("state", meta["shapes"], shapes)
        ]
    return rows


def refusal(workdir: object, step: int, rows: list[tuple[str, str]]) -> str:
    """Return the message for a checkpoint of another job. Its first line names the first difference."""
    key, reason = rows[0]
    more = [f"  and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
    return "\n".join(
        [
            f"workdir {workdir} holds a checkpoint (step {step}) of another job: {key} is {reason}",
            *[f"  {key}: {reason}" for key, reason in rows[:_SHOWN]],
            *more,
            "choose another --workdir to start anew, or give the values of the checkpoint to resume it",
        ]
    )


def changes(meta: dict[str, Any], config: Config, tokenizer: Saved | None = None) -> list[str]:
    """Return `key: before -> after` for every value in which this job differs from the job of the checkpoint."""
    before, now = _completed(meta["config"]), saved_config(config)
    rows = [f"{key}: {_plain(old)} -> {_plain(new)}" for key, old, new in differences("", before, now)]
    other = difference(meta.get("tokenizer"), tokenizer)
    return rows if other is None else [*rows, f"the tokenizer: {other}"]


def differences(prefix: str, before: Any, after: Any) -> list[Row]:
    """Return the keys whose values differ, dotted below `prefix`."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [*before, *(k for k in after if k not in before)]
        start = f"{prefix}." if prefix else ""
        return [row for k in keys for row in differences(f"{start}{k}", before.get(k), after.get(k))]
    return [] if before == after else [(prefix, before, after)]


def shapes_of(state: dict[str, Any]) -> dict[str, Any]:
    """Return the shape of every array, under the names that the state has."""
    return {k: shapes_of(v) if isinstance(v, dict) else list(v.shape) for k, v in state.items() if v is not None}


def _completed(saved: dict[str, Any]) -> dict[str, Any]:
    """Fill in the keys that podrun did not have yet when the checkpoint was saved."""
    try:
        return saved_config(Config.model_validate(saved))
    except ValueError:  # of a version with other keys: compared unchanged
        return saved


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _first_shape(shapes: dict[str, Any] | list[int]) -> list[int]:
    return _first_shape(next(iter(shapes.values()))) if isinstance(shapes, dict) else shapes


def _identity(config: dict[str, Any], section: str) -> Any:
    """Return what must be the same to resume: sizes and structure, not what may be tuned on the way."""
    value: Any = config.get(section)
    if section == "parallel":  # all strategies have the same state, but for the members of an ensemble
        return "ensemble" if _trains_members(value["name"]) else "one model"
    if section == "ema":
        return "on" if value is not None else "off"
    if not isinstance(value, dict):
        return value
    tunable = tunable_keys(section)
    kept = {key: v for key, v in value.items() if key not in tunable}
    half_kept = [key for key in value if key in tunable and tunable[key].set_or_null]
    return {**kept, **{key: None if value[key] is None else "set" for key in half_kept}}


def _trains_members(strategy: str) -> bool:
    """Return whether a built-in strategy trains a model on each device. Of a user's the shapes tell."""
    sections = get_args(Config.model_fields["parallel"].annotation)
    return any(section.model_per_device for section in sections if name_of(section) == strategy)

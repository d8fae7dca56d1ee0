"""Compare a checkpoint's job with this job: differences that forbid a resume, and other changes. Pure functions."""

from __future__ import annotations

import json
from typing import Any, get_args

from ..config import Config, SavedConfig, saved_config
from ..config.base import name_of
from ..config.job import tunable_keys
from ..data.mixture import missing_sources
from ..data.saved_tokenizer import Saved, difference
from ..state import StateDict
from ..wording import first_rows
from .metadata import JobMeta, Shapes

_SECTIONS = ("task", "model", "trainable", "optimizer", "parallel", "ema")
_NOT_EXAMPLES = ("name", "bring", "skip", "weights", "weights_from")
"""Keys of `data` that do not change which examples there are."""
_SHOWN = 8

Row = tuple[str, Any, Any]
"""(key, value in the checkpoint, value now)."""


def obstacles(
    meta: JobMeta, config: Config, fingerprint: bytes, shapes: Shapes, tokenizer: Saved | None = None
) -> list[tuple[str, str]]:
    """Return why this job cannot resume from a checkpoint, as (key, reason) rows; empty if it can.

    Args:
        meta: the checkpoint's metadata.
        config: this job.
        fingerprint: digest of this job's data.
        shapes: shapes of the arrays of this job's state, as `shapes_of` returns them.
        tokenizer: this job's tokenizer.
    """
    saved, now = _completed(meta["config"]), saved_config(config)
    rows = [
        (key, f"{json.dumps(before)} in the checkpoint, {json.dumps(after)} in this job")
        for section in _SECTIONS
        for key, before, after in differences(section, _identity(saved, section), _identity(now, section))
    ]
    lacks = missing_sources(bytes.fromhex(meta["fingerprint"]), fingerprint)
    if lacks:
        reason = "without a source of the checkpoint, or with another one; a source may be added, or get a weight of 0"
        rows.append(("data.sources", reason))
    elif lacks is None and meta["fingerprint"] != fingerprint.hex():
        rows.append(("data", f"not the same as before (data.name {saved['data']['name']}, now {now['data']['name']})"))
        rows += [
            (key, f"{json.dumps(before)} in the checkpoint, {json.dumps(after)} in this job")
            for key, before, after in differences("data", saved["data"], now["data"])
            if key.split(".")[1] not in _NOT_EXAMPLES
        ]
        if (other := difference(meta.get("tokenizer"), tokenizer)) is not None:
            rows.append(("data.tokenizer", f"another: {other}"))
    if not rows and config.parallel.model_per_device:
        before, after = [_first_shape(shapes["params"])[0] for shapes in (meta["shapes"], shapes)]
        if before != after:
            rows = [("members", f"{before} in the checkpoint, {after} in this job, one for each device of its slice")]
    if not rows:  # differences that are not in the config, such as changed code of a user's model
        rows = [
            (key, f"shape {json.dumps(before)} in the checkpoint, {json.dumps(after)} in this job")
            for key, before, after in differences("state", _without_frozen(meta["shapes"], shapes), shapes)
        ]
    return rows


def refusal(workdir: object, step: int, rows: list[tuple[str, str]]) -> str:
    """Return the error message for a checkpoint of another job; `rows` is the result of `obstacles`.

    Line 1 has the first difference.
    """
    key, reason = rows[0]
    shown = first_rows([f"{key}: {reason}" for key, reason in rows], _SHOWN)
    return "\n".join(
        [
            f"workdir {workdir} holds a checkpoint (step {step}) of another job: {key} is {reason}",
            *[f"  {row}" for row in shown],
            "choose another --workdir to start anew, or give the values of the checkpoint to resume it",
        ]
    )


def changes(meta: JobMeta, config: Config, tokenizer: Saved | None = None) -> list[str]:
    """Return `key: before -> after` for every value of this job that differs from the checkpoint's."""
    before, now = _completed(meta["config"]), saved_config(config)
    rows = [f"{key}: {_plain(old)} -> {_plain(new)}" for key, old, new in differences("", before, now)]
    other = difference(meta.get("tokenizer"), tokenizer)
    return rows if other is None else [*rows, f"the tokenizer: {other}"]


def _without_frozen(saved: Shapes, now: Shapes) -> Shapes:
    """Leave out of a checkpoint's average the parameters that this job freezes. Older versions saved them there."""
    if "ema" not in saved or "ema" not in now:
        return saved

    def common(saved: Any, now: Any) -> Any:
        if not isinstance(saved, dict) or not isinstance(now, dict):
            return {} if now == {} else saved
        return {key: common(value, now.get(key)) for key, value in saved.items()}

    return {**saved, "ema": common(saved["ema"], now["ema"])}


def differences(prefix: str, before: Any, after: Any) -> list[Row]:
    """Return a row for each value that differs in two nested dictionaries; keys are joined by dots, after `prefix`."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = [*before, *(k for k in after if k not in before)]
        start = f"{prefix}." if prefix else ""
        return [row for k in keys for row in differences(f"{start}{k}", before.get(k), after.get(k))]
    return [] if before == after else [(prefix, before, after)]


def shapes_of(state: StateDict) -> Shapes:
    """Return the state's tree with the shape of each array in its place."""
    return {k: shapes_of(v) if isinstance(v, dict) else list(v.shape) for k, v in state.items() if v is not None}


def _completed(saved: SavedConfig) -> SavedConfig:
    """Fill in the defaults of keys that were added after the checkpoint was saved."""
    try:
        return saved_config(Config.model_validate(saved))
    except ValueError:  # saved by a version with other keys: compared as it is
        return saved


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _first_shape(shapes: Shapes | list[int]) -> list[int]:
    return _first_shape(next(iter(shapes.values()))) if isinstance(shapes, dict) else shapes


def _identity(config: SavedConfig, section: str) -> Any:
    """Return the values of a section that must be equal to resume: all but the tunable ones."""
    value: Any = config.get(section)
    if section == "parallel":  # all strategies have the same state, except ensemble, which has one per member
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
    """Return whether a built-in strategy trains one model per device. For a user's strategy, the shapes are compared."""
    sections = get_args(Config.model_fields["parallel"].annotation)
    return any(section.model_per_device for section in sections if name_of(section) == strategy)

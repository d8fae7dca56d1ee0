"""The metadata of a training job's checkpoint, as it is stored in JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, NotRequired, TypedDict

from .. import ranking
from ..config import SavedConfig
from ..data import mixture, saved_tokenizer, streamed
from ..measure import epochs
from ..models.weight_files import ConfigJson

Shapes = dict[str, "Shapes | list[int]"]
"""The tree of the state with the shape of each array, a list of numbers, in its place."""


class TokenIds(TypedDict):
    """What a checkpoint records of the token ids in its job's data."""

    vocabulary: int
    """Number of different ids: each is smaller than this."""
    end: int | None
    """Id that ends each document; None if documents have no end."""


@dataclass(frozen=True)
class JobInputs:
    """Inputs of a job besides its config: tokenizer, special tokens and published model. Saved with each checkpoint."""

    tokenizer: saved_tokenizer.Saved | None = None
    """The tokenizer of its data, which is compared with that of a restored checkpoint; None for a user's, and without one."""
    token_ids: TokenIds | None = None
    """The ids of its data; None if that has no tokens."""
    published: ConfigJson | None = None
    """The config.json of the model that it begins with; None for random weights."""


class JobMeta(TypedDict):
    """Metadata that is saved with the arrays of a state. Keys that older versions of podrun did not write may be absent."""

    config: SavedConfig
    """The job, as `saved_config` returns it."""
    position: int
    """Number of examples consumed."""
    fingerprint: str
    """Digest of the job's data, in hexadecimal."""
    shapes: Shapes
    frozen: NotRequired[dict[str, str]]
    """dtype of each parameter that is not trained, by name: these are in a folder of their own."""
    epoch_means: NotRequired[epochs.SavedMeans | None]
    """None unless the job counts epochs."""
    best: NotRequired[ranking.SavedBest | None]
    """None before the first evaluation."""
    published: NotRequired[ConfigJson | None]
    """The config.json of the model that the first weights came from; None for random ones."""
    mixture: NotRequired[list[mixture.SavedStage] | None]
    """Weights of the sources by position, if the data is a mixture."""
    skipped: NotRequired[list[list[int]] | None]
    """Ranges of the order of examples that are left out: first position, and that after the last."""
    streams: NotRequired[list[str] | None]
    """State of the iterator of each part of the batches, as `data.streamed` encodes it, if the data is read by iterators."""
    evaluated: NotRequired[bool | None]
    """True if the state of the checkpoint was evaluated."""
    metrics: NotRequired[dict[str, float] | None]
    """In memory only: metrics of the evaluation at this step. On disk they are in a file of their own."""
    token_ids: NotRequired[TokenIds | None]
    """None for data without tokens."""
    tokenizer: NotRequired[saved_tokenizer.Saved | None]
    """None for a user's tokenizer, and for data without one."""


class Counters(NamedTuple):
    """Counters of a job besides its steps and examples, as they are saved in a checkpoint."""

    epoch_means: epochs.SavedMeans | None = None
    """The value of `EpochMeans.saved`, if the job counts epochs."""
    best: ranking.SavedBest | None = None
    """The value of `BestSoFar.saved`."""
    mixture: list[mixture.SavedStage] | None = None
    """Weights of the sources by position, if the data is a mixture."""
    skipped: list[list[int]] | None = None
    """Ranges of the order that are left out: first position, and that after the last."""
    streams: list[str] | None = None
    """State of the iterator of each part of the batches, if the data is read by iterators."""
    evaluated: bool | None = None
    """True if the state of the checkpoint was evaluated."""


_KINDS = {"config": dict, "position": int, "fingerprint": str, "shapes": dict}


def job_meta(meta: Any) -> JobMeta:
    """Return the metadata with its type.

    Raises ValueError, KeyError or TypeError unless `Checkpoints.save` can have written it.
    """
    for key, kind in _KINDS.items():
        if not isinstance(meta[key], kind):
            raise TypeError(f"{key} is not of type {kind.__name__}")
    if not 0 <= meta["position"] < 2**63:
        raise ValueError(f"position {meta['position']}")
    bytes.fromhex(meta["fingerprint"])
    if not isinstance(meta["shapes"]["params"], dict):
        raise TypeError("shapes.params is not of type dict")
    if not all(isinstance(text, str) for text in dict(meta.get("frozen", {})).values()):
        raise TypeError("frozen does not name types")
    if meta.get("epoch_means") is not None:
        epochs.check_saved(meta["epoch_means"])
    if meta.get("best") is not None:
        ranking.check_saved(meta["best"])
    if meta.get("mixture") is not None:
        mixture.check_saved(meta["mixture"])
    if meta.get("streams") is not None:
        streamed.check_saved(meta["streams"])
    if not all(isinstance(value, (int, float)) for value in dict(meta.get("metrics") or {}).values()):
        raise TypeError("metrics are no numbers")
    if (ids := meta.get("token_ids")) is not None:
        end = ids["end"]
        if not isinstance(ids["vocabulary"], int) or not (end is None or isinstance(end, int)):
            raise TypeError("token_ids are no numbers")
    edges = [-1, *(edge for start, end in meta.get("skipped") or [] for edge in (start, end - 1))]
    if edges != sorted(edges) or not all(isinstance(edge, int) for edge in edges):
        raise ValueError("the ranges that are left out are not in order")
    if not isinstance(meta.get("published") or {}, dict):
        raise TypeError("published is not of type dict")
    if meta.get("tokenizer") is not None:
        saved_tokenizer.check_saved(meta["tokenizer"])
    checked: JobMeta = meta
    return checked

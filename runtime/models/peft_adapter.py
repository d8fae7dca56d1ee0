"""Read a published model with an adapter of PEFT: LoRA's A and B are added to the matrices of its base model."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..contract import UserError
from .weight_files import ConfigJson, StoredArray, read_header, read_json

CONFIG, ARRAYS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."
_NAME = re.compile(rf"{re.escape(_PREFIX)}(.+)\.lora_([AB])\.weight")
MERGE = "add it to its model with PEFT's merge_and_unload, and give a folder to which save_pretrained writes that"
_OTHERS = (
    *("use_dora", "use_qalora", "lora_bias", "modules_to_save", "layer_replication", "alora_invocation_tokens"),
    *("trainable_token_indices", "arrow_config", "kasa_config", "monteclora_config"),
)
"""Keys of adapter_config.json that make an adapter more than a sum of matrices."""
_CHANGE_THE_BASE = ("pissa", "olora", "corda", "loftq")
"""Prefixes of `init_lora_weights` for which PEFT changes the weights of the base model."""


@dataclass(frozen=True)
class AdaptedArray:
    """A matrix of the base model with scale B A added, [outputs, inputs], or [inputs, outputs] if it is `transposed`.

    Attributes:
        base: the matrix in its file.
        a: A, float32[rank, inputs].
        b: B, float32[outputs, rank].
    """

    base: StoredArray
    a: np.ndarray
    b: np.ndarray
    scale: float
    transposed: bool

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape

    def part(self, block: tuple[slice, ...]) -> np.ndarray:
        """Return a block of the sum, float32."""
        rows, columns = block
        added = self.a[:, rows].T @ self.b[columns].T if self.transposed else self.b[rows] @ self.a[:, columns]
        whole: np.ndarray = self.base.part(block).astype(np.float32) + np.float32(self.scale) * added
        return whole


def is_adapter(folder: Path) -> bool:
    """Return whether a folder has an adapter of PEFT, and no model of its own."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def base_of(folder: Path) -> Path:
    """Return the folder of an adapter's base model. Raises UserError if it is not on this machine."""
    given = read_json(folder / CONFIG).get("base_model_name_or_path")
    if not isinstance(given, str) or not given:
        raise UserError(f"{folder / CONFIG} has no base_model_name_or_path: write there the folder of the base model")
    path = Path(given).expanduser()
    places = [path.absolute(), folder / path, folder.parent / path, *_in_cache(given)]
    for place in places:
        if (place / "config.json").is_file():
            return place
    if "://" in given:
        raise UserError(
            f"{folder} has an adapter of PEFT, and its base model is {given}: copy that to a folder, and write the folder in "
            f"base_model_name_or_path of {CONFIG}"
        )
    download = "" if path.is_absolute() else f"; from the Hub: hf download {given} --local-dir {path.name}"
    raise UserError(
        f"{folder} has an adapter of PEFT, and its base model {given} is not on this machine: {CONFIG} names it in "
        f"base_model_name_or_path, where the folder of the model belongs{download}"
    )


def _in_cache(name: str) -> list[Path]:
    """Return the folder of a model of the Hub in the cache of huggingface_hub, if it is there."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    try:
        return [cache / "snapshots" / (cache / "refs/main").read_text().strip()]
    except (OSError, ValueError):
        return []


def adapted(stored: Mapping[str, StoredArray], folder: Path) -> dict[str, StoredArray | AdaptedArray]:
    """Return the arrays of a base model with an adapter added.

    Args:
        stored: the arrays by their names in the files.
        folder: the adapter's.

    Raises:
        UserError: the adapter is damaged, of another model, or not LoRA as published.
    """
    config = read_json(folder / CONFIG)
    _check_kind(folder, config)
    if not (folder / ARRAYS).is_file():
        raise UserError(f"{folder} has no {ARRAYS}, which PEFT's save_pretrained writes; copy or download it again")
    pairs: dict[str, dict[str, np.ndarray]] = {}
    for name, array in read_header(folder / ARRAYS).items():
        match = _NAME.fullmatch(name)
        if match is None or len(getattr(stored.get(f"{match[1]}.weight"), "shape", ())) != 2:
            raise UserError(f"{folder}: the adapter has {name}, and the base model has no matrix for it; {MERGE}")
        if not array.is_float:
            raise UserError(f"{folder / ARRAYS}: {name} is {array.dtype}, and weights are F32, F16 or BF16; {MERGE}")
        pairs.setdefault(match[1], {})[match[2]] = array.part(()).astype(np.float32)
    sums: dict[str, StoredArray | AdaptedArray] = {**stored}
    for name, pair in pairs.items():
        base = stored[f"{name}.weight"]
        transposed = config.get("fan_in_fan_out") is True
        none = np.zeros((0, 0), np.float32)
        a, b = pair.get("A", none), pair.get("B", none)
        outputs, inputs = base.shape[::-1] if transposed else base.shape
        if (a.shape[1:], b.shape[:1]) != ((inputs,), (outputs,)) or b.shape[1:] != a.shape[:1]:
            raise UserError(
                f"{folder}: A and B of {name} have the shapes {list(a.shape)} and {list(b.shape)}, which do not fit "
                f"[{outputs}, {inputs}], that of the base model's matrix; give the adapter's own base model in "
                f"base_model_name_or_path of {CONFIG}"
            )
        sums[f"{name}.weight"] = AdaptedArray(base, a, b, _scale(folder, config, name, len(a)), transposed)
    return sums


def _check_kind(folder: Path, config: ConfigJson) -> None:
    wrong = [key for key in _OTHERS if config.get(key)]
    if config.get("peft_type") != "LORA":
        wrong.append("peft_type")
    if config.get("bias", "none") != "none":
        wrong.append("bias")
    if str(config.get("init_lora_weights")).startswith(_CHANGE_THE_BASE):
        wrong.append("init_lora_weights")
    if wrong:
        shown = ", ".join(f"{key} {config.get(key)!r}" for key in wrong)
        raise UserError(f"{folder}: podrun does not apply an adapter of PEFT with {shown}; {MERGE}")


def _scale(folder: Path, config: ConfigJson, name: str, rank: int) -> float:
    """Return the factor of B A of a matrix."""
    alpha: Any = config.get("lora_alpha", 8)
    try:
        for pattern, value in (config.get("alpha_pattern") or {}).items():
            if re.match(rf"(.*\.)?({pattern})$", name):
                alpha = value
                break
        scale = float(alpha) / (math.sqrt(rank) if config.get("use_rslora") else rank)
    except (TypeError, ValueError, AttributeError, re.error, ZeroDivisionError) as error:
        raise UserError(f"{folder / CONFIG} is not as PEFT writes it: {error}") from None
    return scale

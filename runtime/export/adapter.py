"""Write the LoRA of a `Decoder` as a folder that PEFT opens: adapter_config.json and adapter_model.safetensors.

PEFT has one A and one B for each matrix of the files. GPT-2's files have queries, keys and values side by side in one matrix:
its A has those of all three, and its B theirs in blocks along a diagonal, which computes the same.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..config import bucket_url
from ..config.model import Lora
from ..contract import UserError
from .formats import Described, write_safetensors
from .published import PublishedModel, write_json

CONFIG, ARRAYS = "adapter_config.json", "adapter_model.safetensors"
_PREFIX, _END = "base_model.model.", ".weight"

Parts = list[tuple[tuple[str, ...], int]]
"""Paths of the parameters that a matrix of the files has side by side, and the layer."""


class Adapter:
    """The LoRA matrices of a model, under the names that PEFT gives them.

    Args:
        model: a model that the library transformers can open.

    Raises:
        UserError: the model was not trained with LoRA.
    """

    def __init__(self, model: PublishedModel) -> None:
        if model.section.lora is None:
            raise UserError(
                "--format peft writes LoRA, but the job has no model.lora; take hf, which writes a whole model"
            )
        self._model = model
        self._lora: Lora = model.section.lora
        self._matrices: dict[str, Parts] = {
            name.removesuffix(_END): parts
            for name, parts in model.parts.items()
            if any(model.lora_of(place) is not None for place, _ in parts)
        }

    @property
    def described(self) -> Described:
        """Return shape and dtype of each array by its name in PEFT's file."""
        arrays = {}
        for matrix, parts in self._matrices.items():
            rank = self._lora.rank * self._with_lora(parts)
            source = self._model.sources[parts[0][0]]
            whole = source.shape_in_files(self._model.arrays[parts[0][0]][0])
            outputs, inputs = whole if source.is_transposed else whole[::-1]
            arrays[f"{_PREFIX}{matrix}.lora_A{_END}"] = ((rank, inputs), np.dtype(np.float32))
            arrays[f"{_PREFIX}{matrix}.lora_B{_END}"] = ((outputs, rank), np.dtype(np.float32))
        return arrays

    def config(self) -> dict[str, Any]:
        """Return the content of adapter_config.json."""
        lora, section = self._lora, self._model.section
        wide = {}  # matrices of several parts, by name: how many of them have LoRA
        for matrix, parts in self._matrices.items():
            if (count := self._with_lora(parts)) > 1:
                wide[self._short(matrix)] = count
        return {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": _name_of(section.init_from),
            "r": lora.rank,
            "lora_alpha": _plain(lora.alpha),
            "rank_pattern": {name: lora.rank * count for name, count in wide.items()},
            "alpha_pattern": {name: _plain(lora.alpha * count) for name, count in wide.items()},
            "lora_dropout": lora.dropout,
            "target_modules": sorted({self._short(matrix) for matrix in self._matrices}),
            "fan_in_fan_out": not self._model.family.is_transposed,
            "bias": "none",
            "inference_mode": True,
        }

    def write(self, folder: Path, read: Callable[[tuple[str, ...]], np.ndarray]) -> None:
        """Write the files to a folder. Raises OSError, and the errors of `read`.

        Args:
            folder: an empty folder.
            read: returns the parameter at a path.
        """
        folder.mkdir()
        write_json(folder / CONFIG, self.config())
        kept: dict[tuple[str, ...], np.ndarray] = {}  # stacked over layers; each layer is taken from them

        def of_file(name: str) -> np.ndarray:
            matrix, _, letter = name.removeprefix(_PREFIX).removesuffix(_END).rpartition(".lora_")
            return self._array(self._matrices[matrix], letter, lambda place: kept.setdefault(place, read(place)))

        write_safetensors(folder / ARRAYS, self.described, of_file, {"format": "pt"})

    def _array(self, parts: Parts, letter: str, read: Callable[[tuple[str, ...]], np.ndarray]) -> np.ndarray:
        """Return A, [rank, inputs], or B, [outputs, rank], of a matrix of the files."""
        blocks: list[np.ndarray] = []
        rank, done = self._lora.rank * self._with_lora(parts), 0
        for place, layer in parts:
            both = self._model.lora_of(place)
            if letter == "A":
                blocks += [] if both is None else [read(both[0])[layer].T]
                continue
            rows = np.zeros((self._model.arrays[place][0][-1], rank), np.float32)
            if both is not None:
                rows[:, done : done + self._lora.rank] = read(both[1])[layer].T
                done += self._lora.rank
            blocks.append(rows)
        return np.concatenate(blocks)

    def _with_lora(self, parts: Parts) -> int:
        return sum(self._model.lora_of(place) is not None for place, _ in parts)

    def _short(self, matrix: str) -> str:
        """Return the ending of a name that matches these matrices and no others in PEFT: `q_proj`, or `attn.c_proj`."""
        *_, module, last = matrix.split(".")
        others = {name.removesuffix(_END) for name in self._model.parts if name.endswith(f".{last}{_END}")}
        return last if others <= self._matrices.keys() else f"{module}.{last}"


def _name_of(folder: Path | None) -> str:
    """Return the folder of the base model as it was given."""
    return (bucket_url.url(folder) if folder else None) or str(folder)


def _plain(number: float) -> float:
    """Return a whole number as an int, as PEFT's config has it."""
    return int(number) if number.is_integer() else number

"""Write a `Decoder` as a folder that transformers opens: config.json, safetensors files, tokenizer.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoint.metadata import JobMeta
from ..config.model import DecoderModel
from ..contract import UserError
from ..models.families import differences, family_of, family_that_is
from ..models.families.base import Family, Source, sources
from ..models.weight_files import INDEX, ONE_FILE, ConfigJson
from .formats import Described, Read, write_safetensors

SHARD = 5_000_000_000
"""Most bytes of arrays in a file, unless one array has more."""
Place = tuple[str, ...]
"""Path of a parameter."""
Arrays = Mapping[Place, tuple[tuple[int, ...], np.dtype[Any]]]
"""Shape and dtype of parameters by path."""
_OF_THE_FILES = ("torch_dtype", "quantization_config", "transformers_version")
"""Keys of config.json about the files that a model was read from."""
_SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id")


class PublishedModel:
    """The model of a checkpoint, as one that the library transformers can open.

    Args:
        meta: metadata of the checkpoint.
        arrays: its parameters' shapes and dtypes, by path.
        form: the format to write, for messages.

    Attributes:
        section: the section `model` of the job.
        family: the model's family.
        sources: the arrays of the files that make each parameter, by path; without LoRA's parameters.
        arrays: the argument `arrays`.
        parts: for each array of the files, the paths of the parameters that it joins side by side, and the layer.

    Raises:
        UserError: transformers has no such model, or it is an ensemble.
    """

    def __init__(self, meta: JobMeta, arrays: Arrays, form: str = "hf") -> None:
        section = meta["config"].get("model", {})
        if section.get("name") != "decoder":
            raise UserError(
                f"--format {form} writes model decoder, but the job has model {section.get('name')}; take safetensors or npz"
            )
        self.section = DecoderModel.model_validate(section)
        self._published = meta.get("published")
        ids = meta.get("token_ids")
        self._end_of_text = None if ids is None else ids["end"]
        self.family = self._find_family()
        self.sources = sources(self.family, self.section)
        self.arrays = arrays
        low_rank = {place for both in map(self.lora_of, self.sources) if both is not None for place in both}
        if different := arrays.keys() ^ (self.sources.keys() | low_rank):
            name = ".".join(min(different))
            raise UserError(
                f"--format {form}: the job's task has other parameters than model decoder, {name} among them"
            )
        if len(arrays["final_norm", "scale"][0]) != 1:
            raise UserError(
                f"--format {form} writes one model, but the checkpoint has an ensemble; take safetensors or npz"
            )
        self.parts: dict[str, list[tuple[tuple[str, ...], int]]] = {}
        for place, source in self.sources.items():
            for layer, name in enumerate(source.names):
                self.parts.setdefault(name, []).append((place, layer))

    def _find_family(self) -> Family:
        """Return the family that the weights came from, otherwise the first that includes this model."""
        if self._published is not None:
            family = family_of(self._published)
            if not differences(self.section, family.section(self._published)):
                return family
            self._published = None
        return family_that_is(self.section)

    def lora_of(self, place: Place) -> tuple[Place, Place] | None:
        """Return the paths of A and B of the parameter at a path; None if it has none."""
        *folders, name, last = place
        lora = self.section.lora
        if lora is None or last != "kernel" or len(folders) < 2 or not lora.has(name):
            return None
        return (*folders, f"{name}_lora", "a"), (*folders, f"{name}_lora", "b")

    def _merged(self, place: Place, read: Callable[[Place], np.ndarray]) -> np.ndarray:
        """Return a parameter, float32, with the product of its A and B added if it has LoRA."""
        both, whole = self.lora_of(place), read(place).astype(np.float32, copy=False)
        if both is None:
            return whole
        assert self.section.lora is not None
        a, b = map(read, both)
        return whole + np.float32(self.section.lora.scale) * (a @ b)

    @property
    def described(self) -> Described:
        """Return shape and dtype of each array by its name in the files; arrays of one parameter follow each other."""
        return {name: self._shape(self.sources[parts[0][0]], parts[0][0]) for name, parts in self.parts.items()}

    def _shape(self, source: Source, place: tuple[str, ...]) -> tuple[tuple[int, ...], np.dtype[Any]]:
        return source.shape_in_files(self.arrays[place][0]), np.dtype(np.float32)

    def config(self) -> ConfigJson:
        """Return the content of config.json: the one that the weights came with, or one made from the job."""
        ends = {"eos_token_id": self._end_of_text}
        given = self._published or {**self.family.config(self.section), **dict.fromkeys(_SPECIAL), **ends}
        config = {
            **{key: value for key, value in given.items() if key not in _OF_THE_FILES},
            "architectures": [self.family.architecture],
            "model_type": self.family.kind,
            "vocab_size": self.arrays["embed", "embedding"][0][0],
            "dtype": "float32",
        }
        if self.section.positions == "learned":  # the array has a row for each
            config["n_positions"] = self.section.context
        return config

    def write(self, folder: Path, read: Any, tokenizer: str | None) -> None:
        """Write the files to a folder. Raises OSError, and the errors of `read`.

        Args:
            folder: an empty folder.
            read: returns the parameter at a path.
            tokenizer: a tokenizer.json.
        """
        folder.mkdir()
        config = self.config()
        write_json(folder / "config.json", config)
        if special := {key: config[key] for key in _SPECIAL if config.get(key) is not None}:
            write_json(folder / "generation_config.json", special)
        if tokenizer is not None:
            (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
            write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast"})
        write_shards(folder, self.described, self._reader(read))

    def _reader(self, read: Any) -> Read:
        """Return a function that reads an array by its name in the files.

        It keeps the last parameters in memory, because the next arrays may be parts of the same ones.
        """
        kept: dict[tuple[str, ...], np.ndarray] = {}

        def of_files(name: str) -> np.ndarray:
            parts = self.parts[name]
            if not all(place in kept for place, _ in parts):
                kept.clear()
                kept.update({place: self._merged(place, read) for place, _ in parts})
            arrays = [self.sources[place].write(layer, kept[place]) for place, layer in parts]
            return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=-1)

        return of_files


def write_shards(folder: Path, arrays: Described, read: Read, most: int = SHARD) -> None:
    """Write arrays to safetensors files of at most `most` bytes of arrays each, and an index if there are several."""
    shards: list[dict[str, tuple[tuple[int, ...], np.dtype[Any]]]] = [{}]
    total = size = 0
    for name, (shape, dtype) in arrays.items():
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        if shards[-1] and size + nbytes > most:
            shards.append({})
            size = 0
        shards[-1][name] = (shape, dtype)
        size += nbytes
        total += nbytes
    if len(shards) == 1:
        write_safetensors(folder / ONE_FILE, arrays, read, {"format": "pt"})
        return
    files = {f"model-{number:05}-of-{len(shards):05}.safetensors": shard for number, shard in enumerate(shards, 1)}
    for file, shard in files.items():
        write_safetensors(folder / file, shard, read, {"format": "pt"})
    places = {name: file for file, shard in files.items() for name in shard}
    write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": places})


def write_json(file: Path, value: Any) -> None:
    file.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")

"""Begin with a published model: `model.init_from` names a folder as `save_pretrained` of transformers writes it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from pydantic import ValidationError

from ..array_names import places
from ..config import Config
from ..config.model import DecoderModel
from ..contract import UserError
from ..state import Params
from . import make_language_model
from .families import FREE, differences, family_of
from .families.base import SectionKeys, Source, check_names, need, sources
from .weight_files import ConfigJson, StoredArray, read_json, stored_arrays

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
_ADAPTER = "adapter_config.json"
_NOT_TRAINED = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
"""Ends of the names of arrays that older files have, and that are computed here."""
_SHOWN = 8  # rows of a table in a message


def with_architecture(config: Config, published: ConfigJson | None = None) -> Config:
    """Return the job with a complete section `model`: if it has `init_from`, the other keys are those of its config.json.

    Args:
        config: the job.
        published: contents of config.json; None: the file is read.

    Raises UserError if config.json cannot be read, is not of a model that `Decoder` can be, or differs from keys of the job.
    """
    section = config.model
    if not isinstance(section, DecoderModel) or section.is_complete:
        return config
    assert section.init_from is not None
    file = section.init_from.expanduser() / CONFIG
    given = published or _read_config(section.init_from)
    try:
        model = family_of(given).section(given)
        vocabulary = need(given, "vocab_size")
    except ValidationError as error:
        raise UserError(f"model.init_from: the model in {file} cannot be: {_reasons(error)}") from None
    except UserError as error:
        raise UserError(f"model.init_from: {file.parent}: {error}") from None
    values = {key: getattr(section, key) for key in section.model_fields_set}
    problems = _problems(model, vocabulary, values, file)
    if problems:
        raise UserError("\n".join(problems))
    free = {key: value for key, value in values.items() if key in FREE}
    whole = {**model.model_dump(), "vocabulary": vocabulary, **free}
    return config.model_copy(update={"model": DecoderModel.model_validate(whole)})


def published_config(config: Config) -> ConfigJson | None:
    """Return the config.json of the model that a job begins with; None if it has no `init_from`."""
    section = config.model
    if not isinstance(section, DecoderModel) or section.init_from is None:
        return None
    return _read_config(section.init_from)


def _read_config(given: Path) -> ConfigJson:
    """Return the config.json in `init_from`. Raises UserError, which says what the folder is, if there is none."""
    folder = given.expanduser()
    if (folder / _ADAPTER).is_file():
        raise UserError(
            f"model.init_from: {folder} has an adapter of PEFT, which podrun does not apply; add it to its model with PEFT's "
            "merge_and_unload, and give a folder to which save_pretrained writes that"
        )
    if (folder / "checkpoints").is_dir() and not (folder / CONFIG).is_file():
        raise UserError(
            f"model.init_from: {folder} is the workdir of a run; write its model with `podrun export {folder} --format hf -o "
            "FOLDER`, and give that folder"
        )
    return read_json(folder / CONFIG)


def _problems(published: DecoderModel, vocabulary: int, values: SectionKeys, file: Path) -> list[str]:
    """Return why keys of the job cannot be given beside a config.json."""
    others = {key: value for key, value in values.items() if key not in FREE and value is not None}
    lora = {key: value for key, value in values.items() if key in ("lora", "init_from")}
    try:
        beside = DecoderModel.model_validate({**published.model_dump(), **others, **lora})
    except ValidationError as error:
        return [f"model: the keys do not fit {file}: {_reasons(error)}; remove them"]
    rows = differences(beside, published)
    problems = [f"{row} as in {file}; remove the key" for key, row in rows.items() if key in others]
    context = values.get("context") or 1
    if context > published.context:
        problems.append(f"model.context is {context}, but {file} has {published.context}; give at most that")
    if (given := values.get("vocabulary")) not in (None, vocabulary):
        problems.append(f"model.vocabulary is {given}, not {vocabulary} as in {file}; remove the key")
    return problems


def _reasons(error: ValidationError) -> str:
    rows = [(".".join(map(str, row["loc"])), row["msg"].removeprefix("Value error, ")) for row in error.errors()]
    return "; ".join(f"{key}: {reason}" if key else reason for key, reason in rows)


def load_weights(section: DecoderModel, published: ConfigJson, form: Params, on_array: Callable[[], None]) -> Params:
    """Return the parameters of the model in `section.init_from`. Each process reads only what its devices need.

    Args:
        section: the complete section.
        published: contents of its config.json.
        form: the parameters as ShapeDtypeStructs with shardings.
        on_array: called after each parameter.

    Raises:
        UserError: the files are damaged, or do not have the model's arrays.
    """
    assert section.init_from is not None
    folder = section.init_from.expanduser()
    family = family_of(published)
    stored = {
        name if name.startswith((family.prefix, "lm_head.")) else family.prefix + name: array
        for name, array in stored_arrays(folder).items()
        if not name.endswith(_NOT_TRAINED)
    }
    check_names(family, section, stored.keys(), f"model.init_from: {folder}")
    parameters = sources(family, section)
    forms = dict(places(form, "the parameters"))
    if forms.keys() != parameters.keys():
        name = ".".join(min(forms.keys() ^ parameters.keys()))
        raise UserError(
            f"model.init_from: the task has other parameters than model decoder, {name} among them; leave init_from out, or "
            "take task language_model"
        )
    _check_shapes(folder, stored, parameters, forms)

    def load(path: Any, leaf: Any) -> jax.Array:
        place = tuple(jax.tree_util.keystr((key,), simple=True) for key in path)
        array = _load(leaf, parameters[place], stored)
        on_array()
        return array

    return jax.tree.map_with_path(load, form)


def is_published(folder: Path) -> bool:
    """Return whether a folder has a published model, and is not the workdir of a run."""
    return (folder / CONFIG).is_file() and not (folder / "checkpoints").is_dir()


def load_here(folder: Path, most: int | None = None) -> tuple[Config, Params]:
    """Return a job with the model of a folder, and its parameters, float32, on the first device.

    Args:
        folder: a folder as `save_pretrained` of transformers writes it.
        most: upper limit of the context in tokens; None: the model's own context.

    Raises:
        UserError: config.json or the files of the weights cannot be used.
    """
    published = read_json(folder / CONFIG)
    # The keys of training are needed to make a job, but have no effect here.
    job = Config.model_validate({"steps": 1, "batch_size": 1, "model": {"name": "decoder", "init_from": str(folder)}})
    section = with_architecture(job, published).model
    assert isinstance(section, DecoderModel)
    if most is not None and section.context > most:
        section = section.model_copy(update={"context": most})
    assert section.vocabulary is not None
    job = job.model_copy(update={"model": section})
    model = make_language_model(job, section.vocabulary, jnp.dtype(job.precision.compute))
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.eval_shape(model.variables, jax.random.key(0), jax.ShapeDtypeStruct((1, section.context), jnp.int32))
    form = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes)
    return job, load_weights(section, published, form, lambda: None)


def _check_shapes(folder: Path, stored: dict[str, StoredArray], parameters: dict[Any, Source], forms: Any) -> None:
    rows = [
        (name, stored[name].shape, source.shape_in_files(forms[place].shape))
        for place, source in parameters.items()
        for name in source.names
        if not source.fits(stored[name].shape, forms[place].shape)
    ]
    if rows:
        width = max(len(name) for name, _, _ in rows[:_SHOWN])
        table = [f"  {name:<{width}}  {list(shape)}, expected {list(needed)}" for name, shape, needed in rows[:_SHOWN]]
        more = [f"  and {len(rows) - _SHOWN} more"] if len(rows) > _SHOWN else []
        head = f"model.init_from: arrays in {folder} do not have the shapes that its config.json says:"
        raise UserError("\n".join([head, *table, *more]))


def _load(form: Any, source: Source, stored: dict[str, StoredArray]) -> jax.Array:
    """Read the blocks of one parameter that the devices of this process need, each once, and one after another."""
    blocks: dict[str, tuple[Any, list[Any]]] = {}  # index and devices by the index as text
    for device, index in form.sharding.addressable_devices_indices_map(form.shape).items():
        blocks.setdefault(str(index), (index, []))[1].append(device)
    arrays: list[jax.Array] = []
    for index, devices in blocks.values():
        block = source.read(index, form.shape, lambda name, part: stored[name].part(part))
        block = block.astype(form.dtype, copy=False)
        # Waits, so that the next block is not read while this one is still in the host's memory.
        arrays += jax.block_until_ready([jax.device_put(block, device) for device in devices])
        del block
    whole: jax.Array = jax.make_array_from_single_device_arrays(form.shape, form.sharding, arrays)
    return whole

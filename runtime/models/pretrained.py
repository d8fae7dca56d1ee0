"""Begin with a published model: `model.init_from` names a folder as `save_pretrained` of transformers writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from pydantic import ValidationError

from ..array_names import places
from ..config import Config, bucket_url
from ..config.model import DecoderModel
from ..contract import UserError
from ..state import Params
from ..wording import first_rows
from . import make_language_model
from .adapter import Model
from .families import FREE, differences, family_of
from .families.base import HEAD, Family, SectionKeys, Source, check_names, need, sources
from .peft_adapter import MERGE, AdaptedArray, adapted, base_of, is_adapter
from .weight_files import ConfigJson, LocalFolder, ModelFolder, StoredArray, read_json, stored_arrays

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
_NOT_TRAINED = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
"""Suffixes of the names of arrays in older files that are computed here instead."""
_SHOWN = 8  # rows of a table in a message
_ROWS = 1024  # rows of a matrix that are compared at once


def with_architecture(config: Config, published: ConfigJson | None = None) -> Config:
    """Return the job with a complete section `model`: if it has `init_from`, its config.json gives the other keys.

    Args:
        config: the job.
        published: contents of config.json; None: the file is read.

    Raises UserError if config.json cannot be read, is not of a model that `Decoder` can be, or differs from keys of the job.
    """
    section = config.model
    if not isinstance(section, DecoderModel) or section.is_complete:
        return config
    assert section.init_from is not None
    folder = bucket_url.url(section.init_from) or section.init_from.expanduser()
    file = f"{folder}/{CONFIG}"
    given = published or _read_config(section.init_from)
    try:
        model = family_of(given).section(given)
        keys = {**model.model_dump(), "vocabulary": need(given, "vocab_size")}
        vocabulary = DecoderModel.model_validate(keys).vocabulary
        assert vocabulary is not None
    except (TypeError, AttributeError, ArithmeticError) as error:  # a list in place of a text, a zero, and the like
        raise UserError(f"model.init_from: {file} is not as `save_pretrained` writes it: {error}") from None
    except ValidationError as error:
        raise UserError(f"model.init_from: podrun cannot make the model of {file}: {_reasons(error)}") from None
    except UserError as error:
        raise UserError(f"model.init_from: {folder}: {error}") from None
    values = {key: getattr(section, key) for key in section.model_fields_set}
    problems = _problems(model, vocabulary, values, file)
    if problems:
        raise UserError("\n".join(problems))
    free = {key: value for key, value in values.items() if key in FREE}
    whole = {**model.model_dump(), "vocabulary": vocabulary, **free}
    return config.model_copy(update={"model": DecoderModel.model_validate(whole)})


def published_config(config: Config, folder: ModelFolder | None = None) -> ConfigJson | None:
    """Return the config.json of the model that a job begins with; None if it has no `init_from`.

    `folder`: its opened folder; None: a folder of this host.
    """
    section = config.model
    if not isinstance(section, DecoderModel) or section.init_from is None:
        return None
    if folder is None:
        return _read_config(section.init_from)
    file = folder.file(CONFIG)
    if file.size() is None:
        raise UserError(
            f"model.init_from: there is no {file}; give the folder of a bucket to which a model was copied, with its "
            "config.json and safetensors, and check the bucket's name"
        )
    return read_json(file)


def _read_config(given: Path) -> ConfigJson:
    """Return the config.json in `init_from`. Raises UserError, which says what the folder is, if there is none."""
    folder = given.expanduser()
    if is_adapter(folder):
        raise UserError(
            f"model.init_from: {folder} has an adapter of PEFT, which podrun does not train further; {MERGE}"
        )
    if (folder / "checkpoints").is_dir() and not (folder / CONFIG).is_file():
        raise UserError(
            f"model.init_from: {folder} is the workdir of a run; write its model with `podrun export {folder} --format hf -o "
            "FOLDER`, and give that folder"
        )
    if not (folder / CONFIG).exists() and (advice := _advice(given, folder)):
        raise UserError(f"model.init_from: there is no {folder / CONFIG} (seen from {Path.cwd()}); {advice}")
    return read_json(folder / CONFIG)


def _advice(given: Path, folder: Path) -> str | None:
    """Return advice about a folder without config.json; None if there is none."""
    if snapshots := sorted(folder.glob(f"snapshots/*/{CONFIG}")):
        return f"the folder is of the Hub's cache: give the snapshot in it, {snapshots[-1].parent}"
    if not folder.exists() and not given.is_absolute() and len(given.parts) == 2:
        return f"if {given} is a model of the Hub, give a folder with it: hf download {given} --local-dir {given.name}"
    return None


def _problems(published: DecoderModel, vocabulary: int, values: SectionKeys, file: str) -> list[str]:
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


def load_weights(
    section: DecoderModel,
    published: ConfigJson,
    form: Params,
    on_array: Callable[[], None],
    adapter: Path | None = None,
    folder: ModelFolder | None = None,
) -> Params:
    """Return the parameters of the model in `section.init_from`. Each process reads only what its devices need.

    Args:
        section: the complete section.
        published: contents of its config.json.
        form: the parameters as ShapeDtypeStructs with shardings.
        on_array: called after each parameter.
        adapter: folder of an adapter of PEFT that is added; None: none is.
        folder: opened folder of the model; None: a folder of this host.

    Raises:
        UserError: the files are damaged, or do not have the model's arrays.
        UnavailableError: a bucket cannot be reached.
    """
    assert section.init_from is not None
    folder = folder or LocalFolder(section.init_from.expanduser())
    family = family_of(published)
    stored = {
        name if name.startswith((family.prefix, "lm_head.")) else family.prefix + name: array
        for name, array in stored_arrays(folder).items()
        if not name.endswith(_NOT_TRAINED)
    }
    if section.tied_head:
        _drop_copied_head(family, stored)
    check_names(family, section, stored.keys(), f"model.init_from: {folder}")
    arrays = stored if adapter is None else adapted(stored, adapter)
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
        array = _load(leaf, parameters[place], arrays)
        on_array()
        return array

    params = jax.tree.map_with_path(load, form)
    folder.check_unchanged()
    return params


def _drop_copied_head(family: Family, stored: dict[str, StoredArray]) -> None:
    """Leave out a head that is a copy of the embedding, which some files of models with a tied head have.

    Raises UserError if it is no copy: then config.json and the files contradict each other.
    """
    names = [name for name, place in family.names.items() if place == "embed.embedding"]
    head, embedding = stored.get(HEAD), stored.get(names[0])
    if head is None or embedding is None:
        return
    rows = range(0, head.shape[0] if head.shape else 0, _ROWS)
    if (head.dtype, head.shape) != (embedding.dtype, embedding.shape) or not all(
        np.array_equal(head.part(block), embedding.part(block), equal_nan=False)
        for block in ((slice(row, row + _ROWS),) for row in rows)
    ):
        raise UserError(
            f"model.init_from: {CONFIG} says tie_word_embeddings, which makes the head the embedding, but {HEAD} in "
            f"{head.file} differs from the embedding; set tie_word_embeddings to false if the model has this head"
        )
    del stored[HEAD]


def is_published(folder: Path) -> bool:
    """Return whether a folder has a published model, or an adapter of PEFT to one, and is not the workdir of a run."""
    return ((folder / CONFIG).is_file() or is_adapter(folder)) and not (folder / "checkpoints").is_dir()


def folders_of(folder: Path) -> tuple[Path, ...]:
    """Return the folder of a published model; of an adapter of PEFT, and then of its base model.

    Raises UserError if the base model is not on this machine.
    """
    return (folder, base_of(folder)) if is_adapter(folder) else (folder,)


def file_of(folders: tuple[Path, ...], name: str) -> Path | None:
    """Return the file of a published model in the first of its folders that has it."""
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def title_of(folders: tuple[Path, ...]) -> str:
    """Return a phrase that describes a published model."""
    folder, *base = folders
    return f"the adapter in {folder}, added to {base[0]}" if base else f"the published model in {folder}"


Divide = Callable[[Config, Model, Params], Params]
"""Called with a job, its model and the shapes of the parameters; returns their shardings."""


def load_here(folder: Path, most: int | None = None, divide: Divide | None = None) -> tuple[Config, Params]:
    """Return a job with the model of a folder, and its parameters, float32.

    Args:
        folder: a folder as `save_pretrained` of transformers writes it, or PEFT's of an adapter.
        most: most tokens of the context; None: as many as the model has.
        divide: returns the shardings of the parameters; None: they are on the first device.

    Raises:
        UserError: config.json or the files of the weights cannot be used.
    """
    adapter, base = folder if is_adapter(folder) else None, folders_of(folder)[-1]
    published = read_json(base / CONFIG)
    # The keys of training are needed to make a job, but have no effect here.
    job = Config.model_validate({"steps": 1, "batch_size": 1, "model": {"name": "decoder", "init_from": str(base)}})
    section = with_architecture(job, published).model
    assert isinstance(section, DecoderModel)
    if most is not None and section.context > most:
        section = section.model_copy(update={"context": most})
    assert section.vocabulary is not None
    job = job.model_copy(update={"model": section})
    model = make_language_model(job, section.vocabulary, jnp.dtype(job.precision.compute))
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.eval_shape(model.variables, jax.random.key(0), jax.ShapeDtypeStruct((1, section.context), jnp.int32))
    shardings = divide(job, model, shapes) if divide else jax.tree.map(lambda leaf: place, shapes)
    form = jax.tree.map(lambda leaf, at: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=at), shapes, shardings)
    return job, load_weights(section, published, form, lambda: None, adapter)


def _check_shapes(
    folder: ModelFolder, stored: dict[str, StoredArray], parameters: dict[Any, Source], forms: Any
) -> None:
    rows = [
        (name, stored[name].shape, source.shape_in_files(forms[place].shape))
        for place, source in parameters.items()
        for name in source.names
        if not source.fits(stored[name].shape, forms[place].shape)
    ]
    if rows:
        width = max(len(name) for name, _, _ in rows[:_SHOWN])
        table = [f"{name:<{width}}  {list(shape)}, expected {list(needed)}" for name, shape, needed in rows]
        head = f"model.init_from: arrays in {folder} do not have the shapes that its config.json says:"
        raise UserError("\n".join([head, *(f"  {row}" for row in first_rows(table, _SHOWN))]))


def _load(form: Any, source: Source, stored: Mapping[str, StoredArray | AdaptedArray]) -> jax.Array:
    """Read the blocks of one parameter that the devices of this process need, each once, and one after another.

    Of a remote file a process reads whole rows, because part of each row would be a request. So where devices need parts of
    rows, they get others' rows first, and then exchange them.
    """
    by_rows = _by_rows(form, source) if _is_remote(source, stored) and jax.process_count() > 1 else None
    if by_rows is not None:
        whole = _load(jax.ShapeDtypeStruct(form.shape, form.dtype, sharding=by_rows), source, stored)
        return jax.block_until_ready(jax.device_put(whole, form.sharding, donate=True))
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
    return jax.make_array_from_single_device_arrays(form.shape, form.sharding, arrays)


def _is_remote(source: Source, stored: Mapping[str, StoredArray | AdaptedArray]) -> bool:
    array = stored[source.names[0]]
    return isinstance(array, StoredArray) and array.file.is_remote


def _by_rows(form: Any, source: Source) -> NamedSharding | None:
    """Return a sharding that divides rows of the files in place of columns; None if there is no need, or rows cannot be."""
    spec = [*form.sharding.spec, *[None] * (len(form.shape) - len(form.sharding.spec))]
    if len(form.shape) - source.is_stacked != 2 or source.among > 1:
        return None
    row, column = (-1, -2) if source.is_transposed else (-2, -1)
    axes = spec[column]
    parts = form.sharding.mesh.shape[axes] if isinstance(axes, str) else 1
    if parts == 1 or spec[row] is not None or form.shape[row] % parts:
        return None
    spec[row], spec[column] = axes, None
    return NamedSharding(form.sharding.mesh, PartitionSpec(*spec))

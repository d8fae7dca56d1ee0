"""Load a trained model from a checkpoint, or a published one from its folder, on this machine's first device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from pydantic import ValidationError

from ..checkpoint.saved_model import SavedModel, find_checkpoint
from ..config import Config
from ..config.attention import with_kernel
from ..config.model import DecoderModel
from ..contract import UserError
from ..data.base import Tokenizer
from ..data.saved_tokenizer import restored_tokenizer
from ..data.tokenizers import BytePairs
from ..models import context_length, make_language_model, model_vocabulary
from ..models.pretrained import CONFIG, load_weights, with_architecture
from ..models.weight_files import read_json
from ..state import Variables
from .text import Source

_TOKENIZER = "tokenizer.json"
_NEEDED = "give its tokenizer.json with --tokenizer FILE"


def load(folder: Path, step: int | None, tokenizer: Path | None) -> tuple[Source, str]:
    """Return the model in a folder, and a phrase that says what it is.

    Args:
        folder: a run's workdir, or a folder as `save_pretrained` of transformers writes it.
        step: step of the checkpoint; None: the newest.
        tokenizer: a tokenizer.json, if the model has none; None: the model's own.

    Raises:
        UserError: there is no model that writes text, it is damaged, or it has no tokenizer.
    """
    if (folder / CONFIG).is_file() and not (folder / "checkpoints").is_dir():
        if step is not None:
            raise UserError(f"--step {step}: {folder} has a published model, which has no steps; leave it out")
        return _published(folder, tokenizer)
    return _saved(folder, step, tokenizer)


def _saved(workdir: Path, step: int | None, file: Path | None) -> tuple[Source, str]:
    saved = SavedModel(find_checkpoint(workdir, step))
    try:
        config = Config.model_validate(saved.meta["config"])
    except ValidationError as error:
        raise UserError(
            f"{workdir}: this podrun does not know the job of the checkpoint: {error.errors()[0]['msg']}"
        ) from None
    if config.task != "language_model":
        raise UserError(f"{workdir} has a model of task {config.task}; only those of language_model write text")
    if config.parallel.name == "ensemble":
        raise UserError(f"{workdir} has an ensemble; podrun generate writes text by one model")
    stored = saved.meta.get("tokenizer")
    words = _tokenizer(file) if file else None if stored is None else restored_tokenizer(stored)
    if words is None:
        raise UserError(f"the checkpoint of {workdir} has no tokenizer; {_NEEDED}")
    given = getattr(config.data, "vocabulary", None)
    vocabulary = model_vocabulary(config, given if stored is None and given else words.vocabulary)
    config = with_kernel(config, "xla")  # the job may name a kernel of its GPUs or TPUs
    model = make_language_model(config, vocabulary, jnp.dtype(config.precision))
    params = _tree({place: saved.read((saved.weights, *place)) for place in saved.parts(saved.weights)})
    state = _tree({place: saved.read(("model_state", *place)) for place in saved.parts("model_state")})
    name = config.model.name
    source = Source(model, Variables(params, state) if state else params, context_length(config), words)
    return source, f"model {name}, step {saved.step} of {workdir}"


def _published(folder: Path, file: Path | None) -> tuple[Source, str]:
    published = read_json(folder / CONFIG)
    # The keys of training are needed to make a job, but have no effect here.
    job = Config.model_validate({"steps": 1, "batch_size": 1, "model": {"name": "decoder", "init_from": str(folder)}})
    section = with_architecture(job, published).model
    assert isinstance(section, DecoderModel) and section.vocabulary is not None
    path = file or folder / _TOKENIZER
    if not path.is_file():
        raise UserError(f"{folder} has no {_TOKENIZER}; {_NEEDED}")
    words = _tokenizer(path)
    model = make_language_model(job.model_copy(update={"model": section}), section.vocabulary, jnp.dtype("float32"))
    place = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    shapes = jax.eval_shape(model.variables, jax.random.key(0), jax.ShapeDtypeStruct((1, section.context), jnp.int32))
    form = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), shapes)
    params = load_weights(section, published, form, lambda: None)
    return Source(model, params, section.context, words, _ends(folder, published)), f"the published model in {folder}"


def _ends(folder: Path, published: Any) -> frozenset[int]:
    """Return the token ids that end a text, by generation_config.json or config.json."""
    file = folder / "generation_config.json"
    given = (read_json(file) if file.is_file() else {}).get("eos_token_id", published.get("eos_token_id"))
    ends = given if isinstance(given, list) else [given]
    return frozenset(end for end in ends if isinstance(end, int))


def _tokenizer(file: Path) -> Tokenizer:
    return BytePairs.load(file)


def _tree(arrays: dict[tuple[str, ...], Any]) -> dict[str, Any]:
    """Return arrays by path as nested dictionaries."""
    tree: dict[str, Any] = {}
    for place, array in arrays.items():
        *folders, last = place
        inner = tree
        for name in folders:
            inner = inner.setdefault(name, {})
        inner[last] = jnp.asarray(array)
    return tree

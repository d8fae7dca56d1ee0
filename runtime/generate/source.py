"""Load a trained model from a checkpoint, or a published one from its folder, on the devices of this machine."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from ..checkpoint.saved_model import SavedModel, Step, find_checkpoint
from ..config import Config
from ..config.attention import with_kernel
from ..config.model import DecoderModel
from ..contract import UserError
from ..data.saved_tokenizer import restored_tokenizer
from ..data.tokenizers import BytePairs
from ..devices import Devices
from ..models import context_length, make_language_model, model_vocabulary
from ..models.adapter import Model
from ..models.pretrained import CONFIG, TOKENIZER, file_of, folders_of, is_published, load_here, title_of
from ..models.weight_files import ConfigJson, read_json
from ..state import Params, Variables
from .division import Division, division_of, shardings_of
from .text import Source

_GENERATION = "generation_config.json"
_NEEDED = "give its tokenizer.json with --tokenizer FILE"


def load(folder: Path, step: Step, tokenizer: Path | None, pod: Devices | None = None) -> tuple[Source, str]:
    """Return the model in a folder, and a phrase that describes it.

    Args:
        folder: a run's workdir, or a folder as `save_pretrained` of transformers writes it.
        step: step of the checkpoint.
        tokenizer: a tokenizer.json, if the model has none; None: the model's own.
        pod: devices of this process that may be used; None: all.

    Raises:
        UserError: there is no model that generates text, the model is damaged, or it has no tokenizer.
    """
    if is_published(folder):
        if step is not None:
            raise UserError(f"--step {step}: {folder} has a published model, which has no steps; leave it out")
        return _published(folder, tokenizer, pod or Devices.here())
    return _saved(folder, step, tokenizer, pod or Devices.here())


def _saved(workdir: Path, step: Step, file: Path | None, pod: Devices) -> tuple[Source, str]:
    saved = SavedModel(find_checkpoint(workdir, step))
    config = saved.job
    if config.task not in ("language_model", "dpo"):
        raise UserError(
            f"{workdir} has a model of task {config.task}; only models of language_model and dpo write text"
        )
    if config.parallel.name == "ensemble":
        raise UserError(f"{workdir} has an ensemble; podrun generate needs a single model")
    stored = saved.meta.get("tokenizer")
    words = BytePairs.load(file) if file else None if stored is None else restored_tokenizer(stored)
    if words is None:
        raise UserError(f"the checkpoint of {workdir} has no tokenizer; {_NEEDED}")
    ids = saved.meta.get("token_ids")
    if ids is None:  # of an older version of podrun
        given = getattr(config.data, "vocabulary", None)
        ids = {"vocabulary": given if stored is None and given else words.vocabulary, "end": None}
    vocabulary = model_vocabulary(config, ids["vocabulary"])
    config = with_kernel(config, "xla")  # the job may name a kernel of its GPUs or TPUs
    model = make_language_model(config, vocabulary, jnp.dtype(config.precision.compute))
    described = unflatten_dict({path: jax.ShapeDtypeStruct(*form) for path, form in saved.described().items()})
    division = division_of(config, model, described, pod)
    shardings = flatten_dict(shardings_of(division, described, pod))
    params = saved.params(lambda path, array: jax.device_put(array, shardings[path]))
    state = saved.model_state(
        lambda array: jax.device_put(array, division.layout.replicated if division else pod.all[0])
    )
    variables = Variables(params, state) if state else params
    ends = _ends(saved.meta.get("published") or {}) | _ends({"eos_token_id": ids["end"]})
    source = Source(model, variables, context_length(config), words, ends, division=division)
    return source, f"model {config.model.name}, step {saved.step} of {workdir}"


def _published(folder: Path, file: Path | None, pod: Devices) -> tuple[Source, str]:
    folders = folders_of(folder)
    path = file or file_of(folders, TOKENIZER)
    if path is None:
        raise UserError(f"{folder} has no {TOKENIZER}; {_NEEDED}")
    words = BytePairs.load(path)
    divisions: list[Division | None] = []

    def divide(job: Config, model: Model, params: Params) -> Params:
        divisions.append(division_of(job, model, params, pod))
        return shardings_of(divisions[0], params, pod)

    job, params = load_here(folder, divide=divide)
    section = job.model
    assert isinstance(section, DecoderModel) and section.vocabulary is not None
    model = make_language_model(job, section.vocabulary, jnp.dtype(job.precision.compute))
    generation = file_of(folders, _GENERATION)
    ends = _ends({**read_json(folders[-1] / CONFIG), **(read_json(generation) if generation is not None else {})})
    source = Source(model, params, section.context, words, ends, tuple(words.beginning), divisions[0])
    return source, title_of(folders)


def _ends(published: ConfigJson) -> frozenset[int]:
    """Return the token ids that end a text, by the keys of config.json and generation_config.json."""
    given = published.get("eos_token_id")
    ends = given if isinstance(given, list) else [given]
    return frozenset(end for end in ends if isinstance(end, int))

"""Make the model that a job names."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ..config import Config, Plugin
from ..config.base import name_of
from ..config.model import DecoderModel, GPT2Model, ModelSection
from ..contract import UserError

if TYPE_CHECKING:
    import jax.numpy as jnp

    from .adapter import Model

_PADDING = 1 / 32
"""Largest share of a published model's token ids that may be padding; known models have less than 2 %."""
_CLASSES = {"gpt2": "GPT2", "decoder": "Decoder", "cnn": "CNN", "mlp": "MLP", "linear": "Linear"}


def make_language_model(config: Config, vocabulary: int, dtype: jnp.dtype) -> Model:
    """Make a model from int32[B, T] to float32[B, T, vocabulary].

    A user's model is called as `attribute(options, vocabulary, dtype)`; `options` has `context`. Raises UserError for a
    model that does not take tokens.
    """
    section = config.model
    if isinstance(section, Plugin):
        from .users import adapt

        return adapt(section.name, options=section.options, vocabulary=vocabulary, dtype=dtype)
    if "tokens" not in section.examples:
        raise UserError(f"model {section.name} reads arrays, but the task gives tokens; take gpt2 or decoder")
    output = config.precision.output
    return _built_in(section, vocabulary, dtype, **({} if output is None else {"output": output}))


def model_vocabulary(config: Config, needed: int) -> int:
    """Return the number of token ids of a language model, for data that has `needed` of them.

    A published model may have more, because its arrays were padded to a size that divides well: it keeps them, so that its
    loss is the published one. Raises UserError if the model has fewer than the data needs, or many more than padding
    explains.
    """
    section = config.model
    if not isinstance(section, DecoderModel) or section.vocabulary is None:
        return needed
    given, source = section.vocabulary, section.init_from
    if given < needed or (source is not None and given - needed > given * _PADDING):
        where = f"the model in {source}" if source else "model.vocabulary"
        remedy = _own_tokenizer(config, str(source)) if source else "give at least that"
        raise UserError(f"{where} has {given} token ids, but the data has {needed}; {remedy}")
    return given


def _own_tokenizer(config: Config, source: str) -> str:
    """Return what to do about data whose tokenizer does not belong to the model of a folder."""
    file, tokenizer = f"{source}/tokenizer.json", getattr(config.data, "tokenizer", None)
    if str(getattr(tokenizer, "file", None)) == file:
        return f"{file} does not belong to these weights: take the tokenizer.json that was published with them"
    return f"take the model's own: data.tokenizer={{name: bpe, file: {file}}}"


def context_length(config: Config) -> int:
    """Return a language model's context, in tokens. Raises UserError if the model's section does not give it."""
    section = config.model
    if isinstance(section, GPT2Model | DecoderModel):
        return section.context
    if isinstance(section, Plugin) and "context" in section.options:
        return int(section.options["context"])
    raise UserError(
        f"model {section.name}: text is cut into pieces of its context; give model.options.context, in tokens"
    )


def draws_random(config: Config) -> bool:
    """Return whether the model may use random numbers in training."""
    return isinstance(config.model, Plugin) or config.dropout > 0


def make_model(config: Config, shape: tuple[int, ...], outputs: int, dtype: jnp.dtype) -> Model:
    """Make a model from float32[B, *shape] to float32[B, outputs].

    A user's model is called as `attribute(options, outputs, dtype)`. Raises UserError for a model that cannot take `shape`.
    """
    section = config.model
    if isinstance(section, Plugin):
        from .users import adapt

        return adapt(section.name, options=section.options, outputs=outputs, dtype=dtype)
    if "tokens" in section.examples:
        raise UserError(f"model {section.name} reads tokens, but the task gives arrays; take cnn, mlp or linear")
    if problem := section.conflict(shape):
        raise UserError(problem)
    return _built_in(section, outputs, dtype)


def _built_in(section: ModelSection, outputs: int, dtype: jnp.dtype, **options: str) -> Model:
    from .linen import Linen

    name = name_of(type(section))
    kind = getattr(import_module(f".{name}", __name__), _CLASSES[name])
    return Linen(name, kind(section, outputs, dtype, **options))

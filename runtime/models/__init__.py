"""Models, by the name in the config."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..config import Config, Plugin
from ..config.model import CNN, MLP, GPT2Model, Linear
from ..contract import UserError

if TYPE_CHECKING:
    import jax.numpy as jnp

    from .adapter import Model


def make_language_model(config: Config, vocabulary: int, dtype: jnp.dtype) -> Model:
    """Return a model of int32[B, T], whose outputs are float32[B, T, vocabulary].

    A user's model is called as `attribute(options, vocabulary, dtype)`; `options` has `context`.
    """
    from .linen import Linen
    from .users import adapt

    section = config.model
    if isinstance(section, Plugin):
        return adapt(section.name, options=section.options, vocabulary=vocabulary, dtype=dtype)
    if not isinstance(section, GPT2Model):
        raise UserError(f"model {section.name} reads arrays, but the task gives tokens; take gpt2")
    from .gpt2 import GPT2

    return Linen(section.name, GPT2(section, vocabulary, dtype))


def context_length(config: Config) -> int:
    """Return the context of a language model, in tokens. Raises UserError if the model's section does not say."""
    section = config.model
    if isinstance(section, GPT2Model):
        return section.context
    if isinstance(section, Plugin) and "context" in section.options:
        return int(section.options["context"])
    raise UserError(
        f"model {section.name}: text is cut into pieces of its context; give model.options.context, in tokens"
    )


def draws_random(config: Config) -> bool:
    """Return whether the model may draw random numbers in training."""
    return isinstance(config.model, Plugin) or getattr(config.model, "dropout", 0.0) > 0


def make_model(config: Config, shape: tuple[int, ...], outputs: int, dtype: jnp.dtype) -> Model:
    """Return a model of float32[B, *shape], whose outputs are float32[B, outputs].

    A user's model is called as `attribute(options, outputs, dtype)`. Raises UserError if it cannot take that shape.
    """
    from .linen import Linen
    from .users import adapt

    section = config.model
    if isinstance(section, Plugin):
        return adapt(section.name, options=section.options, outputs=outputs, dtype=dtype)
    if isinstance(section, CNN):
        from . import cnn

        cnn.check_shape(section, shape)
        return Linen(section.name, cnn.CNN(section, outputs, dtype))
    if isinstance(section, MLP):
        from .mlp import MLP as Module

        return Linen(section.name, Module(section, outputs, dtype))
    if isinstance(section, Linear):
        from .linear import Linear as LinearModule

        return Linen(section.name, LinearModule(section, outputs, dtype))
    raise UserError(f"model {section.name} reads tokens, but the task gives arrays; take cnn, mlp or linear")

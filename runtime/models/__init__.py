"""Models, by the name in the config."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import plugins
from ..config import Config, Plugin

if TYPE_CHECKING:
    import flax.linen as nn
    import jax.numpy as jnp


def make_language_model(config: Config, vocabulary: int, dtype: jnp.dtype) -> nn.Module:
    """A module with `__call__(tokens: int32[B, T], deterministic: bool) -> float32[B, T, vocabulary]`.

    A user's model is called as `attribute(options, vocabulary, dtype) -> Module`; `options` has `context`.
    """
    section = config.model
    if isinstance(section, Plugin):
        model: nn.Module = plugins.load(section.name, "model.name")(section.options, vocabulary, dtype)
        return model
    from .gpt2 import GPT2

    return GPT2(section, vocabulary, dtype)

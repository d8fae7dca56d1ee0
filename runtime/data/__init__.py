"""Data sources, by the name in the config."""

from __future__ import annotations

from .. import plugins
from ..config import Config, GPT2Model, Plugin, PythonSourceData, TextData
from .base import Dataset


def load_dataset(config: Config) -> Dataset:
    """What the job trains on. Raises UserError if it is missing, empty or too short.

    A user's source is called as `attribute(options, config) -> Dataset`.
    """
    section = config.data
    if isinstance(section, Plugin):
        dataset: Dataset = plugins.load(section.name, "data.name")(section.options, config)
        return dataset
    from . import tokens

    model = config.model
    context = model.context if isinstance(model, GPT2Model) else int(model.options["context"])
    if isinstance(section, TextData):
        return tokens.text_dataset(section, context, config.seed)
    if isinstance(section, PythonSourceData):
        return tokens.python_source_dataset(section, context, config.seed)
    return tokens.tokens_dataset(section, context, config.seed)

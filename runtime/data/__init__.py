"""Load the dataset that a job names: `load_dataset`, and the table of built-in data sources."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from .. import plugins
from ..config import Config, Plugin
from ..config.data import has_segments
from .base import Dataset

_SOURCES = {
    "text": "tokens:text_dataset",
    "python_source": "tokens:python_source_dataset",
    "tokens": "tokens:tokens_dataset",
    "idx": "idx:idx_dataset",
    "digits": "synthetic:digits_dataset",
    "make_classification": "synthetic:make_classification_dataset",
    "sine": "synthetic:sine_dataset",
    "npz": "npz:npz_dataset",
    "parquet": "parquet:parquet_dataset",
    "array_record": "records:array_record_dataset",
    "prepared": "prepared:prepared_dataset",
    "mixture": "mixture:mixture_dataset",
}
"""Data source to module and function, `(section, config) -> Dataset`."""


def load_dataset(config: Config) -> Dataset:
    """Load the data that the job trains on.

    A user's data source is called as `attribute(options, config) -> Dataset`, and its batches are checked.

    Raises:
        UserError: the data is missing, empty, too short or malformed.
    """
    dataset = load_source(config)
    if not config.validation:
        return dataset
    from .further_validation import further_sets

    further = further_sets(config, dataset)
    segments = dataset.has_segments or any(map(has_segments, config.validation.values()))
    return replace(dataset, validations={**dataset.validations, **further}, has_segments=segments)


def load_source(config: Config) -> Dataset:
    """Load what the section `data` names, without further validation sets. Raises UserError as `load_dataset` does."""
    section = config.data
    if isinstance(section, Plugin):
        from .check import checked

        return checked(plugins.call(section.name, "data.name", options=section.options, config=config), config)
    module, _, function = _SOURCES[section.name].partition(":")
    dataset: Dataset = getattr(import_module(f".{module}", __name__), function)(section, config)
    return dataset

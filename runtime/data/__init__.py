"""Load the dataset that a job names: `load_dataset`, and the table of built-in data sources."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import numpy as np

from .. import plugins
from ..config import Config, Plugin
from ..config.data import has_segments
from ..contract import UserError
from .base import Dataset, PartlyTrained

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

_ROWS = 1024  # rows that are looked at together


def load_dataset(config: Config) -> Dataset:
    """Load the data that the job trains on.

    A user's data source is called as `attribute(options, config) -> Dataset`, and its batches are checked.

    Raises:
        UserError: the data is missing, empty, too short or malformed.
    """
    dataset = load_source(config)
    if config.validation:
        from .further_validation import further_sets

        further = further_sets(config, dataset)
        segments = dataset.has_segments or any(map(has_segments, config.validation.values()))
        dataset = replace(dataset, validations={**dataset.validations, **further}, has_segments=segments)
    _check_evaluated(dataset, config)
    return dataset


def _check_evaluated(dataset: Dataset, config: Config) -> None:
    """Raise UserError if the examples that an evaluation uses have no token to learn, so that it would have no result."""
    batches, batch_size = config.eval.batches, config.batch_size
    most = None if batches == "all" or batch_size == "all" else batches * batch_size
    for name, examples in (dataset.validations or {"": dataset.validation}).items():
        if not isinstance(examples, PartlyTrained):
            continue
        size = examples.size if most is None else min(examples.size, most)
        parts = (np.arange(at, min(size, at + _ROWS)) for at in range(0, size, _ROWS))
        if not any(examples.trained(rows, np.zeros_like(rows)) for rows in parts):
            of_set = f"validation set {name}" if name else "the validation set"
            part = "" if size == examples.size else f"the first {batches} batches of "
            remedy = "give another one" if not part else "give a larger eval.batches, or eval.batches=all"
            raise UserError(
                f"{part}{of_set} has no token that is learned, so that an evaluation would have no result; {remedy}"
            )


def load_source(config: Config) -> Dataset:
    """Load the data of the section `data`, without the further validation sets. Raises UserError as `load_dataset` does."""
    section = config.data
    if isinstance(section, Plugin):
        from .check import checked

        return checked(plugins.call(section.name, "data.name", options=section.options, config=config), config)
    module, _, function = _SOURCES[section.name].partition(":")
    dataset: Dataset = getattr(import_module(f".{module}", __name__), function)(section, config)
    return dataset

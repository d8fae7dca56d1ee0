"""Data sources, by the name in the config."""

from __future__ import annotations

from .. import plugins
from ..config import (
    ArrayRecordData,
    Config,
    DigitsData,
    IdxData,
    MakeClassificationData,
    NpzData,
    ParquetData,
    Plugin,
    PythonSourceData,
    SineData,
    TextData,
    TokensData,
)
from .base import Dataset


def load_dataset(config: Config) -> Dataset:
    """Return the data that the job trains on. Raises UserError if it is missing, empty, too short or malformed.

    A user's source is called as `attribute(options, config) -> Dataset`.
    """
    section = config.data
    if isinstance(section, Plugin):
        from .check import checked

        dataset = plugins.call(section.name, "data.name", options=section.options, config=config)
        return checked(dataset, config, section.name)
    if isinstance(section, TextData | PythonSourceData | TokensData):
        return _tokens(section, config)
    return _arrays(section, config.task)


def _tokens(section: TextData | PythonSourceData | TokensData, config: Config) -> Dataset:
    from ..models import context_length
    from . import tokens

    context = context_length(config)
    if isinstance(section, TextData):
        return tokens.text_dataset(section, context, config.seed)
    if isinstance(section, PythonSourceData):
        return tokens.python_source_dataset(section, context, config.seed)
    return tokens.tokens_dataset(section, context, config.seed)


def _arrays(
    section: IdxData | DigitsData | MakeClassificationData | SineData | NpzData | ParquetData | ArrayRecordData,
    task: str,
) -> Dataset:
    from . import idx, npz, parquet, records, synthetic

    match section:
        case IdxData():
            return idx.idx_dataset(section)
        case DigitsData():
            return synthetic.digits_dataset(section)
        case MakeClassificationData():
            return synthetic.make_classification_dataset(section)
        case SineData():
            return synthetic.sine_dataset(section)
        case NpzData():
            return npz.npz_dataset(section, task)
        case ParquetData():
            return parquet.parquet_dataset(section, task)
        case ArrayRecordData():
            return records.array_record_dataset(section, task)

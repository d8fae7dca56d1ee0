"""Further validation sets of a job, by name: the job's section `validation`."""

from __future__ import annotations

from ..config import Config
from ..config.data import PreparedData
from ..contract import UserError
from ..models import context_length
from .base import Dataset, Examples
from .saved_tokenizer import difference, saved_form


def further_sets(config: Config, data: Dataset) -> dict[str, Examples]:
    """Return the examples of each further validation set. Raises UserError if one cannot be read or does not fit the data."""
    from .prepared import whole_folder
    from .tokens import whole_text

    sets: dict[str, Examples] = {}
    for name, section in config.validation.items():
        where, context = f"validation.{name}", context_length(config)
        if isinstance(section, PreparedData):
            sets[name], documents = whole_folder(section, where, config)
            folder = documents.folder
            vocabulary = folder.manifest.vocabulary
            if other := difference(saved_form(data.tokenizer), folder.saved_tokenizer):
                raise UserError(
                    f"{where} was made with another tokenizer than the data: {other}; prepare both with the same one"
                )
        else:
            sets[name], vocabulary, _ = whole_text(section, where, context, data.tokenizer)
        if vocabulary > data.vocabulary:
            raise UserError(
                f"{where} has {vocabulary} token ids, but the data has {data.vocabulary}; make both with the same tokenizer"
            )
    return sets

"""Find the data that a model is evaluated on: the data of its run, or other data for the same job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ..checkpoint.metadata import JobMeta
from ..config import Config, files_of
from ..config.data import MixtureData, PreparedData, PythonSourceData, TextData, TokensData, has_segments
from ..config.task import examples_of
from ..contract import UserError
from ..data.base import Dataset, Tokenizer
from ..data.prepared import Documents, whole_folder
from ..data.prepared_files import MANIFEST, PreparedFolder
from ..data.saved_tokenizer import difference, restored_tokenizer, saved_form
from ..data.tokenizers import BytePairs
from ..data.tokens import text_to_evaluate, whole_text
from ..models import context_length
from ..storage.bucket_data import load_data

_OF_RUN = "the validation data of the run"
_ON_TOKENS = (TextData, PythonSourceData, TokensData)


@dataclass(frozen=True)
class Validation:
    """Data to evaluate on: the examples for validation of a dataset.

    Attributes:
        dataset: the dataset.
        about: a phrase that says which data it is.
        is_of_run: whether the run itself validates with it.
        limit: number of the job's batches that are evaluated; None: all.
    """

    dataset: Dataset
    about: str
    is_of_run: bool
    limit: int | None


def data_of_run(
    config: Config,
    meta: JobMeta,
    note: Callable[[str], None] | None = None,
    on_progress: Callable[[], None] | None = None,
) -> Validation:
    """Return the data of a job, as it is on this machine.

    Args:
        config: the job.
        meta: the checkpoint's metadata.
        note: as for `load_data`.
        on_progress: as for `load_data`.

    Raises:
        UserError: the data cannot be used.
        UnavailableError: its bucket cannot be reached.
    """
    try:
        files_of(config)
    except UserError as error:
        reason = str(error).partition("; ")[0]
        raise UserError(f"the data of the run is not here: {reason}; say where it is with --data PATH") from None
    dataset = load_data(config, note, on_progress)
    if dataset.fingerprint.hex() == meta["fingerprint"]:
        return Validation(dataset, _OF_RUN, True, _limit(config))
    if other := difference(meta.get("tokenizer"), saved_form(dataset.tokenizer)):
        raise UserError(
            f"the data here is not the run's, and the model cannot read it, because it has another tokenizer: {other}; give "
            "the run's data, or another text, with --data PATH"
        )
    return Validation(
        dataset, "the validation data of the job on this machine, which is not the run's", False, _limit(config)
    )


def data_at(
    path: str,
    config: Config,
    tokenizer: Path | None,
    meta: JobMeta | None,
    note: Callable[[str], None] | None = None,
    on_progress: Callable[[], None] | None = None,
) -> Validation:
    """Return the data at a path. If it is the run's own data, only its examples for validation; otherwise all of it.

    Of files of arrays, such as npz, only the examples that they contain for validation.

    Args:
        path: a file, folder or pattern of the kind that the job reads.
        config: the job.
        tokenizer: a tokenizer.json; None: the checkpoint's tokenizer.
        meta: the checkpoint's metadata; None for a published model.
        note: as for `load_data`.
        on_progress: as for `load_data`.

    Raises:
        UserError: the data cannot be used.
        UnavailableError: its bucket cannot be reached.
    """
    section, fingerprint = config.data, meta["fingerprint"] if meta else ""
    if (Path(path) / MANIFEST).is_file():
        return _prepared(path, config, tokenizer, meta)
    if examples_of(config.task) == "pairs":
        raise UserError(
            f"--data {path} is not a folder of pairs, which task {config.task} is evaluated on; write one with "
            "`podrun prepare --pairs`"
        )
    if isinstance(section, PreparedData | MixtureData):
        words, where = _tokenizer(tokenizer, meta), f"--data {path}"
        if words is None:
            raise UserError(f"{where}: the checkpoint has no tokenizer for a text; give one with --tokenizer FILE")
        examples, vocabulary, digest = whole_text(TextData(path=path), where, context_length(config), words)
        return _of_job(path, Dataset(examples, examples, digest, vocabulary, words), meta)
    if isinstance(section, _ON_TOKENS):
        words = _tokenizer(tokenizer, meta)
        if words is None and not isinstance(section, TokensData):
            raise UserError(
                f"--data {path}: the checkpoint has no tokenizer for a text; give one with --tokenizer FILE"
            )
        dataset, is_own = text_to_evaluate(config, path, words, bytes.fromhex(fingerprint))
        return Validation(dataset, _OF_RUN if is_own else path, is_own, _limit(config) if is_own else None)
    before = getattr(section, "path", None)
    if before is None:
        raise UserError(f"--data {path}: the job has data {section.name}, which reads no files; leave --data out")
    moved = section.model_copy(update={"path": type(before)(path)})
    dataset = load_data(config.model_copy(update={"data": moved}), note, on_progress)
    is_own = dataset.fingerprint.hex() == fingerprint
    about = _OF_RUN if is_own else f"the validation data in {path}"
    return Validation(dataset, about, is_own, _limit(config) if is_own else None)


def _prepared(path: str, config: Config, file: Path | None, meta: JobMeta | None) -> Validation:
    """Return the data of a prepared folder. If it is the run's own, only its examples for validation; otherwise all of it."""
    section, where = config.data, f"--data {path}"
    if meta is not None and isinstance(section, PreparedData) and _is_own(section, path, where, meta):
        moved = {"data": section.model_copy(update={"path": path}), "validation": {}}
        return Validation(load_data(config.model_copy(update=moved)), _OF_RUN, True, _limit(config))
    words = _tokenizer(file, meta)
    if other := difference(saved_form(words), PreparedFolder(Path(path)).saved_tokenizer):
        raise UserError(
            f"{where} was made with another tokenizer than the model's: {other}; prepare the text with the model's, or give "
            "the text itself"
        )
    packing: Literal["fit", "concat"] = "fit" if has_segments(section) else "concat"
    if PreparedFolder(Path(path)).manifest.has_answers:
        packing = "fit"
    examples, documents = whole_folder(PreparedData(path=path, packing=packing), where, config)
    manifest = documents.folder.manifest
    fits = packing == "fit" and not manifest.pairs
    dataset = Dataset(examples, examples, documents.digest, manifest.vocabulary, words, has_segments=fits)
    return _of_job(path, dataset, meta)


def _is_own(section: PreparedData, path: str, where: str, meta: JobMeta) -> bool:
    """Return whether a prepared folder is the one that the run was trained on."""
    if section.validation_path is not None:
        return False
    train, validation = Documents.read(path, where).split(section.validation)
    kind = "pairs" if train.folder.manifest.pairs else section.packing
    digest = train.digest + validation.digest + kind.encode()
    return digest.hex() == meta["fingerprint"]


def _of_job(path: str, dataset: Dataset, meta: JobMeta | None) -> Validation:
    """Return data that is not the job's own; its vocabulary is at least as large as the model's.

    Raises UserError if the data has ids that the model does not know.
    """
    ids = meta.get("token_ids") if meta else None
    if ids and dataset.vocabulary > ids["vocabulary"]:
        raise UserError(
            f"--data {path} has {dataset.vocabulary} token ids, but the model was trained with {ids['vocabulary']}: it knows "
            "no id that ends a document; evaluate it on the text itself"
        )
    vocabulary = max(dataset.vocabulary, ids["vocabulary"] if ids else 0)
    return Validation(replace(dataset, vocabulary=vocabulary), path, False, None)


def _tokenizer(file: Path | None, meta: JobMeta | None) -> Tokenizer | None:
    if file is not None:
        return BytePairs.load(file)
    stored = meta.get("tokenizer") if meta else None
    return None if stored is None else restored_tokenizer(stored)


def _limit(config: Config) -> int | None:
    return None if config.eval.batches == "all" else config.eval.batches

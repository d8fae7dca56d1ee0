"""Data source of documents that `podrun prepare` has written: windows over all of them, or rows of whole documents."""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from ..config import Config
from ..config.data import PreparedData
from ..config.task import examples_of
from ..contract import UserError
from ..disk_cache import cache_folder
from ..models import context_length
from .base import Dataset, Examples
from .packing import PackedRows, stored_rows
from .pairs import Pairs
from .prepared_files import PreparedFolder, ShardArrays
from .windows import Source, TrainWindows, ValidationWindows

Array = np.ndarray[Any, Any]

_SHOWN = 8  # documents of an example that are named


def prepared_dataset(section: PreparedData, config: Config) -> Dataset:
    """Return the dataset of a prepared folder. Raises UserError if it cannot be used, or is too small."""
    context = context_length(config)
    where = f"data.path {section.path}"
    documents = Documents.read(section.path, where)
    _check_pairs(documents, config)
    _check_tokenizer(documents, config)
    if section.validation_path is None:
        train, validation = documents.split(section.validation)
    else:
        train, validation = (
            documents,
            Documents.read(section.validation_path, f"data.validation_path {section.validation_path}"),
        )
        if validation.folder.manifest.tokenizer != train.folder.manifest.tokenizer:
            raise UserError(
                f"{validation.where} was made with another tokenizer than {train.where}, so that its ids mean other tokens; "
                "prepare both with the same one"
            )
    if documents.folder.manifest.pairs:
        return _pairs_dataset(train, validation, config)
    for name, part, needed in (("training", train, context + 1), ("validation", validation, 2)):
        if part.size < needed:
            raise UserError(
                f"{part.where}: too short: {part.size} tokens in whole documents for {name}, at least {needed} are needed "
                f"(model.context is {context}); prepare more text, or give a smaller model.context"
            )
    manifest = documents.folder.manifest
    fits = section.packing == "fit"
    _check_answers(documents, fits, "data.packing=fit")
    examples: Examples = train.rows(context) if fits else train.windows(context, config.seed)
    return Dataset(
        examples,
        validation.rows(context) if fits else validation.adjacent(context),
        fingerprint=train.digest + validation.digest + section.packing.encode(),
        vocabulary=manifest.vocabulary,
        tokenizer=documents.folder.tokenizer(),
        end_of_text=manifest.eos,
        has_segments=fits,
        note=packing_note(examples) if isinstance(examples, PackedRows) else "",
    )


def _pairs_dataset(train: Documents, validation: Documents, config: Config) -> Dataset:
    """Return the dataset of pairs of a chosen and a rejected answer.

    Raises UserError if no pair fits into the context, for training or for validation.
    """
    if validation.where != train.where:
        _check_pairs(validation, config)
    context = context_length(config)
    examples, held = train.pairs(context), validation.pairs(context)
    for name, part, where in (("training", examples, train.where), ("validation", held, validation.where)):
        if not part.size:
            raise UserError(
                f"{where} has no pair for {name} ({part.note}); prepare more pairs, or give a larger model.context or "
                "another data.validation"
            )
    manifest = train.folder.manifest
    return Dataset(
        examples,
        held,
        fingerprint=train.digest + validation.digest + b"pairs",
        vocabulary=manifest.vocabulary,
        tokenizer=train.folder.tokenizer(),
        end_of_text=manifest.eos,
        note=f"data: {examples.note}",
    )


def _check_tokenizer(documents: Documents, config: Config) -> None:
    """Raise UserError if the documents were not prepared with the tokenizer of `model.init_from`."""
    init_from = getattr(config.model, "init_from", None)
    file = init_from / "tokenizer.json" if init_from else None
    if file is None or not file.is_file():  # the model has another kind of tokenizer, or is in a bucket
        return
    saved = documents.folder.saved_tokenizer
    try:
        models = token_ids(file.read_bytes())
        datas = token_ids(saved["file"].encode()) if saved["name"] == "bpe" else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return  # a form of tokenizer.json that is not known here
    common = models.keys() & datas.keys()
    other = next((token for token in sorted(common) if models[token] != datas[token]), None)
    if other is None and 2 * len(common) >= min(len(models), len(datas)) > 0:
        return
    what = (
        f"{other!r} is {datas[other]} in the data and {models[other]} in the model"
        if other is not None
        else f"the data has that of `--tokenizer {saved['name']}`"
    )
    raise UserError(
        f"{documents.where} was made with another tokenizer than model.init_from {init_from} has, so that its ids mean other "
        f"tokens ({what}); prepare it again with --tokenizer {init_from}"
    )


def token_ids(content: bytes) -> dict[str, int]:
    """Return the id of each token of a tokenizer.json. Raises ValueError, KeyError, TypeError, AttributeError."""
    fields = json.loads(content)
    vocabulary = fields["model"]["vocab"]
    if isinstance(vocabulary, list):  # unigram: pairs of a token and its score
        vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
    return {**vocabulary, **{added["content"]: added["id"] for added in fields.get("added_tokens") or ()}}


def _check_pairs(documents: Documents, config: Config) -> None:
    """Raise UserError if the folder has pairs and the task does not learn from pairs, or the other way round."""
    kind, has_pairs = examples_of(config.task), documents.folder.manifest.pairs
    if has_pairs and kind == "tokens":
        raise UserError(
            f"{documents.where} has pairs of conversations, which task dpo learns from, and the task is {config.task}; give "
            "task=dpo, or prepare the conversations with --chat"
        )
    if kind == "pairs" and not has_pairs:
        raise UserError(
            f"{documents.where} has no pairs, which task {config.task} learns from; write a folder of them with "
            "`podrun prepare --pairs`"
        )


def _check_answers(documents: Documents, fits: bool, remedy: str) -> None:
    """Raise UserError for conversations without answers, or if the chosen rows cannot mark them (`fits` is False).

    `remedy` names the key that makes rows which can, for the message.
    """
    if not documents.folder.manifest.has_answers:
        return
    if not fits:
        raise UserError(
            f"{documents.where} has conversations, of which only the answers are learned; give {remedy}, which knows them"
        )
    if not any(shard.answers is not None and shard.answers.any() for shard in documents.shards):
        raise UserError(
            f"{documents.where} has no answer to learn from; prepare conversations in which the assistant answers"
        )


def whole_folder(section: PreparedData, where: str, config: Config) -> tuple[Examples, Documents]:
    """Return all of a prepared folder as examples for validation, and its documents. Raises UserError."""
    documents, context = Documents.read(section.path, where), context_length(config)
    _check_pairs(documents, config)
    if documents.folder.manifest.pairs:
        pairs = documents.pairs(context)
        if not pairs.size:
            raise UserError(
                f"{where}: {section.path} has no pair ({pairs.note}); prepare more, or give a larger context"
            )
        return pairs, documents
    if documents.size < 2:
        raise UserError(
            f"{where}: {section.path} has {documents.size} tokens, too few for one to predict; prepare more text"
        )
    fits = section.packing == "fit"
    _check_answers(documents, fits, "packing: fit")
    return documents.rows(context) if fits else documents.adjacent(context), documents


def packing_note(rows: PackedRows) -> str:
    """Return the line about the packing of the training set."""
    return f"packing: {rows.size:,} rows of whole documents, {rows.padding:.2%} of their tokens is padding"


@dataclass(frozen=True)
class Documents:
    """Some of the documents of a prepared folder, one after another."""

    folder: PreparedFolder
    where: str
    """The folder, as in messages."""
    shards: tuple[ShardArrays, ...]
    begins: tuple[int, ...]
    """Number of each shard's first token in the folder, followed by the number of all tokens."""
    first: int
    """Number in the folder of the first token of these documents."""
    end: int
    """Number of the token after the last."""

    @classmethod
    def read(cls, path: str, where: str) -> Documents:
        """Return all documents of a folder. Raises UserError if it is damaged."""
        try:
            folder = PreparedFolder(Path(path))
            shards = tuple(folder.shard(number) for number in range(len(folder.manifest.shards)))
            for shard, listed in zip(shards, folder.manifest.shards, strict=True):
                if not _are_ends(shard.ends, listed.tokens):
                    file = folder.path(listed, "ends")
                    raise UserError(
                        f"{file} is damaged: its documents overlap or have gaps between them; prepare the folder again"
                    )
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        begins = tuple(accumulate((len(shard.tokens) for shard in shards), initial=0))
        return cls(folder, where, shards, begins, 0, begins[-1])

    @property
    def size(self) -> int:
        """Return the number of tokens."""
        return self.end - self.first

    @property
    def digest(self) -> bytes:
        """Return the digest of these documents: equal for equal tokens, divided into the same documents."""
        digest = hashlib.blake2b(f"{self.first} {self.end}".encode(), digest_size=16)
        for shard in self.folder.manifest.shards:
            digest.update(
                "".join(shard.sha256[part] for part in ("tokens", "ends", "answers") if part in shard.sha256).encode()
            )
        return digest.digest()

    def split(self, share: float) -> tuple[Documents, Documents]:
        """Split into the first documents, for training, and the last ones, which have at most `share` of the tokens."""
        cut = self._begin_of_document(self.end - int(self.size * share))
        return Documents(**{**vars(self), "end": cut}), Documents(**{**vars(self), "first": cut})

    def windows(self, context: int, seed: int) -> TrainWindows:
        """Return windows of `context` tokens for training."""
        return TrainWindows(self._tokens(), context, seed, self._source())

    def adjacent(self, context: int) -> ValidationWindows:
        """Return windows for validation, of which each begins where the one before ends."""
        return ValidationWindows(self._tokens(), context, self._source())

    def rows(self, context: int) -> PackedRows:
        """Return rows of whole documents."""
        rows = stored_rows(self.digest, self._ends, context + 1, cache_folder() / "rows")
        answers = Spliced([s.answers for s in self.shards if s.answers is not None], self.begins, self.first, self.end)
        has_answers = self.folder.manifest.has_answers
        return PackedRows(self._tokens(), rows, context, self._source(), answers if has_answers else None)

    def pairs(self, context: int) -> Pairs:
        """Return the pairs of documents. The folder must have pairs."""
        answers = Spliced([s.answers for s in self.shards if s.answers is not None], self.begins, self.first, self.end)
        return Pairs(self._tokens(), self._ends(), context, self._source(), answers)

    def _tokens(self) -> Spliced:
        return Spliced([shard.tokens for shard in self.shards], self.begins, self.first, self.end)

    def _source(self) -> Source:
        return Source(self.where, self.folder.manifest.vocabulary, self.first, self._names, "prepare it again")

    def _ends(self) -> Array:
        """Return the index after each document's last token, counted from the first of these documents: int64[documents]."""
        ends = np.concatenate([begin + shard.ends for begin, shard in zip(self.begins, self.shards, strict=False)])
        return ends[(ends > self.first) & (ends <= self.end)] - self.first

    def _begin_of_document(self, token: int) -> int:
        """Return the index of the first token of the first document, or pair, that begins at index `token` or later."""
        if token >= self.end:
            return self.end
        shard = bisect_right(self.begins, token) - 1
        ends, within = self.shards[shard].ends, token - self.begins[shard]
        if within == 0:
            return token
        row = int(np.searchsorted(ends, within))  # the last document before
        if self.folder.manifest.pairs and row % 2 == 0:
            row += 1
        return self.begins[shard] + int(ends[row])

    def _names(self, start: int, size: int) -> list[str]:
        """Return the names of the documents that contain the `size` tokens from index `start` of this part on."""
        names: list[str] = []
        at, end = self.first + start, self.first + start + size
        while at < end and len(names) < _SHOWN:
            number = bisect_right(self.begins, at) - 1
            shard, begin = self.shards[number], self.begins[number]
            row = int(np.searchsorted(shard.ends, at - begin, "right"))
            name, place = self.folder.origin(number, row)
            names.append(f"{name}:{place}" if place else name)
            at = begin + int(shard.ends[row])
        return names if at >= end else [*names, "..."]


def _are_ends(ends: Array, tokens: int) -> bool:
    """Return whether `ends` can be the ends of the documents of a shard with `tokens` tokens."""
    lengths = np.diff(ends, prepend=0)
    return int(lengths.min(initial=1)) > 0 and int(lengths.sum()) == tokens


class Spliced:
    """Several arrays of one dimension, read as one array. Only the parts that are read are copied.

    Args:
        arrays: the arrays, [n] each.
        begins: index of each array's first element in the whole, and at the end the length of the whole.
        first: index of the first element to use.
        end: index after the last element to use.
    """

    def __init__(self, arrays: list[Any], begins: tuple[int, ...], first: int, end: int) -> None:
        self._arrays = [array.view(np.ndarray) for array in arrays]  # slices of a memmap take many times as long
        self._begins = begins
        self._first = first
        self._size = end - first

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, at: Any) -> Array:
        """Return the elements of a slice with a start and a stop, or those at an integer array of indices of any shape."""
        if isinstance(at, slice):
            start, stop, _ = at.indices(self._size)
            return self._part(self._first + start, self._first + stop)
        places = at + self._first
        last = int(places.max(initial=0))
        number = bisect_right(self._begins, int(places.min(initial=last))) - 1
        if last < self._begins[number + 1]:  # all in one array
            elements: Array = self._arrays[number][places - self._begins[number]]
            return elements
        numbers = np.searchsorted(self._begins, places, "right") - 1
        result = np.empty(places.shape, self._arrays[0].dtype)
        for number in np.unique(numbers).tolist():
            here = numbers == number
            result[here] = self._arrays[number][places[here] - self._begins[number]]
        return result

    def _part(self, start: int, stop: int) -> Array:
        number = bisect_right(self._begins, start) - 1
        last = max(number, bisect_left(self._begins, stop) - 1)
        parts = [
            self._arrays[n][max(0, start - self._begins[n]) : stop - self._begins[n]]
            for n in range(number, min(last + 1, len(self._arrays)))
        ]
        return parts[0] if len(parts) == 1 else np.concatenate(parts or [np.zeros(0, np.uint16)])

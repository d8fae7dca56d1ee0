"""The built-in tokenizers: bytes, characters, byte-pair encoding."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..config.data import BPETokenizer, ByteTokenizer, CharTokenizer
from ..contract import UserError
from .base import Tokenizer

Ids = np.ndarray[Any, Any]
_Token = tuple[int, int, int]
"""First character in the text, the character after the last, and the token's id."""
_AGREEING = 16  # equal tokens that a cut needs on either side


class Bytes:
    """Tokenizer whose tokens are UTF-8 bytes."""

    vocabulary = 256

    def encode(self, text: str) -> Ids:
        return np.frombuffer(text.encode("utf-8", "surrogateescape"), np.uint8).astype(np.uint32)

    def decode(self, ids: Ids) -> str:
        return _known(ids, self.vocabulary).astype(np.uint8).tobytes().decode("utf-8", "replace")


class Characters:
    """Tokenizer whose tokens are the characters of a text, in the order of their code points."""

    def __init__(self, text: str) -> None:
        self._code_points = np.unique(_code_points(text))

    @classmethod
    def of(cls, code_points: list[int]) -> Characters:
        """Return the tokenizer with these `code_points`."""
        return cls("".join(map(chr, code_points)))

    @property
    def code_points(self) -> list[int]:
        """Return the code point of each token."""
        points: list[int] = self._code_points.tolist()
        return points

    @property
    def vocabulary(self) -> int:
        return len(self._code_points)

    def encode(self, text: str) -> Ids:
        points = _code_points(text)
        ids = np.searchsorted(self._code_points, points).clip(max=self.vocabulary - 1)
        unknown = points[self._code_points[ids] != points]
        if unknown.size:
            raise UserError(f"the character {chr(unknown[0])!r} does not occur in the training text (tokenizer char)")
        return ids.astype(np.uint32)

    def decode(self, ids: Ids) -> str:
        return _valid("".join(map(chr, self._code_points[_known(ids, self.vocabulary)])))


def _known(ids: Ids, vocabulary: int) -> Ids:
    """Return the ids without those beyond the vocabulary: the end of a document, in tokens of `podrun prepare`."""
    given = np.asarray(ids)
    return given[given < vocabulary]


def _code_points(text: str) -> Ids:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _valid(text: str) -> str:
    """Replace surrogates, which stand for bytes in a file that are not UTF-8, with the replacement character."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class BytePairs:
    """Byte-level byte-pair encoding by the `tokenizers` library."""

    _CHUNK = 1 << 20  # characters encoded at a time
    _OVERLAP = 1 << 12  # characters that a piece extends beyond its border, on either side
    _GROUP = 64  # pieces encoded at a time, to bound memory
    _PART, _SHORT_OVERLAP = 1 << 17, 1 << 11  # as _CHUNK and _OVERLAP, of a text that comes in parts
    _LONGEST = 1 << 20  # characters of such a text that are encoded at once at most

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, file: Path) -> BytePairs:
        """Load a tokenizer. Raises UserError if the file is not a tokenizer.json."""
        library = _tokenizers()
        try:
            tokenizer = library.Tokenizer.from_file(str(file.expanduser()))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{file} is not a tokenizer.json that the tokenizers library can read: {error}") from None
        # A tokenizer.json may ask to truncate or pad each text.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return cls(tokenizer)

    @classmethod
    def from_json(cls, text: str) -> BytePairs:
        """Return the tokenizer that `to_json` has saved. Raises UserError if the library is missing or rejects it."""
        library = _tokenizers()
        try:
            return cls(library.Tokenizer.from_str(text))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"the checkpoint's tokenizer cannot be read by the tokenizers library: {error}") from None

    def to_json(self) -> str:
        """Return the text of a tokenizer.json."""
        return str(self._tokenizer.to_str())

    @classmethod
    def train(cls, text: str, vocabulary: int) -> BytePairs:
        library = _tokenizers()
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocabulary, initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        )
        tokenizer.train_from_iterator(cls._chunks(text), trainer)
        return cls(tokenizer)

    @cached_property
    def vocabulary(self) -> int:
        """Return the highest id + 1; a tokenizer.json may skip ids."""
        return max(self._tokenizer.get_vocab().values(), default=-1) + 1

    @cached_property
    def beginning(self) -> list[int]:
        """Return the ids that the tokenizer.json puts before a text, such as the id of <s>; `encode` leaves them out."""
        marked, bare = (self._tokenizer.encode("a", add_special_tokens=special).ids for special in (True, False))
        places = (place for place in range(len(marked)) if marked[place : place + len(bare)] == bare)
        return list(marked[: next(places, 0)])

    @cached_property
    def special_tokens(self) -> list[str]:
        """Return the special tokens, such as <s>. Where a text contains one, it becomes that token's id."""
        return [token.content for token in self._tokenizer.get_added_tokens_decoder().values() if token.special]

    def encode_places(self, text: str) -> tuple[Ids, Ids]:
        """Return the ids of a text, uint32[n], and where each token begins and ends in it, in characters, int64[n, 2]."""
        encoding = self._encoded([text])[0]
        return np.array(encoding.ids, np.uint32), np.array(encoding.offsets, np.int64).reshape(-1, 2)

    def encode(self, text: str) -> Ids:
        """Return the ids of a text, uint32[n], equal to the library's for the whole text.

        For speed, overlapping pieces are encoded in several threads, and joined where the encodings of two pieces agree.
        """
        text, chunk, overlap = _valid(text), self._CHUNK, self._OVERLAP
        while len(text) > chunk + overlap:
            ids = self._joined(text, chunk, overlap)
            if ids is not None:
                return ids
            chunk, overlap = 8 * chunk, 8 * overlap
        return np.array(self._encoded([text])[0].ids, np.uint32)

    def id_of(self, token: str) -> int | None:
        """Return the id of a token; None if there is no such token."""
        number: int | None = self._tokenizer.token_to_id(token)
        return number

    def token_of(self, number: int) -> str | None:
        """Return the token of an id; None if there is none."""
        token: str | None = self._tokenizer.id_to_token(number)
        return token

    def encode_batch(self, texts: list[str]) -> list[Ids]:
        """Return the ids of each text, uint32[n]. The texts are valid UTF-8."""
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)  # computes no offsets
        return [np.array(encoding.ids, np.uint32) for encoding in encoded]

    def encode_parts(self, parts: Iterable[str]) -> Iterator[Ids]:
        """Yield the ids of a long text that comes in parts, equal to the library's for the whole text, in bounded memory.

        Raises:
            UserError: `_LONGEST` characters cannot be divided anywhere, as in one long word.
        """
        given, text, ends = iter(parts), "", False  # the text from the beginning of the last piece
        start, size, last = 0, self._PART, None
        while True:
            while not ends and len(text) <= size + self._SHORT_OVERLAP:
                part = next(given, None)
                ends = part is None
                text += part or ""
            whole = ends and len(text) <= size + self._SHORT_OVERLAP
            end = len(text) if whole else size
            if last is None:
                last = _Piece(self._encoded([text[:end]])[0], start)
                last_end = end
            else:
                begin = last_end - 2 * self._SHORT_OVERLAP
                piece = _Piece(self._encoded([text[begin:end]])[0], start + begin)
                low = start + begin + self._SHORT_OVERLAP // 2
                cut = _agreement(last, piece, low, low + self._SHORT_OVERLAP, between_words=self._sums_scores)
                if cut is None or cut[0] < last.first:
                    last = self._longer(last, text[:end], start)
                    last_end = end
                else:
                    yield last.ids[last.first : cut[0]]
                    piece.first = cut[1]
                    text, start, last, last_end = text[begin:], start + begin, piece, end - begin
            if whole:
                yield last.ids[last.first :]
                return
            size = last_end + self._PART

    def _longer(self, last: _Piece, text: str, start: int) -> _Piece:
        """Return the encoding of a longer text that begins where `last` does, with the first token at the same place."""
        if len(text) <= self._LONGEST:
            piece = _Piece(self._encoded([text])[0], start)
            first = piece.number_at(last.place(last.first)) if last.first else 0
            if first is not None:
                piece.first = first
                return piece
        raise UserError(f"it has no place at which {self._LONGEST:,} characters can be divided, such as one long word")

    def _joined(self, text: str, chunk: int, overlap: int) -> Ids | None:
        """Return the ids of the text, encoded in overlapping pieces; None if two pieces do not agree in their overlap."""
        borders = range(chunk, len(text) - overlap, chunk)
        starts = [0, *(border - overlap for border in borders)]
        ends = [*(border + overlap for border in borders), len(text)]
        spans = list(zip(starts, ends, strict=True))
        parts: list[Ids] = []
        last: _Piece | None = None
        for first in range(0, len(spans), self._GROUP):
            group = spans[first : first + self._GROUP]
            encoded = self._encoded([text[start:end] for start, end in group])
            for encoding, (start, _) in zip(encoded, group, strict=True):
                piece = _Piece(encoding, start)
                if last is not None:
                    low, high = start + overlap // 2, start + overlap + overlap // 2
                    cut = _agreement(last, piece, low, high, between_words=self._sums_scores)
                    if cut is None or cut[0] < last.first:
                        return None
                    parts.append(last.ids[last.first : cut[0]])
                    piece.first = cut[1]
                last = piece
        assert last is not None
        return np.concatenate([*parts, last.ids[last.first :]])

    @cached_property
    def _sums_scores(self) -> bool:
        """Return whether a word's ids follow from sums of scores over the whole word.

        Then rounding decides between divisions of equal score, and it depends on where the word begins.
        """
        return isinstance(self._tokenizer.model, _tokenizers().models.Unigram)

    def _encoded(self, texts: list[str]) -> list[Any]:
        # Special tokens would mark the ends of pieces as ends of the text.
        encoded: list[Any] = self._tokenizer.encode_batch(texts, add_special_tokens=False)
        return encoded

    def decode(self, ids: Ids) -> str:
        return str(self._tokenizer.decode([int(i) for i in ids]))

    def decode_all(self, ids: Ids) -> str:
        """Return the text of the ids, including the text of special tokens."""
        return str(self._tokenizer.decode([int(i) for i in ids], skip_special_tokens=False))

    @classmethod
    def _chunks(cls, text: str) -> list[str]:
        return [_valid(text[i : i + cls._CHUNK]) for i in range(0, len(text), cls._CHUNK)]


class _Piece:
    """The encoding of a piece of the text, which begins at character `start` of it."""

    def __init__(self, encoding: Any, start: int) -> None:
        self._encoding = encoding
        self._start = start
        self.ids = np.array(encoding.ids, np.uint32)
        self.first = 0
        """Number of the piece's first token in the result; earlier tokens are taken from the piece before."""

    def tokens(self, start: int, end: int) -> tuple[int, list[_Token]]:
        """Return (number of the first token, tokens) of the tokens that begin in characters `start` to `end` of the text."""
        numbers = range(len(self.ids))
        low = bisect_left(numbers, start, key=lambda number: self._place(number)[0])
        high = bisect_left(numbers, end, key=lambda number: self._place(number)[0])
        return low, [(*self._place(number), int(self.ids[number])) for number in numbers[low:high]]

    def place(self, number: int) -> int:
        """Return the index in the text of the character at which a token begins."""
        return self._place(number)[0]

    def number_at(self, place: int) -> int | None:
        """Return the number of the first token that begins at character `place` of the text; None if there is none."""
        low, tokens = self.tokens(place, place + 1)
        return low if tokens else None

    def begins_word(self, number: int) -> bool:
        """Return whether a word of the pre-tokenizer begins with this token, which is not the first."""
        word, before = (self._encoding.token_to_word(n) for n in (number, number - 1))
        return bool(word != before)

    def _place(self, number: int) -> tuple[int, int]:
        start, end = self._encoding.token_to_chars(number)
        return self._start + start, self._start + end


def _agreement(left: _Piece, right: _Piece, start: int, end: int, *, between_words: bool) -> tuple[int, int] | None:
    """Find a place to join two pieces, in characters `start` to `end` of the text.

    Tokens near the end of the left piece, and near the beginning of the right piece, may differ from those of the whole
    text. Where both pieces have the same tokens in a row, neither is affected, because their ends are in other places.

    Args:
        left: The piece that begins first.
        right: The piece after it.
        start: The first character at which they may be joined.
        end: The character after the last.
        between_words: Join only where a word begins in both pieces, so that each word comes from one of them.

    Returns:
        The number of the token to join at, in the left piece and in the right one; None if there is no such place.
    """
    (before, ours), (behind, theirs) = (piece.tokens(start, end) for piece in (left, right))
    first_at = {token[0]: number for number, token in reversed([*enumerate(theirs)])}
    middle = len(ours) // 2
    for number in sorted(range(_AGREEING, len(ours) - _AGREEING), key=lambda number: abs(number - middle)):
        other = first_at.get(ours[number][0], -1)
        alike = (
            other >= _AGREEING
            and ours[number - _AGREEING : number + _AGREEING] == theirs[other - _AGREEING : other + _AGREEING]
        )
        if not alike or ours[number][0] == ours[number - 1][0]:  # within a character
            continue
        cut = before + number, behind + other
        if not between_words or (left.begins_word(cut[0]) and right.begins_word(cut[1])):
            return cut
    return None


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise UserError("tokenizer bpe needs the tokenizers library: pip install tokenizers") from None
    return tokenizers


def make_tokenizer(section: CharTokenizer | ByteTokenizer | BPETokenizer, text: str) -> Tokenizer:
    """Make the config's tokenizer, for or from the training text `text`. Raises UserError if that is not possible."""
    if isinstance(section, CharTokenizer):
        return Characters(text)
    if isinstance(section, ByteTokenizer):
        return Bytes()
    return BytePairs.load(section.file) if section.file else BytePairs.train(text, section.vocabulary)

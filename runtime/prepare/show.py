"""Statistics of a prepared folder, and some of its documents."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..data.base import Tokenizer
from ..data.prepared_files import PreparedFolder
from ..data.tokenizers import BytePairs
from ..queries import PreparedSample, ShowPreparedAnswer

Array = np.ndarray[Any, Any]

_SAMPLES = 3
_TEXT = 400  # tokens of a document that are shown at most


def show(folder: Path, verify: bool, seed: int) -> ShowPreparedAnswer:
    """Describe a prepared folder. `seed` selects the samples. Raises UserError if it is not complete, or lacks a file."""
    prepared = PreparedFolder(folder)
    manifest = prepared.manifest
    lengths = np.concatenate(
        [np.diff(prepared.shard(shard).ends, prepend=0) for shard in range(len(manifest.shards))] or [np.empty(0, int)]
    )
    exponents = np.frexp(lengths)[1] - 1
    together = 2 if manifest.pairs else 1
    units = manifest.documents // together
    drawn = np.random.default_rng(seed).choice(units, min(_SAMPLES, units), replace=False)
    tokenizer = prepared.tokenizer()
    samples = []
    for number in [unit * together + part for unit in sorted(map(int, drawn)) for part in range(together)]:
        document = prepared.document(number)
        is_whole = len(document.ids) <= _TEXT
        if document.answers is None:
            text = prepared.text(document.ids[:_TEXT])
        else:
            text = _with_answers(tokenizer, document.ids[:_TEXT], document.answers[:_TEXT])
        role = ("chosen", "rejected")[number % 2] if manifest.pairs else ""
        samples.append(PreparedSample(document.source, document.number, len(document.ids), text, is_whole, role))
    return ShowPreparedAnswer(
        documents=manifest.documents,
        tokens=manifest.tokens,
        vocabulary=manifest.vocabulary,
        dtype=manifest.dtype,
        tokenizer=manifest.tokenizer.name,
        eos=manifest.eos,
        shards=len(manifest.shards),
        sources=len(manifest.sources),
        bad=sum(source.bad for source in manifest.sources),
        empty=sum(source.empty for source in manifest.sources),
        shortest=int(lengths.min(initial=1 << 62)) if len(lengths) else 0,
        median=int(np.median(lengths)) if len(lengths) else 0,
        longest=int(lengths.max(initial=0)),
        lengths=[(1 << int(power), int((exponents == power).sum())) for power in np.unique(exponents)],
        samples=samples,
        answers=_count(prepared) if manifest.has_answers else None,
        pairs=manifest.pairs,
        damage=prepared.damage() if verify else None,
    )


def _count(prepared: PreparedFolder) -> int:
    """Return the number of tokens that are learned."""
    shards = map(prepared.shard, range(len(prepared.manifest.shards)))
    return sum(int(shard.answers.sum(dtype=np.int64)) for shard in shards if shard.answers is not None)


def _with_answers(tokenizer: Tokenizer, ids: Array, answers: Array) -> str:
    """Return the text of a conversation with its special tokens, answers between ⟦ and ⟧."""
    assert isinstance(tokenizer, BytePairs)
    cuts = [0, *(np.flatnonzero(np.diff(answers)) + 1).tolist(), len(ids)]
    parts = []
    for start, end in pairwise(cuts):
        text = tokenizer.decode_all(ids[start:end])
        parts.append(f"⟦{text}⟧" if answers[start] else text)
    return "".join(parts)

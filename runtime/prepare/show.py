"""Statistics of a prepared folder, and some of its documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..data.prepared_files import PreparedFolder
from ..queries import PreparedSample, ShowPreparedAnswer

_SAMPLES = 3
_TEXT = 400  # tokens of a document that are shown at most


def show(folder: Path, verify: bool, seed: int) -> ShowPreparedAnswer:
    """Return what a folder has. `seed` selects the samples. Raises UserError if it is not complete, or a file is missing."""
    prepared = PreparedFolder(folder)
    manifest = prepared.manifest
    lengths = np.concatenate(
        [np.diff(prepared.shard(shard).ends, prepend=0) for shard in range(len(manifest.shards))] or [np.empty(0, int)]
    )
    exponents = np.frexp(lengths)[1] - 1
    chosen = np.random.default_rng(seed).choice(manifest.documents, min(_SAMPLES, manifest.documents), replace=False)
    samples = []
    for number in sorted(map(int, chosen)):
        document = prepared.document(number)
        is_whole = len(document.ids) <= _TEXT
        text = prepared.text(document.ids if is_whole else document.ids[:_TEXT])
        samples.append(PreparedSample(document.source, document.number, len(document.ids), text, is_whole))
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
        damage=prepared.damage() if verify else None,
    )

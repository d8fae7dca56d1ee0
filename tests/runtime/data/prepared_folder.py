"""Make a folder as `podrun prepare` writes it, with given documents."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from podrun.runtime.data import prepared_files as files

EOS = 256


def prepared_folder(
    folder: Path, shards: list[list[list[int]]], answers: list[list[list[int]]] | None = None, name: str = "a.jsonl"
) -> Path:
    """Write documents, lists of byte ids without EOS, which they get at their ends; `answers` mark the ids to be learned."""
    folder.mkdir(parents=True)
    tokenizer = json.dumps({"name": "byte"}).encode()
    (folder / files.TOKENIZER).write_bytes(tokenizer)
    made, line = [], 0
    for number, documents in enumerate(shards):
        whole = [[*ids, EOS] for ids in documents]
        arrays = {
            "tokens": np.concatenate([np.array(ids, "<u2") for ids in whole]),
            "ends": np.cumsum([len(ids) for ids in whole]).astype("<i8"),
            "origins": np.array([[0, line + i + 1] for i in range(len(whole))], "<i8"),
        }
        line += len(whole)
        if answers is not None:
            arrays["answers"] = np.concatenate([np.array([*marks, 1], "u1") for marks in answers[number]])
        digests = {}
        for part, array in arrays.items():
            (folder / f"{number:05d}.{part}").write_bytes(array.tobytes())
            digests[part] = hashlib.sha256(array.tobytes()).hexdigest()
        made.append(files.PreparedShard(f"{number:05d}", len(whole), len(arrays["tokens"]), digests))
    files.write_manifest(
        folder,
        files.PreparedManifest(
            files.FORMAT,
            "uint16",
            EOS + 1,
            EOS,
            files.PreparedTokenizer("byte", files.tokenizer_digest(tokenizer)),
            sum(shard.documents for shard in made),
            sum(shard.tokens for shard in made),
            answers is not None,
            "text",
            None,
            [files.PreparedSource(name, line, 0, 0)],
            made,
        ),
    )
    return folder


def text_documents(text: str, lengths: list[int], seed: int = 0) -> list[list[int]]:
    """Cut a text into documents whose lengths are drawn from `lengths`."""
    generator, ids = np.random.default_rng(seed), list(text.encode())
    documents, at = [], 0
    while at < len(ids):
        size = int(generator.choice(lengths))
        documents.append(ids[at : at + size])
        at += size
    return documents

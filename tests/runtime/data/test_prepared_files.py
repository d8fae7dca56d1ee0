"""The format of a prepared folder: what is written is read, and what is damaged or foreign is named."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from podrun.runtime.contract import UserError
from podrun.runtime.data.prepared_files import (
    MANIFEST,
    TOKENIZER,
    PreparedFolder,
    PreparedManifest,
    PreparedShard,
    PreparedSource,
    PreparedTokenizer,
    file_digest,
    read_manifest,
    tokenizer_digest,
    tokenizer_file,
    write_manifest,
)

TEXTS = [["ab", "c"], [], ["defg"]]
"""Documents of each shard."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three documents of bytes in three shards, one of them empty, all to be learned."""
    shards = []
    for number, texts in enumerate(TEXTS):
        documents = [[*text.encode(), 256] for text in texts]
        ends = np.cumsum([len(ids) for ids in documents], dtype="<i8")
        arrays = {
            "tokens": np.array([token for ids in documents for token in ids], "<u2"),
            "ends": ends,
            "origins": np.array([(number // 2, row + 1) for row in range(len(texts))], "<i8").reshape(-1, 2),
            "answers": np.ones(ends[-1] if len(ends) else 0, "u1"),
        }
        name = f"{number:05d}"
        for part, array in arrays.items():
            array.tofile(tmp_path / f"{name}.{part}")
        sha256 = {part: file_digest(tmp_path / f"{name}.{part}") for part in arrays}
        shards.append(PreparedShard(name, len(texts), len(arrays["tokens"]), sha256))
    content = tokenizer_file({"name": "byte"})
    (tmp_path / TOKENIZER).write_bytes(content)
    sources = [PreparedSource("a.jsonl", 2, 1, 0), PreparedSource("b.jsonl", 1, 0, 3)]
    tokenizer = PreparedTokenizer("byte", tokenizer_digest(content))
    write_manifest(
        tmp_path, PreparedManifest(1, "uint16", 257, 256, tokenizer, 3, 10, True, "text", None, sources, shards)
    )
    return tmp_path


def test_documents_are_read_by_their_place(folder: Path) -> None:
    prepared = PreparedFolder(folder)
    documents = [prepared.document(number) for number in range(3)]
    assert [(document.source, document.number) for document in documents] == [
        *(("a.jsonl", 1), ("a.jsonl", 2)),
        ("b.jsonl", 1),
    ]
    assert [prepared.text(document.ids) for document in documents] == ["ab", "c", "defg"]
    assert [int(document.ids[-1]) for document in documents] == [256] * 3
    assert documents[2].answers is not None and documents[2].answers.tolist() == [1] * 5
    assert isinstance(prepared.shard(0).tokens, np.memmap)
    assert prepared.damage() == {}
    for number in (-1, 3):
        with pytest.raises(IndexError):
            prepared.document(number)


def test_the_manifest_is_read_as_it_was_written(folder: Path) -> None:
    manifest = read_manifest(folder)
    assert asdict(manifest) == json.loads((folder / MANIFEST).read_bytes())
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "has format 2, and this podrun reads format 1"),
        ({"format": "1"}, "is not a manifest of `podrun prepare`"),
        ({"vocabulary": "257"}, "is damaged: vocabulary: Input should be a valid integer"),
        ({"vocabulary": 65537}, "uint16 cannot have a vocabulary of 65537"),
        ({"eos": 257}, "eos 257 is outside of the vocabulary of 257"),
        ({"documents": 4}, "the documents of the shards are 3, not 4"),
        ({"tokens": 11}, "the tokens of the shards are 10, not 11"),
        ({"has_answers": False}, "shard 00000 has not the digests of tokens, ends, origins"),
        ({"sources": []}, "the documents of the sources are 0, not 3"),
        ({"dtype": "float32"}, "is damaged: dtype"),
    ],
)
def test_a_damaged_manifest_is_named(folder: Path, change: dict[str, Any], message: str) -> None:
    path = folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **change}))
    with pytest.raises(UserError, match=message) as raised:
        PreparedFolder(folder)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("name", ["../00000", "1", "0000x"])
def test_a_shard_cannot_be_outside_of_the_folder(folder: Path, name: str) -> None:
    path = folder / MANIFEST
    fields = json.loads(path.read_bytes())
    fields["shards"] = [{**fields["shards"][0], "name": name}]
    path.write_text(json.dumps(fields))
    with pytest.raises(UserError, match="is not the name of a shard"):
        PreparedFolder(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "it is not JSON"),
        (b"[]", "give a folder that"),
        (b'{"a": 1}', "give a folder that"),
        (b"\xff", "not JSON"),
    ],
)
def test_a_foreign_manifest_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_manifest(tmp_path)


def test_a_folder_without_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no manifest.json, so it is not a complete folder"):
        read_manifest(tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        read_manifest(tmp_path / "none")


def test_changed_files_are_found(folder: Path) -> None:
    prepared = PreparedFolder(folder)
    tokens = folder / "00002.tokens"
    content = tokens.read_bytes()
    tokens.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    (folder / "00000.ends").unlink()
    damage = prepared.damage()
    assert list(damage) == ["00000.ends", "00002.tokens"]
    assert "its SHA-256 is" in damage["00002.tokens"]
    tokens.write_bytes(content[:-2])
    with pytest.raises(UserError, match="has 8 bytes, and 10 by the manifest"):
        prepared.shard(2)


def test_another_tokenizer_is_found(folder: Path) -> None:
    (folder / TOKENIZER).write_text('{"name": "char", "code_points": [97]}')
    with pytest.raises(UserError, match="is not the tokenizer that the tokens were made with"):
        PreparedFolder(folder).tokenizer()

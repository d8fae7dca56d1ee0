"""Source files of every format, with the documents that they have."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest

from podrun.runtime.prepare.prepare import prepare
from podrun.runtime.queries import PrepareAnswer, PrepareQuery

Documents = dict[tuple[str, int], str]
"""Text of each document, by the name of its file below the folder and its number in that file."""


def run_prepare(folder: Path, *sources: Path | str, **changes: Any) -> PrepareAnswer:
    """Prepare in this process, with a worker if nothing else is asked for."""
    return prepare(query(folder, *sources, **changes), lambda message: None)


def query(folder: Path, *sources: Path | str, **changes: Any) -> PrepareQuery:
    fields: PrepareQuery = {
        "sources": list(map(str, sources)),
        "folder": str(folder),
        "tokenizer": "byte",
        "eos": None,
        "column": None,
        "template": None,
        "chat": False,
        "pairs": False,
        "workers": 1,
        "strict": False,
        "overwrite": False,
    }
    return {**fields, **changes}  # type: ignore[typeddict-item]


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Documents]:
    """Some 6 MB in every format; jsonl is long enough for several parts."""
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "below").mkdir()
    documents: Documents = {}

    def texts(name: str, count: int, first: int) -> list[str]:
        rows = [f"{name} number {row}: grüße, 世界. " * (1 + row % 7) for row in range(count)]
        documents.update({(name, first + row): text for row, text in enumerate(rows)})
        return rows

    def lines(name: str, count: int) -> bytes:
        return b"".join(json.dumps({"id": 1, "text": text}).encode() + b"\n" for text in texts(name, count, 1))

    (folder / "a.jsonl").write_bytes(lines("a.jsonl", 15000))
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines("b.jsonl.gz", 500)))
    with pyarrow.CompressedOutputStream(str(folder / "c.jsonl.zst"), "zstd") as stream:
        stream.write(lines("c.jsonl.zst", 500))
    pyarrow.parquet.write_table(pyarrow.table({"text": texts("d.parquet", 3000, 0)}), folder / "d.parquet", 500)
    table = pyarrow.table({"text": texts("e.arrow", 9000, 0)})
    with pyarrow.ipc.new_stream(str(folder / "e.arrow"), table.schema) as arrow:
        arrow.write_table(table, max_chunksize=100)
    pyarrow.feather.write_feather(pyarrow.table({"text": texts("f.feather", 300, 0)}), folder / "f.feather")
    for name, text in (("below/g.txt", "one file\r\n"), ("below/h.md", "x" * 300_000), ("below/i.txt.gz", "packed")):
        data = text.encode()
        (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        documents[name, 0] = text
    (folder / "picture.png").write_bytes(b"\x89PNG")
    return folder, documents

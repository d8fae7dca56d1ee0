"""Bad sources, lines, options and folders: each is named, with what to do."""

from __future__ import annotations

import gzip
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from podrun.runtime.contract import UserError
from podrun.runtime.data.prepared_files import PreparedFolder
from podrun.runtime.prepare import documents
from podrun.runtime.prepare.documents import Bad, Piece, ReadError, Selection
from podrun.runtime.prepare.shard import Input

from .conftest import files_of, run_prepare


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


LINES = [
    (b'{"text": "good"}', None),
    (b"{bad", "it is not JSON"),
    (b'{"id": 1}', "it has no column text"),
    (b'{"text": 5}', "column text is a number, not text"),
    (b'{"text": "\xff"}', "it is not UTF-8"),
    (b'"text"', "it is text, not an object"),
    (b"null", "it is null, not an object"),
    (b'{"text": "\\ud800"}', "it has half of a surrogate pair"),
    (b"[" * 100_000, "it is not JSON"),
    (b'{"text": "\\u0000"}', None),
    (b"", None),
    (b'{"text": ""}', None),
]


def test_bad_lines_are_counted_and_named(tmp_path: Path) -> None:
    source = tmp_path / "a.jsonl"
    source.write_bytes(b"\n".join(line for line, _ in LINES))
    report = run_prepare(tmp_path / "tokens", source)
    bad = [(number, reason) for number, (_, reason) in enumerate(LINES, 1) if reason]
    assert (report.documents, report.bad, report.empty) == (2, len(bad), 2)
    for line, (number, reason) in zip(report.bad_shown, bad, strict=False):
        assert line.startswith(f"{source}, line {number}: {reason}")
    assert len(report.bad_shown) == 5
    with pytest.raises(UserError, match=r"a.jsonl, line 2: it is not JSON"):
        run_prepare(tmp_path / "strict", source, strict=True)


def test_a_bad_line_far_in_a_file_is_named_by_its_line(tmp_path: Path) -> None:
    """The parts of a file are read at the same time, none of which knows the lines before it."""
    rows = [json.dumps({"text": "x" * 1000}) for _ in range(3000)]
    rows[2500] = "bad"
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(rows))
    report = run_prepare(tmp_path / "tokens", source)
    assert report.shards > 2
    assert report.bad_shown[0].startswith(f"{source}, line 2501: ")
    with pytest.raises(UserError, match="line 2501: it is not JSON"):
        run_prepare(tmp_path / "strict", source, strict=True)


def test_a_long_line_is_bad_and_read_in_bounded_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LONGEST_LINE", 1000)
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "a"}\n{"text": "' + "b" * 100_000 + '"}\n{"text": "c"}\n')
    size = source.stat().st_size
    rows = []
    for start in range(0, size, 30_000):
        piece = Piece(0, start, min(size, start + 30_000), 0, None)
        rows += list(documents.documents(piece, "a", str(source), "jsonl", "", Selection(None, None)))
    assert [row.text if isinstance(row.text, str) else "bad" for row in rows] == ["a", "bad", "c"]
    assert isinstance(rows[1].text, Bad)
    assert "longer than" in rows[1].text.reason


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe", "it is not UTF-8"),
        (b"a" * 600_000 + b"\xff", "it is not UTF-8"),
        (b"\0" * 10, "NUL byte"),
    ],
)
def test_a_bad_text_is_left_out_and_others_are_kept(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.txt").write_text("good")
    (tmp_path / "b.txt").write_bytes(content)
    (tmp_path / "c.txt").write_text("also good")
    report = run_prepare(tmp_path / "tokens", *(tmp_path / f"{name}.txt" for name in "abc"))
    assert report.bad == 1
    assert reason in report.bad_shown[0]
    prepared = PreparedFolder(tmp_path / "tokens")
    assert [prepared.text(prepared.document(number).ids) for number in (0, 1)] == ["good", "also good"]
    assert prepared.damage() == {}


def test_all_problems_of_sources_are_told_at_once_before_work_begins(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(20):
        pyarrow.parquet.write_table(pyarrow.table({"text": ["a"]}), corpus / f"{number:02d}.parquet")
    (corpus / "07.parquet").write_bytes((corpus / "07.parquet").read_bytes()[:-3])
    (corpus / "gone.txt").symlink_to(corpus / "nothing")
    write(tmp_path / "b.jsonl", {"body": "x", "id": 1})
    (tmp_path / "c.jsonl.gz").write_bytes(b"not gzip")
    (tmp_path / "d.json").write_text("[]")
    (tmp_path / "e.arrow").write_bytes(b"ARROW1 and no more")
    names = ["corpus", "b.jsonl", "c.jsonl.gz", "d.json", "e.arrow", "missing", "*.none"]
    with pytest.raises(UserError) as raised:
        run_prepare(tmp_path / "tokens", *(tmp_path / name for name in names), "ftp://server/x")
    text = str(raised.value)
    for part in (
        *(
            "07.parquet is not a Parquet file",
            "gone.txt is a broken link",
            "b.jsonl has no column text; it has body, id",
        ),
        *("c.jsonl.gz: Not a gzipped file", "d.json is one JSON value", "e.arrow is not an Arrow file"),
        *("missing: there is no file, folder or match", "*.none: there is no file"),
    ):
        assert part in text, text
    assert not (tmp_path / "tokens").exists()


def test_a_damaged_archive_is_named_and_the_rest_is_kept(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", *({"text": "x" * 1000} for _ in range(1500)))
    rows = b"".join(json.dumps({"text": os.urandom(500).hex()}).encode() + b"\n" for _ in range(2000))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(rows)[:-1000])
    with pytest.raises(UserError, match=r"b.jsonl.gz is damaged or cannot be read after number \d+: .*restore it"):
        run_prepare(tmp_path / "tokens", tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz")
    assert list((tmp_path / "tokens" / ".prepare").glob("00000.json"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer": "none"}, "--tokenizer none: there is no such file or folder"),
        ({"tokenizer": "."}, "--tokenizer .: the folder has no tokenizer.json"),
        ({"eos": "</s>"}, "tokenizer byte has a token of its own"),
        ({"column": "text", "template": "{text}"}, "are both given"),
        ({"template": "{text"}, "a brace of the text is written twice"),
        ({"template": "{}"}, "braces have the name of a column"),
        ({"template": "text"}, "names no column"),
        ({"template": "{text} {other}"}, "has no column other; it has text"),
        ({"column": "body"}, "has no column body; it has text"),
    ],
)
def test_bad_options_are_named(
    tmp_path: Path, changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path / "a.jsonl", {"text": "x"})
    with pytest.raises(UserError, match=message):
        run_prepare(tmp_path / "tokens", source, **changes)
    assert not (tmp_path / "tokens").exists()


def test_another_command_or_changed_sources_are_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", {"text": "x", "b": "y"})
    output = tmp_path / "tokens"
    run_prepare(output, source)
    before = files_of(output)
    with pytest.raises(
        UserError, match=r"--column was not given and is b\ngive another folder with -o, or --overwrite"
    ):
        run_prepare(output, source, column="b")
    with pytest.raises(UserError, match="--tokenizer was byte and is char"):
        run_prepare(output, source, tokenizer="char")
    write(source, {"text": "xyz", "b": "y"})
    other = write(tmp_path / "b.jsonl", {"text": "x"})
    with pytest.raises(UserError, match=r"b.jsonl is a new source\n.*a.jsonl had 24 bytes and has 26"):
        run_prepare(output, source, other)
    assert files_of(output) == before
    assert run_prepare(output, source, overwrite=True).tokens == 4


def test_a_folder_of_others_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", {"text": "x"})
    other = tmp_path / "other"
    other.mkdir()
    write(other / "c.jsonl", {"text": "x"})
    with pytest.raises(UserError, match=r"has other files \(c.jsonl\)"):
        run_prepare(other, source, overwrite=True)
    with pytest.raises(UserError, match=r"a.jsonl: Not a directory"):
        run_prepare(source, write(tmp_path / "b.jsonl", {"text": "x"}))


def test_sources_without_a_document_are_an_error(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", {"text": ""}, {"text": 1})
    with pytest.raises(UserError, match="the sources have no document: 1 bad, 1 empty"):
        run_prepare(tmp_path / "tokens", source)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "a.csv").write_text("x")
    with pytest.raises(UserError, match=r"no files to read in .*left out: 1 .csv"):
        run_prepare(tmp_path / "other", tmp_path / "empty")


def test_the_output_below_the_sources_is_no_source(tmp_path: Path) -> None:
    """Nor are hidden files; links to folders are not followed; any name is possible."""
    name = os.fsdecode(b"we\nird \xff {x}.txt")
    (tmp_path / name).write_text("x")
    (tmp_path / ".hidden.txt").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path)
    for _ in range(2):
        report = run_prepare(tmp_path / "tokens", tmp_path)
        assert (report.documents, report.sources) == (1, 1)
    assert PreparedFolder(tmp_path / "tokens").document(0).source == str(tmp_path / name).replace("\udcff", "\\udcff")


def test_a_full_disk_is_told_with_the_room_that_is_needed(tmp_path: Path) -> None:
    """A limit of the size of files gives the same error as a disk without room, but for its number."""
    source = write(tmp_path / "a.jsonl", *({"text": "x" * 1000} for _ in range(900)))
    code = (
        "import resource, sys, errno; from podrun.runtime.prepare import prepare as p;"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); p._FULL = (errno.EFBIG,);"
        "from tests.runtime.prepare.conftest import run_prepare; from pathlib import Path;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000000, 1000000));"
        "run_prepare(Path(sys.argv[1]), sys.argv[2])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "tokens"), str(source)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert "is full: about" in ended.stderr and "the same command goes on" in ended.stderr, ended.stderr
    assert not list((tmp_path / "tokens" / ".prepare").glob("*.tokens.*"))
    assert run_prepare(tmp_path / "tokens", source).documents == 900


def test_a_source_that_changes_while_it_is_read_is_named(tmp_path: Path) -> None:
    """The time of its change is compared before and after."""
    path = write(tmp_path / "a.jsonl", {"text": "x"})
    status = path.stat()
    given = Input(
        Piece(0, 0, status.st_size, status.st_size, 0), "a.jsonl", str(path), "jsonl", "", status.st_size, "0"
    )
    with pytest.raises(ReadError, match=r"a.jsonl was changed while it was read; prepare files that nobody writes"):
        given.check()
    Input(**{**vars(given), "version": str(status.st_mtime_ns)}).check()
    path.unlink()
    with pytest.raises(ReadError, match=r"cannot read a.jsonl: No such file"):
        given.check()


@pytest.mark.parametrize(
    "files",
    [
        None,
        3,
        ["a.arrow"],
        [{"filename": "../secret.jsonl"}],
        [{"filename": "/etc/passwd"}],
        [{}],
        [{"filename": ".."}],
    ],
)
def test_a_folder_of_datasets_names_only_its_own_files(tmp_path: Path, files: Any) -> None:
    folder = tmp_path / "set"
    folder.mkdir()
    (tmp_path / "secret.jsonl").write_text('{"text": "secret"}\n')
    (folder / "dataset_info.json").write_text("{}")
    (folder / "state.json").write_text(json.dumps({"_data_files": files}))
    with pytest.raises(UserError, match=r"state\.json is damaged: _data_files has no list of files of this folder"):
        run_prepare(tmp_path / "out", folder)
    (folder / "dataset_dict.json").write_text('{"splits": null}')
    with pytest.raises(UserError, match="has several parts of a data set"):
        run_prepare(tmp_path / "out", folder)


def test_a_long_text_in_a_damaged_archive_is_named(tmp_path: Path) -> None:
    """Its parts are read only while it is encoded."""
    source = tmp_path / "long.txt.gz"
    source.write_bytes(gzip.compress(os.urandom(500_000).hex().encode())[:300_000])
    with pytest.raises(UserError, match=r"long\.txt\.gz is damaged or cannot be read: Compressed file ended"):
        run_prepare(tmp_path / "tokens", source)


def arrow(path: Path, *columns: tuple[str, list[str]]) -> Path:
    schema = pyarrow.schema([(name, pyarrow.string()) for name, _ in columns])
    batch = pyarrow.record_batch([pyarrow.array(values) for _, values in columns], schema=schema)
    with pyarrow.ipc.new_file(path, schema) as file:
        file.write(batch)
    return path


def test_a_column_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    source = arrow(tmp_path / "twice.arrow", ("text", ["one"]), ("text", ["two"]), ("url", ["three"]))
    with pytest.raises(UserError, match=r"twice\.arrow has more than one column text; rename them"):
        run_prepare(tmp_path / "tokens", source)


def test_damaged_offsets_of_an_arrow_file_are_named(tmp_path: Path) -> None:
    source = arrow(tmp_path / "offsets.arrow", ("text", ["hello", "world"]))
    data = source.read_bytes()
    at = data.index(struct.pack("<iii", 0, 5, 10))
    source.write_bytes(data[:at] + struct.pack("<iii", 0, 5, 2_000_000_000) + data[at + 12 :])
    with pytest.raises(UserError, match=r"offsets\.arrow is damaged or cannot be read"):
        run_prepare(tmp_path / "tokens", source)


def test_a_stream_that_is_cut_between_its_batches_is_named(tmp_path: Path) -> None:
    """Its batches are whole, and only the mark at its end is missing: the rest of the text may be as well."""
    table = pyarrow.table({"text": ["one", "two"]})
    with pyarrow.ipc.new_stream(str(tmp_path / "cut.arrow"), table.schema) as stream:
        stream.write_table(table)
    os.truncate(tmp_path / "cut.arrow", (tmp_path / "cut.arrow").stat().st_size - 8)
    with pytest.raises(UserError, match=r"cut\.arrow is not an Arrow file that can be read: it is cut off"):
        run_prepare(tmp_path / "tokens", tmp_path / "cut.arrow")


def test_a_file_and_a_link_to_it_are_read_once(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", {"text": "a"})
    (tmp_path / "b.jsonl").symlink_to(source)
    assert run_prepare(tmp_path / "tokens", source, tmp_path / "b.jsonl").documents == 1


def test_sources_that_cannot_be_read_twice_or_are_the_output(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(UserError, match=r"pipe\.jsonl is no file that can be read twice, such as a pipe"):
        run_prepare(tmp_path / "tokens", tmp_path / "pipe.jsonl")
    source = write(tmp_path / "a.jsonl", {"text": "a"})
    with pytest.raises(UserError, match="outside of the folder that is to be written"):
        run_prepare(tmp_path, source)

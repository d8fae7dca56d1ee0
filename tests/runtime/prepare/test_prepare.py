"""Documents of every format become shards whose bytes depend on the sources alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest

from podrun.runtime.contract import UserError
from podrun.runtime.data.prepared_files import MANIFEST, TOKENIZER, PreparedFolder
from podrun.runtime.data.tokenizers import BytePairs
from podrun.runtime.prepare.plan import WORK
from podrun.runtime.prepare.prepare import prepare
from podrun.runtime.prepare.show import show

from .conftest import Documents, files_of, query, run_prepare


def documents_of(folder: Path, below: Path) -> Documents:
    """Read all documents of a prepared folder."""
    prepared = PreparedFolder(folder)
    rows = [prepared.document(number) for number in range(prepared.manifest.documents)]
    assert all(row.ids[-1] == prepared.manifest.eos for row in rows)
    return {(os.path.relpath(row.source, below), row.number): prepared.text(row.ids) for row in rows}


@pytest.fixture(scope="module")
def done(corpus: tuple[Path, Documents], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus, prepared by one worker."""
    folder = tmp_path_factory.mktemp("prepared") / "tokens"
    report = run_prepare(folder, corpus[0])
    assert (report.bad, report.empty, report.documents) == (0, 0, len(corpus[1]))
    return folder


def test_every_document_is_there_with_its_origin(done: Path, corpus: tuple[Path, Documents]) -> None:
    folder, documents = corpus
    assert documents_of(done, folder) == documents
    prepared = PreparedFolder(done)
    assert len(prepared.manifest.shards) > 5
    assert (prepared.manifest.vocabulary, prepared.manifest.eos, prepared.manifest.dtype) == (257, 256, "uint16")
    assert prepared.damage() == {}
    assert not (done / WORK).exists()


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.long)])
def test_any_number_of_workers_writes_the_same_bytes(
    done: Path, corpus: tuple[Path, Documents], tmp_path: Path, workers: int
) -> None:
    run_prepare(tmp_path / "tokens", corpus[0], workers=workers)
    assert files_of(tmp_path / "tokens") == files_of(done)


def test_killed_in_the_middle_it_goes_on(done: Path, corpus: tuple[Path, Documents], tmp_path: Path) -> None:
    """All processes are killed whenever another part is complete, and the last command completes the folder."""
    output = tmp_path / "tokens"
    command = [sys.executable, "-m", "podrun", "prepare", str(corpus[0]), "-o", str(output), "--tokenizer", "byte"]
    parts = 0
    for _ in range(2):
        process = subprocess.Popen([*command, "--workers=1"], stdout=subprocess.DEVNULL)
        limit = time.monotonic() + 60
        while len(list(output.glob(f"{WORK}/?????.json"))) <= parts and process.poll() is None:
            assert time.monotonic() < limit
            time.sleep(0.005)  # a part is complete every moment
        tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for each in tree:
            each.kill()
        process.wait()
        psutil.wait_procs(tree, 10)
        parts = len(list(output.glob(f"{WORK}/?????.json")))
        assert parts and not (output / MANIFEST).exists()
    said: list[str] = []
    prepare(query(output, corpus[0]), lambda message: said.append(str(message.get("line"))))
    assert any(line.startswith(f"{parts} of ") and "parts are there" in line for line in said)
    assert files_of(output) == files_of(done)


def test_workers_end_with_the_process_that_started_them(corpus: tuple[Path, Documents], tmp_path: Path) -> None:
    """Also if it is killed, and nobody can tell them."""
    output = tmp_path / "tokens"
    process = subprocess.Popen(
        [sys.executable, "-m", "podrun.runtime.prepare"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    assert process.stdin
    process.stdin.write(f"{json.dumps(query(output, corpus[0], workers=2))}\n".encode())
    process.stdin.flush()
    limit = time.monotonic() + 60
    while not (children := psutil.Process(process.pid).children()) or not list(output.glob(f"{WORK}/*.tokens.*")):
        assert time.monotonic() < limit
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert psutil.wait_procs(children, 30)[1] == []


def test_a_complete_folder_is_left_as_it_is(done: Path, corpus: tuple[Path, Documents]) -> None:
    times = {path: path.stat().st_mtime_ns for path in done.iterdir()}
    assert run_prepare(done, corpus[0]).was_complete
    assert {path: path.stat().st_mtime_ns for path in done.iterdir()} == times


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a model with a tokenizer.json."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = BytePairs.train("hello world, grüße world " * 50, 300)
    (folder / TOKENIZER).write_text(tokenizer.to_json())
    (folder / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    return folder


def test_tokens_are_those_of_the_library(model: Path, tmp_path: Path) -> None:
    """A long text, which is encoded in pieces, gets the ids that the library gives for all of it."""
    long = " ".join(f"hello world{number} grüße" for number in range(60_000))
    (tmp_path / "a.txt").write_text(long)
    (tmp_path / "b.jsonl").write_text(f"{json.dumps({'text': long})}\n{json.dumps({'text': 'hello'})}\n")
    run_prepare(tmp_path / "tokens", tmp_path / "a.txt", tmp_path / "b.jsonl", tokenizer=str(model))
    prepared = PreparedFolder(tmp_path / "tokens")
    library = BytePairs.load(model / TOKENIZER)
    expected = np.append(library.encode_batch([long])[0], 7)
    for number in (0, 1):
        np.testing.assert_array_equal(prepared.document(number).ids, expected)
    assert prepared.document(2).ids.tolist() == [*library.encode("hello"), 7]
    assert prepared.manifest.tokenizer.name == "bpe"
    assert prepared.tokenizer().vocabulary == prepared.manifest.vocabulary
    assert json.loads((tmp_path / "tokens" / TOKENIZER).read_text())["model"]["type"] == "BPE"


def test_the_end_is_found_beside_the_tokenizer(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / TOKENIZER).write_bytes((model / TOKENIZER).read_bytes())
    with pytest.raises(UserError, match=r"nothing says which token ends a document.*--eos TOKEN"):
        run_prepare(tmp_path / "tokens", tmp_path / "a.txt", tokenizer=str(tmp_path))
    with pytest.raises(UserError, match="has no such token"):
        run_prepare(tmp_path / "tokens", tmp_path / "a.txt", tokenizer=str(tmp_path), eos="<none>")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "h"}}')
    run_prepare(tmp_path / "tokens", tmp_path / "a.txt", tokenizer=str(tmp_path))
    prepared = PreparedFolder(tmp_path / "tokens")
    assert prepared.manifest.eos == BytePairs.load(tmp_path / TOKENIZER).id_of("h")


def test_characters_and_a_template(tmp_path: Path) -> None:
    rows = [{"q": "ab", "a": "c"}, {"q": "d", "a": None}, {"q": "{}", "a": ""}]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    report = run_prepare(tmp_path / "tokens", tmp_path / "a.jsonl", tokenizer="char", template="{{{q}}}\n{a}")
    assert report.bad_shown == [f"{tmp_path / 'a.jsonl'}, line 2: column a is null, not text"]
    prepared = PreparedFolder(tmp_path / "tokens")
    assert [prepared.text(prepared.document(number).ids) for number in (0, 1)] == ["{ab}\nc", "{{}}\n"]
    assert prepared.manifest.eos == len(set("{ab}\nc{{}}\n")) == prepared.manifest.vocabulary - 1


def test_a_folder_of_datasets(tmp_path: Path) -> None:
    """As `save_to_disk` writes it: the files that state.json names, in its order."""
    folder = tmp_path / "set" / "train"
    folder.mkdir(parents=True)
    schema = pyarrow.schema([("text", pyarrow.string())])
    for name in ("b", "a", "other"):
        with pyarrow.ipc.new_stream(str(folder / f"{name}.arrow"), schema) as stream:
            stream.write_table(pyarrow.table({"text": [name]}, schema))
    (folder / "state.json").write_text('{"_data_files": [{"filename": "b.arrow"}, {"filename": "a.arrow"}]}')
    (folder / "dataset_info.json").write_text("{}")
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(UserError, match="has several parts of a data set: train; give those to read"):
        run_prepare(tmp_path / "tokens", tmp_path / "set")
    run_prepare(tmp_path / "tokens", folder)
    prepared = PreparedFolder(tmp_path / "tokens")
    assert [prepared.text(prepared.document(number).ids) for number in range(2)] == ["b", "a"]


def test_show_tells_lengths_and_documents(done: Path, corpus: tuple[Path, Documents]) -> None:
    facts = show(done, verify=True, seed=3)
    sizes = [len(text.encode()) + 1 for text in corpus[1].values()]
    assert (facts.shortest, facts.longest, facts.tokens) == (min(sizes), max(sizes), sum(sizes))
    assert sum(count for _, count in facts.lengths) == len(sizes)
    assert dict(facts.lengths)[64] == sum(64 <= size < 128 for size in sizes)
    assert facts.damage == {}
    assert show(done, verify=False, seed=3).samples == facts.samples != show(done, verify=False, seed=4).samples
    for sample in facts.samples:
        whole = corpus[1][os.path.relpath(sample.source, corpus[0]), sample.number]
        assert whole.startswith(sample.text.rstrip("\N{REPLACEMENT CHARACTER}")) and sample.text


def test_it_imports_no_jax() -> None:
    code = "import podrun.runtime.prepare.prepare, podrun.runtime.prepare.worker, sys; print('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"

"""Measure `podrun prepare` against the `tokenizers` library alone, on one core, on the same text.

    python benchmarks/prepare.py [--rounds 5] [--megabytes 20]
    python benchmarks/prepare.py --workers 1 2 4 --kills 10 --megabytes 2000

The text is that of Python's standard library and of /usr/share/doc, repeated with changes up to the size, in documents of a
file each. A BPE tokenizer of 16,384 tokens is trained on a part of it. Ratio: one worker of podrun reads jsonl, encodes, and
writes ids, ends, origins and digests; `encode_batch` of the library gets the same texts in memory, with one thread. They take
turns. Printed: MB/s of each (medians), and the median over rounds of the ratio.

With --kills the text is in mixed formats (jsonl, gz, zst, Parquet, Arrow, one large text file), and is prepared by each
number of workers, and once more by the last number, killed so many times at random moments: all must be equal, byte by byte.
Printed: seconds, and the most memory that all processes had together (PSS). With --byte the tokenizer is byte.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import tokenizers
from setting import print_setting

from podrun.runtime.data.tokenizers import BytePairs
from podrun.runtime.prepare.documents import Piece, Selection
from podrun.runtime.prepare.plan import WORK
from podrun.runtime.prepare.shard import Input, ShardWriter, write_shard
from podrun.runtime.prepare.tokenizer import Encoder

FOLDERS = (sysconfig.get_path("stdlib"), "/usr/share/doc")
ENDINGS = (".py", ".txt", ".md", ".rst", ".html", "copyright", ".gz")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=20)
    parser.add_argument("--workers", type=int, nargs="*", default=[1])
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--byte", action="store_true")
    arguments = parser.parse_args()
    print_setting()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = list(
            limited(original_texts(), 20_000_000 if arguments.megabytes >= 20 else arguments.megabytes * 10**6)
        )
        tokenizer = BytePairs.train("\n".join(texts)[:4_000_000], 16384)
        (folder / "tokenizer.json").write_text(tokenizer.to_json())
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": tokenizer.token_of(0)}))
        if arguments.kills:
            name = "byte" if arguments.byte else str(folder / "tokenizer.json")
            show_kills(folder, texts, arguments.megabytes, arguments.workers, arguments.kills, name)
        else:
            show_ratio(folder, texts, tokenizer, arguments.rounds)


def original_texts() -> Iterator[str]:
    """Yield the files of documentation and of Python that are UTF-8."""
    for root in FOLDERS:
        for above, folders, names in os.walk(root):
            folders[:] = sorted(set(folders) - {"site-packages", "dist-packages", "__pycache__"})
            for name in sorted(names):
                path = Path(above, name)
                if name.endswith(ENDINGS) and path.is_file():
                    try:
                        content = path.read_bytes()
                        yield (gzip.decompress(content) if name.endswith(".gz") else content).decode()
                    except (OSError, UnicodeDecodeError, EOFError):
                        continue


def limited(texts: Iterator[str], size: int) -> Iterator[str]:
    for text in texts:
        if size <= 0:
            return
        yield text[:size]
        size -= len(text)


def show_ratio(folder: Path, texts: list[str], tokenizer: BytePairs, rounds: int) -> None:
    path = folder / "texts.jsonl"
    with path.open("w") as file:
        file.writelines(f"{json.dumps({'text': text})}\n" for text in texts)
    (folder / WORK).mkdir()
    status, size = path.stat(), sum(len(text.encode()) for text in texts)
    given = Input(
        Piece(0, 0, status.st_size, status.st_size, 0), str(path), str(path), "jsonl", "", status.st_size, None
    )
    encoder = Encoder({"name": "bpe", "file": tokenizer.to_json()}, 0, "uint16")
    library = tokenizers.Tokenizer.from_str(tokenizer.to_json())
    rates: dict[str, list[float]] = {"tokenizers": [], "podrun": []}
    for _ in range(rounds):
        start = time.perf_counter()
        for first in range(0, len(texts), 32):
            library.encode_batch(texts[first : first + 32], add_special_tokens=False)
        rates["tokenizers"].append(size / 1e6 / (time.perf_counter() - start))
        start = time.perf_counter()
        with ShardWriter(folder, "00000", "uint16") as writer:
            write_shard(writer, [given], Selection(None, None), encoder, False, lambda read, tokens: None)
        rates["podrun"].append(size / 1e6 / (time.perf_counter() - start))
    ratios = [mine / base for mine, base in zip(rates["podrun"], rates["tokenizers"], strict=True)]
    for name, values in rates.items():
        print(f"{name:<12}{statistics.median(values):>8.2f} MB/s a core")
    print(f"ratio       {statistics.median(ratios):>8.2f}", flush=True)


def show_kills(folder: Path, texts: list[str], megabytes: int, workers: list[int], kills: int, tokenizer: str) -> None:
    sources = folder / "sources"
    write_sources(sources, texts, megabytes * 10**6)
    size = sum(path.stat().st_size for path in sources.iterdir())
    print(f"{len(list(sources.iterdir()))} files, {size / 1e6:,.0f} MB as they are")
    digests = {}
    for number in workers:
        output = folder / f"out{number}"
        seconds, memory = prepared(folder, output, number, tokenizer)
        digests[number] = digest(output)
        print(f"{number} workers: {seconds:7.1f} s, {memory / 1e6:6.0f} MB at most, {digests[number][:12]}", flush=True)
    output, chance = folder / "killed", random.Random(0)
    done = 0
    while done < kills:
        left = seconds / (kills + 2) * chance.uniform(0.5, 1.5)
        prepared(folder, output, workers[-1], tokenizer, left)
        done += 1
        parts = len(list((output / WORK).glob("*.json"))) if (output / WORK).is_dir() else 0
        print(f"killed after {left:5.1f} s, {parts} parts complete", flush=True)
    prepared(folder, output, workers[-1], tokenizer)
    digests[0] = digest(output)
    print(f"killed {kills} times: {digests[0][:12]}; equal: {len(set(digests.values())) == 1}", flush=True)
    if len(set(digests.values())) != 1:
        sys.exit(1)


def write_sources(folder: Path, texts: list[str], size: int) -> None:
    """Write text of about `size` bytes, a sixth of it in each format."""
    folder.mkdir()
    share = size // 6

    def rows() -> Iterator[str]:
        left, number = share, 0
        while left > 0:
            for text in texts:
                number += 1
                yield f"{number} {text}"
                left -= len(text)
                if left <= 0:
                    break

    with (folder / "a.jsonl").open("w") as file:
        file.writelines(f"{json.dumps({'text': text})}\n" for text in rows())
    with gzip.open(folder / "b.jsonl.gz", "wt", compresslevel=1) as packed:
        packed.writelines(f"{json.dumps({'text': text})}\n" for text in rows())
    with pyarrow.CompressedOutputStream(str(folder / "c.jsonl.zst"), "zstd") as stream:
        for text in rows():
            stream.write(f"{json.dumps({'text': text})}\n".encode())
    schema = pyarrow.schema([("text", pyarrow.string())])
    with (
        pyarrow.parquet.ParquetWriter(folder / "d.parquet", schema) as parquet,
        pyarrow.ipc.new_stream(str(folder / "e.arrow"), schema) as arrow,
    ):
        rest = rows()
        while batch := [text for text, _ in zip(rest, range(200), strict=False)]:
            table = pyarrow.table({"text": batch}, schema)
            parquet.write_table(table)
            arrow.write_table(table)
    with (folder / "f.txt").open("w") as file:
        file.writelines(rows())


def prepared(
    folder: Path, output: Path, workers: int, tokenizer: str, kill_after: float | None = None
) -> tuple[float, int]:
    """Run the command, and kill all of its processes after some seconds. Return seconds and the most memory in bytes."""
    command = [
        *(sys.executable, "-m", "podrun", "prepare", str(folder / "sources"), "-o", str(output)),
        *("--tokenizer", tokenizer, "--workers", str(workers)),
    ]
    start, most = time.monotonic(), 0
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        if kill_after is not None and time.monotonic() - start > kill_after:
            for each in tree(process.pid):
                os.kill(each.pid, signal.SIGKILL)
            process.wait()
            return time.monotonic() - start, most
        most = max(most, memory(process.pid))
        time.sleep(0.2)
    if process.returncode:
        sys.exit(f"podrun prepare ended with {process.returncode}")
    return time.monotonic() - start, most


def tree(pid: int) -> list[psutil.Process]:
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def memory(pid: int) -> int:
    """Return the memory of a process and of those that it has started, shared pages once."""
    total = 0
    for process in tree(pid):
        try:
            total += process.memory_full_info().pss
        except psutil.NoSuchProcess:
            continue
    return total


def digest(folder: Path) -> str:
    """Return a digest of all files of a folder."""
    whole = hashlib.sha256()
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        whole.update(path.name.encode())
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


if __name__ == "__main__":
    main()

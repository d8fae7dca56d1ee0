"""One of the processes that write shards: gets units as lines of JSON from stdin, and answers each on stdout.

It ends when stdin is closed, so it does not outlive the process that started it, however that process ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import traceback
from datetime import datetime
from pathlib import Path
from queue import SimpleQueue
from typing import TextIO

from ..data.tokenizers import BytePairs
from .chat import ChatTemplate, Conversations
from .documents import Piece, ReadError, Selection
from .shard import Input, Report, ShardWriter, StrictError, WriteError, code_points, write_shard
from .tokenizer import Encoder
from .workers import Answer, Job, Message, Order

_EVERY = 0.25  # least seconds between two reports


def main() -> None:
    """Answer each unit until stdin is closed."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keeps output of libraries out of the answers
    lines: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    job: Job = json.loads(lines.get())
    selection = Selection(job["column"], job["template"], job["chat"] is not None, job["pairs"])
    encoder = _encoder(job)
    while True:
        _say(out, _answer(json.loads(lines.get()), job, selection, encoder, out))


def _encoder(job: Job) -> Encoder | Conversations | None:
    """Return the encoder of documents; None if the job only collects their characters."""
    if job["saved"] is None:
        return None
    if job["chat"] is None:
        assert job["eos"] is not None
        return Encoder(job["saved"], job["eos"], job["dtype"])
    assert job["saved"]["name"] == "bpe" and job["now"] is not None
    tokenizer = BytePairs.from_json(job["saved"]["file"])
    return Conversations(ChatTemplate(**job["chat"]), tokenizer, datetime.fromisoformat(job["now"]))


def _read(lines: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)


def _answer(
    order: Order,
    job: Job,
    selection: Selection,
    encoder: Encoder | Conversations | None,
    out: TextIO,
) -> Answer:
    inputs = [
        Input(
            Piece(**given["piece"]),
            given["name"],
            given["path"],
            given["kind"],
            given["compression"],
            given["size"],
            given["version"],
        )
        for given in order["inputs"]
    ]
    report = _reporter(out)
    try:
        if encoder is None:
            return {"written": 0, "code_points": code_points(inputs, selection, report)}
        with ShardWriter(Path(job["folder"]), order["name"], job["dtype"], selection.chat) as writer:
            record = write_shard(writer, inputs, selection, encoder, job["strict"], report)
        return {"written": record.tokens, "code_points": []}
    except ReadError as error:
        return {"error": "read", "text": str(error)}
    except StrictError as error:
        return {"error": "strict", "piece": error.bad.piece, "number": error.bad.number, "text": error.bad.reason}
    except WriteError as error:
        return {"error": "write", "errno": error.errno, "text": error.strerror or str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"error": "failed", "text": f"{type(error).__name__}: {error}"}


def _reporter(out: TextIO) -> Report:
    last = time.monotonic()

    def report(read: int, tokens: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY:
            last = time.monotonic()
            _say(out, {"read": read, "tokens": tokens})

    return report


def _say(out: TextIO, message: Message) -> None:
    out.write(f"{json.dumps(message)}\n")
    out.flush()


if __name__ == "__main__":
    main()

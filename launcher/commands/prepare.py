"""`podrun prepare`: write text as a folder of token ids, in processes of the runtime on this machine, or show one."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.queries import (
    PrepareAnswer,
    PreparedSample,
    PrepareLine,
    PrepareProgress,
    PrepareQuery,
    ShowPreparedAnswer,
    ShowPreparedQuery,
)
from podrun.runtime.wording import counted

from ..request.query_process import QueryError, QueryProcess, query_environment
from ..view.overwritten import OverwrittenLine
from ..view.printable import in_one_line, printable
from ..view.times import size
from ..view.waiting import waiting

_EVERY = 10.0  # seconds between two lines of progress without a terminal
_BAR = 30  # columns of the histogram's longest bar


def prepare(query: PrepareQuery) -> int:
    """Write the folder, and print what it has. Return 0; 1 if the process failed, 130 after Ctrl-C. Raises UserError."""
    folder = Path(query["folder"])
    try:
        with OverwrittenLine() as line:
            progress = _Progress(line)
            process = QueryProcess(sys.executable, "podrun.runtime.prepare", query_environment({}), "wrote the tokens")
            report = PrepareAnswer(**json.loads(process.ask(query, progress.on_part)))
    except QueryError as error:
        print(f"podrun: the folder is not complete: {error}", file=sys.stderr)
        return ExitCode.FAILED
    except KeyboardInterrupt:
        print(
            f"podrun: interrupted; the parts of {folder} that are complete are kept, and the same command goes on",
            file=sys.stderr,
        )
        return ExitCode.INTERRUPTED
    print(_as_text(report, folder))
    return ExitCode.DONE


class _Progress:
    """Shows progress: on the last line of a terminal, otherwise by printing a line from time to time."""

    def __init__(self, line: OverwrittenLine) -> None:
        self._line = line
        self._next = time.monotonic() + _EVERY
        self._first: tuple[int, int] | None = None

    def on_part(self, part: str) -> None:
        """Show a line that the process has written."""
        message: PrepareLine | PrepareProgress = json.loads(part)
        if "line" in message:
            self._line.say(in_one_line(message["line"]))
            return
        read, total, tokens, seconds = message["progress"]
        if self._first is None:  # what was there before says nothing of the speed
            self._first = read, tokens
        text = _rates(read - self._first[0], tokens - self._first[1], seconds, total - read)
        text = f"{size(read)} of {size(total)}{text}"
        if sys.stderr.isatty():
            self._line.show(text)
        elif time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY
            self._line.say(text)


def _rates(read: int, tokens: int, seconds: float, left: int) -> str:
    if seconds < 1 or not read:
        return ""
    speed = f", {read / seconds / 1e6:.1f} MB/s, {tokens / seconds:,.0f} tokens/s"
    remaining = int(left * seconds / read)
    return f"{speed}, {remaining // 3600}:{remaining // 60 % 60:02d}:{remaining % 60:02d} left"


def _as_text(report: PrepareAnswer, folder: Path) -> str:
    lines = []
    if report.was_complete:
        lines.append("is complete already: there was nothing to do")
    elif report.seconds > 0:
        seconds, read, written = report.seconds, report.read, report.written
        lines.append(
            f"read {size(read)} in {seconds:,.1f} s: {read / seconds / 1e6:,.1f} MB/s, {written / seconds:,.0f} tokens/s"
        )
    if report.answers is not None:
        share = report.answers / report.tokens
        lines.append(f"{report.answers:,} tokens ({share:.0%}) are of answers and are learned")
    if report.left_out:
        lines.append(
            f"{report.left_out:,} answers are not learned: the chat template writes them otherwise once more messages "
            "follow"
        )
    if report.empty:
        lines.append(f"left out: {counted(report.empty, 'document')} without text")
    if report.bad:
        lines.append(f"left out: {report.bad:,} bad (lines, rows or files)" + ":" * bool(report.bad_shown))
        lines += [f"  {line}" for line in report.bad_shown]
        if 0 < len(report.bad_shown) < report.bad:
            lines.append(f"  and {report.bad - len(report.bad_shown):,} more")
    head = (
        f"{folder}: {_documents(report)}, {counted(report.tokens, 'token')} ({report.dtype}, vocabulary "
        f"{report.vocabulary:,}), {counted(report.shards, 'shard')}"
    )
    return "\n".join([in_one_line(head), *(f"  {_line(line)}" for line in lines)])


def _documents(facts: PrepareAnswer | ShowPreparedAnswer) -> str:
    """Return the number of documents as a phrase."""
    return counted(facts.documents // 2, "pair") if facts.pairs else counted(facts.documents, "document")


def _line(text: str) -> str:
    """Return text on one line, with the indent kept."""
    return "  " * text.startswith("  ") + in_one_line(text)


def show_prepared(folder: Path, verify: bool, seed: int) -> int:
    """Print what a prepared folder has.

    Returns 0; 1 if a file is not as it was written, or if the process that reads the folder failed. Raises UserError.
    """
    query: ShowPreparedQuery = {"show": os.path.abspath(folder.expanduser()), "verify": verify, "seed": seed}
    process = QueryProcess(sys.executable, "podrun.runtime.prepare", query_environment({}), "read the folder")
    try:
        with waiting(f"reading {folder}"):
            fields = json.loads(process.ask(query))
    except QueryError as error:
        print(f"podrun: the folder cannot be read: {error}", file=sys.stderr)
        return ExitCode.FAILED
    facts = ShowPreparedAnswer(**{**fields, "samples": [PreparedSample(**sample) for sample in fields["samples"]]})
    print(_shown(facts, folder))
    if facts.damage:
        names = "\n".join(f"  {name}: {reason}" for name, reason in list(facts.damage.items())[:10])
        raise UserError(
            f"{len(facts.damage)} files of {folder} have changed since they were written:\n{names}\nprepare the folder again"
        )
    return ExitCode.DONE


def _shown(facts: ShowPreparedAnswer, folder: Path) -> str:
    if facts.answers is not None:
        eos = "conversations end as the chat template says"
    else:
        eos = "no token ends a document" if facts.eos is None else f"documents end with {facts.eos}"
    lines = [
        in_one_line(str(folder)),
        f"  {_documents(facts)}, {counted(facts.tokens, 'token')}, {counted(facts.shards, 'shard')}, "
        f"from {counted(facts.sources, 'file')}",
        f"  tokenizer {facts.tokenizer}, vocabulary {facts.vocabulary:,}, {facts.dtype}; {eos}",
        f"  left out: {facts.bad:,} bad, {facts.empty:,} empty",
    ]
    if facts.answers is not None:
        share = facts.answers / facts.tokens
        lines.append(f"  {facts.answers:,} tokens ({share:.0%}) are of answers and are learned; ⟦ ⟧ enclose them below")
    if facts.damage == {}:
        lines.append("  every file is as it was written")
    lines.append(
        f"tokens of a document: shortest {facts.shortest:,}, median {facts.median:,}, longest {facts.longest:,}"
    )
    most = max((count for _, count in facts.lengths), default=1)
    for tokens, count in facts.lengths:
        bar = "#" * max(1, round(_BAR * count / most))
        lines.append(f"  {tokens:>11,} - {2 * tokens - 1:<11,}  {bar:<{_BAR}}  {count:,}")
    for sample in facts.samples:
        role = f", {sample.role}" if sample.role else ""
        lines.append(f"--- {in_one_line(sample.source)}, number {sample.number}{role}: {sample.tokens:,} tokens")
        lines.append(printable(sample.text) + ("" if sample.is_whole else " ..."))
    return "\n".join(lines)

"""Files that are not there or not what they should be, those that only a worker can see included."""

from __future__ import annotations

from .case import Case, override

BPE = "data.tokenizer={name: bpe, file: tokenizer.json}"
FILES = [
    Case(
        "missing data",
        "no file, folder or match for 'a.txt'",
        "data.path",
        "a path that exists",
        override("data.path=a.txt"),
    ),
    Case(
        "empty text",
        "a.txt is empty",
        "data.path",
        "give a file that has text",
        override("data.path=a.txt"),
        files={"a.txt": ""},
    ),
    Case("glob", "'a/**.txt'", "data.path: ", "give a ", override("data.path=a/**.txt")),
    Case("long name", "File name too long", "data.path", "give a file", override(f"data.path={'a' * 300}")),
    Case("no such home", "home directory", "data.path", "give a file", override("data.path=~no-such-user/a.txt")),
    Case("missing tokenizer.json", "cannot read tokenizer.json", "data.tokenizer.file", "that exists", override(BPE)),
    Case("tokens", "cannot read a.bin", "data.path", "that exists", override("data={name: tokens, path: a.bin}")),
    Case(
        "data to bring from a bucket",
        "bring copies files of this machine",
        "data: bring: path is in a bucket",
        "remove `bring`",
        override("data.path=gs://bucket/a.txt", "data.bring=true"),
    ),
    Case(
        "missing data to bring to hosts",
        "no file, folder or match for 'a.txt'",
        "data.path",
        "a path that exists",
        ("-s", "cpu-2x1", "--hosts", "a,b", "train.yaml", "data.path=a.txt", "data.bring=true"),
    ),
    Case("workdir is a file", "is a file, not a folder", "workdir", "--workdir DIR", (*override(), "-w", "text.txt")),
    Case(
        "workdir below a file", "is a file, not", "text.txt/run", "--workdir DIR", (*override(), "-w", "text.txt/run")
    ),
    Case("workdir not writable", "/proc/podrun", "workdir", "--workdir DIR", (*override(), "-w", "/proc/podrun")),
    Case("PODRUN_HOME", "cannot make the run directory", "home/runs/", "set PODRUN_HOME", files={"home": ""}),
]
# These are found by a worker: the launcher does not import the user's code, and does not tokenize.
BY_A_WORKER = [
    Case(
        "short text", "too short", "data.path a.txt", "more text", override("data.path=a.txt"), files={"a.txt": "short"}
    ),
    Case("no plugin module", "no module 'no_such'", "data.name", "the directory", override("data=no_such:source")),
    Case(
        "no plugin attribute",
        "has no 'source'",
        "data.name: module 'mine'",
        "it has: sauce",
        override("data=mine:source"),
        files={"mine.py": "sauce = None\n"},
    ),
]

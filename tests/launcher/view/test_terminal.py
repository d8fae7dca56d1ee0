"""The terminal is the user's: whatever a worker, a host or a file says is shown, and never obeyed."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from podrun.launcher.view.printable import printable, without_colours
from tests.conftest import Sandbox

LAUNCHER = Path(__file__).parents[3] / "launcher"
SGR = re.compile(r"\x1b\[[0-9;:]*m")
MOVES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
"""Sequences by which rich draws its live view."""

HOSTILE = {
    "clipboard": b"\x1b]52;c;cm0gLXJmIC8=\x07",
    "clipboard past a filter": b"\x1b\x00]52;c;cm0gLXJmIC8=\x07",
    "title": b"\x1b]0;all is well\x1b\\",
    "link": b"\x1b]8;;http://example.org\x1b\\here\x1b]8;;\x1b\\",
    "DCS": b"\x1bP$q q\x1b\\",
    "APC": b"\x1b_Gf=24;AAAA\x1b\\",
    "PM": b"\x1b^private\x1b\\",
    "SOS": b"\x1bXstring\x1b\\",
    "C1 as bytes": b"\x9b2J\x9d52;c;AAAA\x9c",
    "C1 as text": "\u009b2J\u009d52;c;AAAA\u009c".encode(),
    "erases": b"\x1b[2J\x1b[1;1H\x1b[3J",
    "asks": b"\x1b[6n\x1b[c\x1bZ",
    "reset": b"\x1bc\x1b[!p",
    "colour with something in it": b"\x1b[31\x00m \x1b[3\x1b[1m \x1b[31;?m",
    "backspace": b"rm -rf /\x08\x08\x08\x08\x08\x08\x08\x08harmless",
    "bell, DEL, NUL": b"\x07\x7f\x00\x0e\x0f",
    "turned round": "\u202etxt.exe\u202c \u2066x\u2069 \u200f".encode(),
    "separators": "\u2028\u2029\u200b\ufeff\u00ad".encode(),
}

TALK = f"""\
import os, sys
for data in {list(HOSTILE.values())!r}:
    os.write(1, b"<" + data + b">\\n")
os.write(2, b"\\x1b[31mred\\nplain \\x1b[1;32mgreen\\x1b[0m\\n" + "näh 日本 🧪\\n".encode())
sys.exit(7)
"""


def obeyed(shown: str) -> list[str]:
    """Characters that a terminal would act on, or that show nothing."""
    categories = {"Cc", "Cf", "Zl", "Zp", "Cs"}
    return [c for c in SGR.sub("", shown) if unicodedata.category(c) in categories and c not in "\n\t"]


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_terminal_would_obey_is_shown(name: str) -> None:
    shown = printable(HOSTILE[name].decode("utf-8", "backslashreplace"))
    assert obeyed(shown) == []
    assert "\\x" in shown or "\\u" in shown
    assert "\x1b" not in without_colours(HOSTILE[name].decode("utf-8", "replace"))


def alone(*characters: str) -> set[str]:
    """Return the characters that stay as they are, each on a line of its own."""
    lines = printable("\n".join(characters)).split("\n")
    return {character for character, line in zip(characters, lines, strict=True) if line == character}


def test_every_character_alone() -> None:
    """A list of what stays, not of what goes: nothing in Unicode is forgotten."""
    kept = {"\n", *alone("\r")}
    for first in range(0, 0x110000, 0x100):
        kept |= alone(*(chr(n) for n in range(first, first + 0x100) if chr(n) not in "\r\n"))
    assert printable("\n") == "\n"
    assert {c for c in kept if not c.isprintable()} == {"\n", "\t", "\u200c", "\u200d", "\u00a0"}
    assert all(c in kept for c in map(chr, range(0x110000)) if c.isprintable())
    assert printable("\x1b\x9b\u202e\U000e0041\ud800\r") == r"\x1b\x9b\u202e\U000e0041\ud800\r"
    assert json.loads(printable(json.dumps({"all": "".join(map(chr, range(0x180)))})))["all"][0x7F] == "\x7f"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[1;32mok\x1b[0m", "\x1b[1;32mok\x1b[0m"),
        ("\x1b[38:2::1:2:3mok\x1b[m", "\x1b[38:2::1:2:3mok\x1b[m"),
        ("\x1b[31mred\nnext", "\x1b[31mred\x1b[0m\nnext"),
        ("a\n\x1b[0m\x1b[4mb", "a\n\x1b[0m\x1b[4mb\x1b[0m"),
        ("one\r\ntwo\r", "one\ntwo\\r"),
        ("fine\rfaked", "fine\\rfaked"),
        ("\x1b[31", "\\x1b[31"),
        ("\x1b[" + "1;" * 40 + "m", "\\x1b[" + "1;" * 40 + "m"),
        ("👩\u200d🔬 \u00a0", "👩\u200d🔬 \u00a0"),
    ],
)
def test_colours_and_lines(text: str, shown: str) -> None:
    """Whole colours stay, and end with their line; of others' escapes nothing is left to be completed later."""
    assert printable(text) == shown
    assert printable(shown) == shown


def ways_out(tree: ast.AST) -> set[str]:
    """Return what writes to the terminal without the filter."""
    around = set()
    for node in ast.walk(tree):
        name = (
            f"{getattr(node.value, 'id', '')}.{node.attr}"
            if isinstance(node, ast.Attribute)
            else getattr(node, "id", "")
        )
        if name in ("sys.__stdout__", "sys.__stderr__", "os.writev", "unguarded", "fdopen", "os.fdopen"):
            around.add(name)
        if isinstance(node, ast.Call):
            call = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
            first = ast.unparse(node.args[0]) if node.args and call in ("os.write", "open") else ""
            if (call in ("os.write", "open") and first in ("1", "2")) or ("fileno" in first and call == "os.write"):
                around.add(f"{call}({first})")
            if call == "Console" and "unguarded(" not in ast.unparse(node):
                around.add("rich's Console")
    return around


def test_there_is_no_other_way_out() -> None:
    """`print`, click and sys.stdout are filtered from the start of every command; nothing goes round that."""
    found = {}
    for path in LAUNCHER.rglob("*.py"):
        where = path.relative_to(LAUNCHER)
        if where.parts[0] != "agent" and (
            around := ways_out(ast.parse(path.read_text()))
        ):  # an agent's stdout is the connection
            found[str(where)] = around
    allowed = {
        "view/terminal.py": {"unguarded", "os.write(sys.stderr.fileno())"},
        **{path: {"unguarded"} for path in ("view/live_console.py", "view/waiting.py", "commands/logs.py")},
    }
    assert {path: around for path, around in found.items() if around - allowed.get(path, set())} == {}


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sandbox, subprocess.CompletedProcess[bytes]]:
    sandbox = Sandbox(tmp_path_factory.mktemp("talk"))
    (sandbox.path / "talk.py").write_text(TALK)
    return sandbox, podrun(sandbox, "--slice", "cpu-1x1", "--simulate", "--", sys.executable, "talk.py")


def podrun(sandbox: Sandbox, *args: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*sandbox.command, *args], cwd=sandbox.path, env=sandbox.env, capture_output=True, timeout=240
    )


def assert_harmless(done: subprocess.CompletedProcess[bytes], some: str) -> None:
    shown = (done.stdout + done.stderr).decode()  # it is UTF-8, whatever was printed
    assert obeyed(shown) == []
    assert some in shown


def test_a_hostile_worker(talk: tuple[Sandbox, subprocess.CompletedProcess[bytes]]) -> None:
    """Its output while it runs, and the tail of its log when it has failed."""
    _, done = talk
    assert done.returncode == 7
    assert_harmless(done, r"<\x1b\x00]52;c;cm0gLXJmIC8=\x07>")
    assert "\x1b[31mred\x1b[0m\nplain \x1b[1;32mgreen\x1b[0m\nnäh 日本 🧪\n" in done.stdout.decode()


@pytest.mark.parametrize("args", [["logs"], ["logs", "-f"], ["logs", "-n", "90"], ["status"], ["ps", "--all"]])
def test_a_hostile_log(talk: tuple[Sandbox, subprocess.CompletedProcess[bytes]], args: list[str]) -> None:
    assert_harmless(podrun(talk[0], *args), r"<\x1b]0;all is well\x1b\>" if args[0] == "logs" else "failed")


@pytest.mark.parametrize("args", [["logs", "--raw"], ["logs", "--raw", "-f", "-n", "99"]])
def test_raw_logs(talk: tuple[Sandbox, subprocess.CompletedProcess[bytes]], args: list[str]) -> None:
    """The bytes as they are, for whoever asks for them."""
    printed = b"".join(b"<" + data + b">\n" for data in HOSTILE.values())
    printed += b"\x1b[31mred\nplain \x1b[1;32mgreen\x1b[0m\n" + "näh 日本 🧪\n".encode()
    assert podrun(talk[0], *args).stdout == printed


def test_a_hostile_worker_on_a_terminal(talk: tuple[Sandbox, subprocess.CompletedProcess[bytes]]) -> None:
    """The live view moves the cursor itself; what it shows does not."""
    ours, theirs = os.openpty()
    command = [*talk[0].command, "--slice", "cpu-1x1", "--simulate", "--", sys.executable, "talk.py"]
    process = subprocess.Popen(command, cwd=talk[0].path, env=talk[0].env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65536):
            shown += data
    except OSError:  # the last process that had it open has closed it
        pass
    os.close(ours)
    assert process.wait() == 7
    text = shown.decode()
    assert r"\x1b\x00]52;" in text
    assert not re.search(r"\x1b\[(2J|1;1H|3J|6n|c|!p)", text)
    assert [c for c in obeyed(MOVES.sub("", text)) if c != "\r"] == []


def test_hostile_names(tmp_path: Path) -> None:
    """Texts of commands on hosts, of folders, of files, keys and values: in tables, errors and the output of `exec`."""
    sandbox = Sandbox(tmp_path)
    name = "x\x1b]52;c;AAAA\x07\u202e"
    (tmp_path / name).mkdir()
    (tmp_path / "train.yaml").write_text('"steps\\x1b]0;t\\x07": 1\nmodel: {layers: "\\e[2J"}\n')
    pod = ("--slice", "cpu-1x1", "--simulate")
    assert_harmless(podrun(sandbox, *pod, "train.yaml"), r"\x1b]0;t\x07")
    assert_harmless(podrun(sandbox, *pod, str(tmp_path / name / "train.yaml")), r"\x1b]52;")
    assert_harmless(podrun(sandbox, f"--{name}"), r"\x1b]52;")
    assert_harmless(podrun(sandbox, "exec", *pod, "--", "printf", r"\033]52;c;AAAA\007\233"), r"\x1b]52;c;AAAA\x07\x9b")
    assert_harmless(podrun(sandbox, "exec", *pod, "--", name), r"\x1b]52;")
    assert_harmless(podrun(sandbox, "check", *pod, "--workdir", f"/proc/{name}"), "not ready")

"""Files and commands of docs/tutorial.md, as somebody types them who follows it."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import dataclass
from pathlib import Path

from .conftest import Sandbox

TEXT = (Path(__file__).parents[1] / "docs" / "tutorial.md").read_text()


@dataclass(frozen=True)
class Command:
    """A command, and the exit code that it should have."""

    line: str
    code: int


def commands(text: str) -> list[Command]:
    """Return the commands of a part of the tutorial."""
    rows = re.findall(r"^    ((?:JAX_\w+=\w+ )*(?:python|podrun) .*?)(?: {2,}# (.*))?$", text, re.MULTILINE)
    codes = [re.search(r"exit code (\d+)", comment) for _, comment in rows]
    return [Command(line, int(code[1]) if code else 0) for (line, _), code in zip(rows, codes, strict=True)]


def sections() -> tuple[str, str]:
    """Return the part that needs one machine, and the one that needs hosts."""
    here, heading, hosts = TEXT.partition("## 6. Real hosts")
    assert heading
    return here, hosts


def write_files(folder: Path) -> None:
    """Write the tutorial's files. pod_loop.py is loop.py with another end."""
    blocks = re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", TEXT, re.DOTALL)
    assert [name for name, _ in blocks] == ["loop.py", "pod_loop.py", "old_names.py", "digits.yaml"]
    files = dict(blocks)
    kept, start, _ = files["loop.py"].partition("state = init(")
    assert start
    files["pod_loop.py"] = kept + files["pod_loop.py"]
    for name, text in files.items():
        (folder / name).write_text(text)


def run(sandbox: Sandbox, command: Command) -> str:
    """Run a command in a shell, expect its exit code, and return all that it printed."""
    programs = sandbox.path / "bin"
    programs.mkdir(exist_ok=True)
    for name, words in (("python", sandbox.command[:-2]), ("podrun", sandbox.command)):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (programs / name).chmod(0o755)
    env = {**sandbox.env, "PATH": f"{programs}:{sandbox.env['PATH']}"}
    done = subprocess.run(
        ["sh", "-c", command.line],
        cwd=sandbox.path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == command.code, f"{command.line}\n{done.stdout}"
    return done.stdout

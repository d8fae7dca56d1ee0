"""Find mistakes in the command line of a user program before anything starts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from podrun.runtime.contract import UserError

from ..inventory.base import INVENTORIES, option_of
from ..plan.program import OWN_PYTHON, Program
from ..yamlfile.near import SUFFIXES, near_files

_PYTHON = re.compile(r"python[\d.]*")
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Options of the interpreter that take a value."""


def check_kind(train: Path | None, program: Sequence[str], overrides: Sequence[str]) -> None:
    """Check what was typed before and after `--`.

    Raises:
        UserError: a program was typed in place of a train.yaml or the reverse, or the program cannot be a command line.
    """
    if train:
        _check_train(train, overrides)
        return
    if not program[0]:
        raise UserError("the word after `--` is empty; it must name a program: write podrun ... -- python my_train.py")
    if any("\0" in word for word in program):
        raise UserError("the program's arguments contain the character \\0, which is not allowed in an argument")
    if job := next((word for word in overrides if "=" not in word), None):
        raise UserError(
            f"{job} stands before the `--`, where only options and launch.key=value are allowed for a program; "
            "a train.yaml and a program are two runs, so leave one of them out"
        )
    script = script_of(program) if _is_python(program[0]) else program[0]
    if script and Path(script).suffix in SUFFIXES and not os.access(script, os.X_OK):
        keys = [word for word in program[program.index(script) + 1 :] if "=" in word]
        raise UserError(
            f"{script} is not a program: to train with it, leave out the `--`: podrun ... {shlex.join([script, *keys])}"
        )


def _check_train(train: Path, overrides: Sequence[str]) -> None:
    if not train.is_dir() and (train.suffix == ".py" or (not train.exists() and shutil.which(train))):
        words = ["python"] * (train.suffix == ".py") + [str(train), *overrides]
        raise UserError(
            f"{train} is a program, not a train.yaml; write it after two dashes: podrun ... -- {shlex.join(words)}"
        )


def misplaced_options(program: Sequence[str]) -> str | None:
    """Return a hint if the program's arguments contain options of podrun; otherwise None."""
    options = {"--slice", "--pod", *(option_of(name) for name in INVENTORIES)}
    misplaced = [word for word in program if word.partition("=")[0] in options]
    if not misplaced:
        return None
    return (
        f"the program gets all arguments after the `--`, here {', '.join(misplaced)}; options of podrun come before it"
    )


def check_sent_script(program: Program) -> None:
    """Raise UserError if the program runs a script of this folder that does not exist, and so cannot be sent to the hosts."""
    name, script = program.argv[0], script_of(program.argv)
    if _is_python(name) and script and not os.path.isabs(script) and not script.startswith("~"):
        _check_script(script)


def check_program(program: Program, env: Mapping[str, str] = os.environ) -> None:
    """Raise UserError unless a program for this machine exists and can be started."""
    python = os.path.expanduser(program.launch.python or sys.executable)
    if program.launch.python and shutil.which(python) is None:
        raise UserError(f"launch.python: there is no program {python!r} on this machine; give the path of a Python")
    name = program.argv[0]
    folders = [os.path.dirname(python), program.launch.env.get("PATH", env.get("PATH", os.defpath))]
    path = os.pathsep.join(folder for folder in folders if folder)  # same PATH as the agent builds
    if name not in OWN_PYTHON:
        _check_executable(name, path)
    if _is_python(name) and (script := script_of(program.argv)):
        _check_script(script)


def _check_executable(name: str, path: str) -> None:
    if "/" not in name:
        if shutil.which(name, path=path) is None:
            raise UserError(f"there is no program {name!r} in the PATH of this machine; {_remedy(name)}")
        return
    file = Path(name)
    if file.is_dir():
        raise UserError(f"{name} is a folder, not a program; name the program in it")
    if not file.exists():
        raise UserError(f"there is no file {name}; {_nearest(file)}")
    if not os.access(file, os.X_OK):
        before = "python" if file.suffix == ".py" else "sh"
        raise UserError(f"{name} is not executable; `chmod +x {name}`, or start it with -- {before} {name}")


def _remedy(name: str) -> str:
    if _is_python(name):
        return f"`python` is {sys.executable}, and launch.python=PATH before the `--` chooses another"
    file = Path(name)
    if not file.is_file():
        return "install it, or give its path"
    return f"start a file of this folder with -- {'python ' if file.suffix == '.py' else './'}{name}"


def _check_script(script: str) -> None:
    file = Path(script)
    if file.is_dir():
        if not (file / "__main__.py").is_file():
            raise UserError(f"{script} is a folder without a __main__.py, which python would run; name a program in it")
    elif not file.exists():
        raise UserError(f"there is no file {script} for python to run; {_nearest(file)}")


def _nearest(file: Path) -> str:
    return near_files(file, (file.suffix,)) or f"paths are relative to this folder, {Path.cwd()}"


def _is_python(name: str) -> bool:
    return _PYTHON.fullmatch(os.path.basename(name)) is not None


def script_of(argv: Sequence[str]) -> str | None:
    """Return the script in an interpreter's command line; None if it runs a module, a command, or standard input."""
    words = iter(argv[1:])
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return word
        elif word == "-" or (not word.startswith("--") and set(word) & set("cm")):
            return None
    return None

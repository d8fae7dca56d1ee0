"""Under the instrument a program ends as it does in plain Python, and what ended it is reported all the same.

The programs have files with the names of standard modules, narrow `sys.path`, catch SystemExit, or empty their environment.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.pythons import other_python
from tests.tiers import mostly_long

from .plain_program import FOLDER, run

PYTHON = os.path.realpath(sys.executable)
"""Not that of a virtual environment, which has imported other modules already."""
BOOM = "def boom():\n    raise ValueError('boom')\nboom()\n"
BOOMED = "ValueError: boom (train.py:2)"
"""Names that `traceback`, `json` and what they import have, and one that only the newest Python's have."""
SHADOWS = (
    *("tokenize", "linecache", "types", "enum", "re", "json", "traceback", "contextlib", "collections"),
    *("functools", "textwrap", "opcode", "token", "keyword", "string", "operator", "threading", "__future__"),
)
DROP_ROOT = "import os, sys\nos.setgroups([])\nos.setgid(65534)\nos.setuid(65534)\nos.chdir('/')\n"
NO_ENVIRONMENT = (
    "import os\nfor name in [n for n in os.environ if n.startswith('PODRUN_')]:\n    del os.environ[name]\n"
)


@dataclass(frozen=True)
class Case:
    """A program, the files beside it, and what is reported: None for nothing."""

    program: str
    message: str | None
    code: int = 1
    files: dict[str, str] = field(default_factory=dict)


CASES = {
    "all shadows": Case(BOOM, BOOMED, files={f"{shadow}.py": "mine = True\n" for shadow in SHADOWS}),
    "a shadow that is used": Case(
        "import tokenize\nprint(tokenize.mine)\n1 / 0",
        "ZeroDivisionError: division by zero (train.py:3)",
        files={"tokenize.py": "mine = 'mine'\n"},
    ),
    "a shadow that fails": Case(
        "import tokenize\n", "ValueError: mine (tokenize.py:1)", files={"tokenize.py": "raise ValueError('mine')\n"}
    ),
    "an exit beside a shadow": Case(
        "import sys\nsys.exit(5)\n", "exited with code 5 (train.py:2)", 5, {"json.py": "mine = True\n"}
    ),
    "sys.path is empty": Case("import sys\nsys.path[:] = []\n" + BOOM, "ValueError: boom (train.py:4)"),
    "an exit with an empty sys.path": Case(
        "import sys\nsys.path.clear()\nsys.exit(5)", "exited with code 5 (train.py:3)", 5
    ),
    "sys.path is gone": Case("import sys\ndel sys.path\n" + BOOM, "ValueError: boom (train.py:4)"),
    "no finders": Case("import sys\nsys.meta_path.clear()\nraise SystemExit(6)", "exited with code 6 (train.py:3)", 6),
    "a caught exit with an empty sys.path": Case(
        "import sys\nsys.path.clear()\ntry:\n    sys.exit(3)\nexcept SystemExit:\n    print('caught')", None, 0
    ),
    "caught, then an exit of a class of its own": Case(
        "class Mine(SystemExit):\n    pass\ntry:\n    exit(3)\nexcept SystemExit:\n    pass\nraise Mine(0)", None, 0
    ),
    "caught in a function, which goes on": Case(
        "import sys\nclass Mine(SystemExit):\n    def __init__(self):\n        self.code = 0\n"
        "def main():\n    try:\n        sys.exit(3)\n    except SystemExit:\n        pass\n    raise Mine\nmain()",
        None,
        0,
    ),
    "caught and kept": Case("try:\n    exit(3)\nexcept SystemExit as e:\n    kept = e", None, 0),
    "caught, then Ctrl-C": Case(
        "try:\n    exit(3)\nexcept SystemExit as e:\n    kept = e\nraise KeyboardInterrupt", None, -2
    ),
    "caught, then nothing": Case("import os\ntry:\n    exit(3)\nexcept SystemExit:\n    pass\nos._exit(0)", None, 0),
    "an exit that an exit handler makes": Case("import atexit, sys\natexit.register(sys.exit, 3)", None, 0),
    "an exit that a finalizer makes": Case(
        "class A:\n    def __del__(self):\n        raise SystemExit(3)\na = A()", None, 0
    ),
    "caught from a thread's exit": Case(
        "import _thread\ntry:\n    _thread.exit()\nexcept SystemExit:\n    print('caught')", None, 0
    ),
    "caught, and another raised": Case(
        "def main():\n    try:\n        exit(3)\n    except SystemExit as e:\n        raise SystemExit(e.code + 1)\nmain()",
        "exited with code 4 (train.py:5)",
        4,
    ),
    "raised again": Case("try:\n    exit(3)\nfinally:\n    print('end')", "exited with code 3 (train.py:2)", 3),
    "a context manager lets it pass": Case(
        "import contextlib\nwith contextlib.suppress(ValueError):\n    exit(3)", "exited with code 3 (train.py:3)", 3
    ),
    "a context manager catches it": Case(
        "import contextlib\nwith contextlib.suppress(SystemExit):\n    exit(3)", None, 0
    ),
    "an error of a console that was shown": Case(
        "import code\ncode.InteractiveInterpreter().runsource('1 / 0')", None, 0
    ),
    "an error that the program shows": Case(
        "import sys\ntry:\n    1 / 0\nexcept ZeroDivisionError:\n    sys.excepthook(*sys.exc_info())", None, 0
    ),
    "a hook around the first": Case(
        "import sys\nbefore = sys.excepthook\nsys.excepthook = lambda *error: before(*error)\n" + BOOM,
        "ValueError: boom (train.py:5)",
    ),
    "the first hook comes back": Case(
        "import sys\nsys.excepthook = print\nsys.excepthook = sys.__excepthook__\n" + BOOM,
        "ValueError: boom (train.py:5)",
    ),
    "an error without words": Case(
        "class E(Exception):\n    def __str__(self):\n        raise KeyError\nraise E",
        "E: <exception str() failed> (train.py:4)",
    ),
    "an empty environment": Case(NO_ENVIRONMENT + BOOM, "ValueError: boom (train.py:5)"),
    "an exit with an empty environment": Case(
        NO_ENVIRONMENT + "raise SystemExit(7)", "exited with code 7 (train.py:4)", 7
    ),
    "stderr is closed": Case("import sys\nsys.stderr.close()\n" + BOOM, "ValueError: boom (train.py:4)"),
    "no stderr": Case("import sys\nsys.stderr = None\n" + BOOM, "ValueError: boom (train.py:4)"),
    "all files are closed": Case(
        "import os\nos.closerange(3, 100)\nopen('other', 'w').write('theirs')\n" + BOOM, "ValueError: boom (train.py:5)"
    ),
    "another file has the number": Case(
        "import os\nos.closerange(3, 100)\nkept = open('other', 'w')\n" + BOOM, "ValueError: boom (train.py:5)"
    ),
    "open is another's": Case(
        "import os, time\nos.open = os.write = time.time = None\n" + BOOM, "ValueError: boom (train.py:4)"
    ),
    "find_spec came first": Case(
        "import importlib.util\nimportlib.util.find_spec('threading')\nimport threading\n"
        "def boom():\n    raise ValueError('boom')\nthreading.Thread(target=boom).start()",
        "ValueError: boom (train.py:5)",
        0,
    ),
}


def ends(path: Path, case: Case, python: str, folder: str) -> tuple[Any, list[Any]]:
    path.mkdir()
    for name, text in case.files.items():
        (path / name).write_text(text)
    return run(path, case.program, python, PYTHONPATH=folder)


def check(path: Path, case: Case, python: str = PYTHON) -> None:
    plain, _ = ends(path / "plain", case, python, "")
    done, events = ends(path / "with", case, python, str(FOLDER))
    assert done.returncode == plain.returncode == case.code
    assert done.stdout == plain.stdout
    assert done.stderr.splitlines()[-1:] == plain.stderr.splitlines()[-1:]
    assert [event["code"] for event in events] == [case.code or 1] * (case.message is not None)
    assert all(event["message"].startswith(case.message) for event in events)
    if "other" in case.program:
        assert (path / "with" / "other").read_text() == (path / "plain" / "other").read_text()


@pytest.mark.parametrize("name", CASES)
def test_a_program_ends_as_in_plain_python(tmp_path: Path, name: str) -> None:
    """With the same exit code, the same output and the same exception, which is reported if nobody caught it."""
    check(tmp_path, CASES[name])


OTHERS = ("3.8", "3.9", "3.10", "3.12", "3.13")


@pytest.mark.parametrize(
    ("name", "version"),
    mostly_long(
        ((name, version) for name in CASES for version in OTHERS),
        quick=lambda number, case: False,
        ci=lambda number, case: number // len(OTHERS) % len(OTHERS) == number % len(OTHERS),  # each case in one of them
    ),
)
def test_so_it_does_in_other_pythons(tmp_path: Path, name: str, version: str) -> None:
    check(tmp_path, CASES[name], other_python(version))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("end", "message", "code"), [(BOOM, "ValueError: boom (", 1), ("sys.exit(5)", "exited with code 5 (", 5)]
)
def test_a_program_that_gives_up_its_rights(tmp_path: Path, end: str, message: str, code: int) -> None:
    """It can read neither this folder nor that of its run any more."""
    tmp_path.chmod(0o700)
    check(tmp_path, Case(DROP_ROOT + end, message, code))

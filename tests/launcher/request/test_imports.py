"""Packages that a script imports: found in its text, named if a host lacks them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from podrun.launcher.agent.prepare.facts import gather
from podrun.launcher.plan.program import Program
from podrun.launcher.preflight.versions import check_imports
from podrun.launcher.request.imports import imported_packages
from podrun.runtime.config import Launch

from ..preflight.pods import changed

SCRIPT = """\
from __future__ import annotations
import os, json as j, torch.nn
import numpy as np
from yaml import safe_load
from mine.layers import Layer
import helper, podrun
from . import sibling
try:
    import maybe
except ImportError:
    maybe = None
if os.environ.get("X"):
    import sometimes
def late():
    import later
with open("x"):
    import inside
"""


def packages(folder: Path, text: str, *argv: str) -> dict[str, str] | None:
    (folder / "train.py").write_text(text)
    return imported_packages(Program(argv or ("python", "-u", "train.py", "--a"), Launch()), folder)


def test_what_is_imported_for_certain(tmp_path: Path) -> None:
    """Of the script and, in turn, of the project's own modules; neither the standard library nor what may not run."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "__init__.py").write_text("import einops\nimport helper\n")
    (tmp_path / "helper.py").write_text("import train\nimport tqdm\nimport torch\n")
    assert packages(tmp_path, SCRIPT) == {
        "torch": "train.py:2",
        "numpy": "train.py:3",
        "yaml": "train.py:4",
        "inside": "train.py:17",
        "einops": "mine/__init__.py:1",
        "tqdm": "helper.py:2",
    }


@pytest.mark.parametrize(
    ("text", "argv"),
    [
        ("import sys\nsys.path.insert(0, 'lib')\nimport torch\n", ()),
        ("import torch\nthis is no Python\n", ()),
        ("\0", ()),
        ("(" * 5000, ()),
        ("import torch\n", ("python", "-m", "train")),
        ("import torch\n", ("python", "-c", "import torch")),
        ("import torch\n", ("python", "no.py")),
        ("import torch\n", ("torchrun", "train.py")),
        ("import torch\n", ("/usr/bin/python3", "train.py")),
        ("import torch\n" + "#" * (1 << 20), ()),
    ],
)
def test_what_is_not_certain_is_not_judged(tmp_path: Path, text: str, argv: tuple[str, ...]) -> None:
    assert packages(tmp_path, text, *argv) is None


def test_a_host_that_lacks_one_is_named(tmp_path: Path) -> None:
    """With the line of the script and what to do; the interpreter imports nothing for it."""
    imports = packages(tmp_path, "import json\nimport numpy\nimport no_such_a\nimport yaml\nimport no_such_b.c\n")
    assert imports is not None
    lacks = gather({"python": sys.executable, "modules": [*imports]})["lacks"]
    assert lacks == ["no_such_a", "no_such_b"]
    pod, facts = changed("cpu-2x1", {"a": {"lacks": lacks}})
    (finding,) = check_imports(pod, facts, imports)
    assert (finding.hosts, finding.fatal) == (("a",), False)
    assert finding.what.startswith("no module no_such_a (train.py:3), no_such_b (train.py:5) for /usr/bin/python3")
    assert check_imports(*changed("cpu-2x1", {}), imports) == []


def test_a_python_that_cannot_be_asked_lacks_nothing_that_is_known() -> None:
    assert gather({"python": "/no/python", "modules": ["torch"]})["lacks"] == []
    assert gather({"python": sys.executable})["lacks"] == []

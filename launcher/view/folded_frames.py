"""PURE: leave podrun's own frames out of a traceback that is shown; the log keeps them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from podrun.runtime.wording import counted

_FRAME = re.compile(r'^ +(?:\| +)?File "(?P<file>[^"]+)", line (?P<line>\d+)')
_BEGIN = re.compile(r"Traceback \(most recent call last\):$")
_HERE = Path(__file__).parents[2]
_INSTALLED = re.compile(r"/podrun/runtime/|/(site-packages|\.podrun/.*)/podrun/[^/]+\.py$")


def fold_frames(lines: Iterable[str]) -> list[str]:
    """Return the lines of a traceback with `... 5 frames of podrun, the last one in loop.py:235` in place of podrun's frames.

    A traceback that has only podrun's frames stays as it is: it is of a bug in podrun.
    """
    shown: list[str] = []
    for part in _tracebacks(lines):
        files = [frame["file"] for line in part if (frame := _FRAME.match(line))]
        shown += part if all(map(_is_podruns, files)) else _folded(part)
    return shown


def _tracebacks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Divide lines before each traceback of a chain of them."""
    part: list[str] = []
    for line in lines:
        if _BEGIN.search(line):
            yield part
            part = []
        part.append(line)
    yield part


def _folded(lines: list[str]) -> Iterator[str]:
    count, last, inside = 0, "", False
    for line in lines:
        frame = _FRAME.match(line)
        if frame and _is_podruns(frame["file"]):
            count, last, inside = count + 1, f"{os.path.basename(frame['file'])}:{frame['line']}", True
        elif frame or not (inside and line.startswith("    ")):  # a frame's code has four spaces
            if count:
                yield f"  ... {counted(count, 'frame')} of podrun, the last one in {last}"
            count, inside = 0, False
            yield line
    if count:
        yield f"  ... {counted(count, 'frame')} of podrun, the last one in {last}"


def _is_podruns(file: str) -> bool:
    path = Path(file)
    here = any(_HERE / name in path.parents for name in ("runtime", "api", "launcher"))
    return here or _INSTALLED.search(file) is not None

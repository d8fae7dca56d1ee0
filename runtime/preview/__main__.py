"""The worker of `podrun inspect`: reads a job from stdin, writes a report, or an error, to stdout."""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from ..contract import ExitCode, UserError


def main() -> None:
    """Exit with 0 and a report, 2 and a mistake of the user, or 1 and any other error."""
    out = os.dup(1)
    os.dup2(2, 1)  # output of libraries is no part of the report
    try:
        code, answer = ExitCode.DONE, _answer(json.loads(sys.stdin.read()))
    except UserError as error:
        code, answer = ExitCode.BAD_CONFIG, str(error)
    except Exception as error:
        traceback.print_exc()
        code, answer = ExitCode.FAILED, _describe(error)
    with os.fdopen(out, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{answer}\n")
    sys.stdout.flush()
    os._exit(code)


def _answer(request: dict[str, Any]) -> str:
    import jax

    if "arrays" in request:
        return _answer_arrays(request)
    from ..config import Config
    from .look import look
    from .render import as_json, text

    jax.config.update("jax_threefry_partitionable", True)
    jax.config.update("jax_enable_compilation_cache", False)  # a program from the cache does not know its memory
    width = int(str(request["width"]))
    report = look(Config.model_validate(request["config"]), str(request["slice"]), min(width, 100) - 2)
    return as_json(report) if request["json"] else text(report, str(request["title"]), width)


def _answer_arrays(request: dict[str, Any]) -> str:
    from dataclasses import asdict

    from .product import look_at_arrays
    from .render_arrays import text

    report = look_at_arrays(request["mesh"], request["arrays"], min(int(request["width"]), 100) - 2)
    return json.dumps(asdict(report), indent=1) if request["json"] else text(report)


def _describe(error: Exception) -> str:
    """Return an error and its place: the last line of code that is not a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [
        frame for frame in frames if "site-packages" not in frame.filename and "podrun" not in frame.filename
    ]
    frame = (user_frames or frames)[-1]
    first = (str(error).strip() or "no message").splitlines()[0][:300]
    return f"{type(error).__name__}: {first}\nin {Path(frame.filename).name}, line {frame.lineno}: {frame.line}"


if __name__ == "__main__":
    main()

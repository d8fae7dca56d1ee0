"""The process behind `podrun inspect`: reads a job as JSON from stdin, and writes a report or an error to stdout."""

from __future__ import annotations

import json
from typing import Any

from ..worker.query import answer_query


def _answer(request: dict[str, Any]) -> str:
    import jax

    if "arrays" in request:
        return _answer_arrays(request)
    from ..config import Config
    from .look import look
    from .render import as_json, text

    jax.config.update("jax_threefry_partitionable", True)
    jax.config.update("jax_enable_compilation_cache", False)  # programs from the cache have no memory analysis
    width = int(str(request["width"]))
    report = look(Config.model_validate(request["config"]), str(request["slice"]), min(width, 100) - 2)
    return as_json(report) if request["json"] else text(report, str(request["title"]), width)


def _answer_arrays(request: dict[str, Any]) -> str:
    from dataclasses import asdict

    from .on_mesh import look_at_arrays
    from .render_arrays import text

    report = look_at_arrays(
        request["mesh"], request["arrays"], request["expression"], min(int(request["width"]), 100) - 2
    )
    return json.dumps(asdict(report), indent=1) if request["json"] else text(report)


if __name__ == "__main__":
    answer_query(_answer)

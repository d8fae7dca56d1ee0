"""The process behind `podrun export`: reads a request as JSON from stdin, and writes a report or an error to stdout."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..worker.query import answer_query


def _answer(request: dict[str, Any]) -> str:
    from .export import export

    report = export(Path(request["workdir"]), request["step"], request["format"], request["output"])
    return json.dumps(asdict(report))


if __name__ == "__main__":
    answer_query(_answer)

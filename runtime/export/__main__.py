"""The process behind `podrun export`: reads a request as JSON from stdin, and writes a report or an error to stdout."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..worker.query import answer_query

if TYPE_CHECKING:
    from ..queries import ExportQuery


def _answer(request: ExportQuery) -> str:
    from .export import export

    report = export(Path(request["workdir"]), request["step"], request["format"], request["output"])
    return json.dumps(asdict(report))


if __name__ == "__main__":
    answer_query(_answer)

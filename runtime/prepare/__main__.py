"""The process behind `podrun prepare`: reads a query as JSON from stdin, and writes progress and a report to stdout."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..worker.query import answer_in_parts

if TYPE_CHECKING:
    from ..queries import PrepareQuery, ShowPreparedQuery


def _answer(query: PrepareQuery | ShowPreparedQuery, say: Callable[[str], None]) -> str:
    if "show" in query:
        from .show import show

        return json.dumps(asdict(show(Path(query["show"]), query["verify"], query["seed"])))
    from .prepare import prepare

    return json.dumps(asdict(prepare(query, lambda message: say(json.dumps(message)))))


if __name__ == "__main__":
    answer_in_parts(_answer)

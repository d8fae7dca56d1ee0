"""The process behind `podrun batches`: reads a request as JSON, and writes the examples of steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..worker.query import answer_query

if TYPE_CHECKING:
    from ..queries import BatchesQuery


def _answer(request: BatchesQuery) -> str:
    from .batches import steps_of

    return json.dumps(steps_of(Path(request["workdir"]), request["first"], request["last"]))


if __name__ == "__main__":
    answer_query(_answer)

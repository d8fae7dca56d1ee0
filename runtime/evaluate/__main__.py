"""The process behind `podrun evaluate`: reads a request as JSON, and writes its progress and a report."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..worker.query import Say, answer_in_parts

if TYPE_CHECKING:
    from ..queries import EvaluateQuery


def _answer(request: EvaluateQuery, say: Say) -> str:
    from .evaluate import evaluate

    tokenizer = Path(request["tokenizer"]) if request["tokenizer"] else None
    report = evaluate(
        Path(request["folder"]),
        request["step"],
        request["data"],
        tokenizer,
        lambda done, total: say(json.dumps([done, total])),
    )
    return json.dumps(asdict(report))


if __name__ == "__main__":
    answer_in_parts(_answer)

"""The process behind `podrun evaluate`: reads a request as JSON, and writes its progress and a report."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..contract import UserError
from ..worker.query import Say, answer_in_parts

if TYPE_CHECKING:
    from ..queries import EvaluateQuery


def _answer(request: EvaluateQuery, say: Say) -> str:
    tokenizer = Path(request["tokenizer"]) if request["tokenizer"] else None
    folder, step = Path(request["folder"]), request["step"]

    def on_part(done: int, total: int) -> None:
        say(json.dumps([done, total]))

    if tasks := request["tasks"]:
        try:
            from .harness import evaluate_tasks
        except ImportError as error:
            raise UserError(
                f"--lm-eval needs lm-eval: {error}; install it: {sys.executable} -m pip install 'lm-eval<0.5'"
            ) from None
        report = evaluate_tasks(folder, step, tokenizer, tasks, request["limit"], on_part)
    else:
        from .evaluate import evaluate

        report = evaluate(folder, step, request["data"], tokenizer, on_part)
    return json.dumps(asdict(report))


if __name__ == "__main__":
    answer_in_parts(_answer)

"""Show the metrics of an evaluated model: the output of `podrun evaluate`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

from podrun.runtime.contract import UserError
from podrun.runtime.queries import EvaluateAnswer
from podrun.runtime.wording import counted

from .printable import in_one_line
from .text_table import text_table


def evaluation_text(answer: EvaluateAnswer, names: Sequence[str], as_json: bool) -> str:
    """Return the report as text or JSON, with the metrics of these names; none: all. Raises UserError for an unknown name."""
    answer = _selected(answer, names)
    if as_json:
        return json.dumps(asdict(answer))
    average = ", the moving average of its parameters" if answer.weights == "ema" else ""
    size = f" of {answer.tokens:,} tokens" if answer.tokens else ""
    rows = [[name, f"{value:.6g}"] for name, value in answer.metrics.items() if not isinstance(value, list)]
    table = text_table(rows, right=(1,)).splitlines()
    head = [f"{answer.about}{average}", f"{counted(answer.examples, 'example')}{size}: {answer.data}"]
    return "\n".join([*map(in_one_line, head), *(f"  {line}" for line in table)])


def _selected(answer: EvaluateAnswer, names: Sequence[str]) -> EvaluateAnswer:
    if unknown := [name for name in names if name not in answer.metrics]:
        raise UserError(
            f"--metric {unknown[0]}: the evaluation has no such metric; it has {', '.join(map(in_one_line, answer.metrics))}"
        )
    return replace(answer, metrics={name: answer.metrics[name] for name in names or answer.metrics})

"""Measurements of variants that have never run."""

from __future__ import annotations

from dataclasses import replace

from podrun.launcher.compare.page import About
from podrun.launcher.compare.table import Measurement, Row, Step, VariantState, compare_variants
from podrun.launcher.compare.variants import Variant

ABOUT = About("train", "cpu-1x2", "/runs/train-compare", "podrun compare train.yaml", "12:00:00")


def variant(name: str, seconds: float, loss: float = 1.0, steps: int = 40) -> Measurement:
    """A variant whose steps take `seconds`, but the first."""
    made = [Step(1, loss, 2.0, 60.0), *(Step(n, loss / n, 2.0 / n, seconds) for n in range(2, steps + 1))]
    values = (("parallel", name),)
    evaluations = ((steps // 2, 2 * loss), (steps, loss))
    measured = Measurement(Variant(name, name, values), VariantState.DONE, "", 0, f"20260101-000000-{name}"[:20])
    return replace(measured, steps=tuple(made), evaluations=evaluations, compile_seconds=3.5)


def rows(*measured: Measurement) -> list[Row]:
    return compare_variants(measured)

"""The page of a comparison: its numbers, its drawings, and names that try to be more than text."""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from podrun.launcher.compare.output import best_variant
from podrun.launcher.compare.page import charts_of, page_of
from podrun.launcher.compare.spread import WIDTH, box_svg, spread_of, ticks_to
from podrun.launcher.compare.table import Measurement, VariantState
from podrun.launcher.compare.variants import Variant
from podrun.runtime.ranking import Ranking

from .made import ABOUT, rows, variant


def cells(page: str, title: str) -> list[list[str]]:
    """Rows of the table in a section, as text."""
    part = page.partition(f"<h2>{title}</h2>")[2].partition("</section>")[0].partition("<tbody>")[2]
    return [
        [re.sub("<[^>]*>", "", cell) for cell in re.findall("<td.*?>(.*?)</td>", row)]
        for row in re.findall("<tr>(.*?)</tr>", part)
    ]


def decoded(page: str) -> dict[str, Any]:
    text = page.partition('id="data">')[2].partition("</script>")[0]
    found: dict[str, Any] = json.loads(text)
    return found


def floats(text: str) -> Sequence[float]:
    packed = base64.b64decode(text)
    return struct.unpack(f"<{len(packed) // 4}f", packed)


def test_the_page_says_which_is_faster_and_which_is_better() -> None:
    page = page_of(rows(variant("pmap", 0.02), variant("single", 0.01, loss=0.5)), ABOUT)
    assert "All 2 variants are done" in page
    assert "The lowest validation loss: single, 0.5." in page
    first, second = cells(page, "Results")
    assert first[:6] == ["pmap", "0.02500", "1.0000", "40", "3.50", "20.0"] and second[5] == "10.0"
    assert (first[7], second[7]) == ("1.00x", "2.00x") and second[-1] == "done"
    assert cells(page, "What differs") == [["pmap", "pmap"], ["single", "single"]]
    assert cells(page, "Step times")[1][2:] == ["10", "2.00x"]
    assert "podrun compare train.yaml" in page and "20260101-000000-pmap" in page


@pytest.mark.parametrize(
    ("times", "line"),
    [
        ({"a": [2.0], "b": [1.0]}, ""),
        ({"a": [2.0, 2.2], "b": [1.0, 1.1]}, "The fastest steps: b, 2.00x (2.00-2.00) as fast as a."),
        ({"a": [1.0, 1.1], "b": [2.0, 2.2]}, "The fastest steps: a; b is 0.50x (0.50-0.50) as fast."),
        ({"a": [2.0, 2.0], "b": [1.0, 1.8]}, "The steps of no variant are clearly the fastest."),
        ({"a": [2.0, 2.0], "b": [1.0, 1.8], "c": [4.0, 4.0]}, "The steps of no variant are clearly the fastest."),
        ({"a": [2.0, 2.0], "b": [1.0, 1.0], "c": [0.9, 1.0]}, "The steps of no variant are clearly the fastest."),
    ],
    ids=["one run", "the second", "the first", "runs differ", "another one is slower", "two of three"],
)
def test_the_fastest_steps_are_named_only_if_runs_show_it(times: dict[str, list[float]], line: str) -> None:
    """One run of each shows nothing: the machine may have been busy during one of them."""
    runs = [
        replace(variant(name, seconds), variant=Variant(name, name, (("lr", name),), repeat=n))
        for name, every in times.items()
        for n, seconds in enumerate(every, 1)
    ]
    page = page_of(rows(*runs), ABOUT)
    verdict = re.findall('<p class="cause">(.*?)</p>', page, re.DOTALL)[0].splitlines()
    assert [text for text in verdict if "steps" in text] == ([line] if line else [])
    once = "each variant has run once: a speed-up may come from a machine that was busier"
    assert (once in page and "--repeat 3" in page) == (not line)


@pytest.mark.parametrize(
    ("order", "line"),
    [
        ("max val/top 1", "Best by max val/top 1: b, 0.7."),
        ("min val/top 1", "Best by min val/top 1: a, 0.5."),
        ("min training loss", "Best by min training loss: a, 0.025."),
        (
            "max f1",
            "Best by max f1: no variant has a finite f1; there are validation loss, training loss, val/top 1. "
            "compare.csv has the values of all metrics.",
        ),
    ],
)
def test_the_best_variant_by_a_metric_of_a_program(order: str, line: str) -> None:
    a, b = (
        replace(variant(name, 0.1, loss), metrics={"val/top 1": ((1, 0.9), (2, value))})
        for name, loss, value in (("a", 1.0, 0.5), ("b", 2.0, 0.7))
    )
    best = best_variant(rows(a, b), Ranking.parse(order))
    assert best == line
    assert line in page_of(rows(a, b), replace(ABOUT, best=best))


@pytest.mark.parametrize(
    ("order", "line"),
    [
        ("max f1", "Best by max f1: b, 0.5."),
        ("max validation accuracy", "Best by max validation accuracy: b, 0.6."),
    ],
)
def test_the_best_variant_is_one_whose_last_value_is_finite_and_of_the_metric_itself(order: str, line: str) -> None:
    """Neither a value before NaN counts, nor the accuracy of training in place of that of validation."""
    a = {"f1": ((1, 0.9), (2, None)), "accuracy": ((2, 1.0),), "validation accuracy": ((2, 0.2),)}
    b = {"f1": ((1, 0.1), (2, 0.5)), "accuracy": ((2, 0.6),), "validation accuracy": ((2, 0.6),)}
    measured = rows(*(replace(variant(name, 0.1), metrics=values) for name, values in (("a", a), ("b", b))))
    assert best_variant(measured, Ranking.parse(order)) == line


def test_the_best_variant_by_the_loss_of_training() -> None:
    """A program may have no evaluation."""
    a, b = (replace(variant(name, 0.1, loss), evaluations=()) for name, loss in (("a", 2.0), ("b", 1.0)))
    measured = rows(a, b)
    best = min(measured, key=lambda row: row.train_loss or math.inf)
    assert all(row.validation_loss is None for row in measured)
    line = best_variant(measured, Ranking.parse("min loss"))
    assert line == f"Best by min loss of training: {best.measured.variant.name}, {best.train_loss:.5g}."


def test_losses_that_hardly_differ_have_no_best() -> None:
    page = page_of(rows(variant("pmap", 0.02), variant("single", 0.01, loss=1.00001)), ABOUT)
    assert "The validation losses are equal, to 4 digits: 1." in page and "lowest validation loss" not in page


def test_the_curves_are_those_of_the_metrics() -> None:
    measured = [variant("pmap", 0.02), variant("single", 0.01)]
    charts = {chart["key"]: chart for chart in decoded(page_of(rows(*measured), ABOUT))["charts"]}
    assert charts.keys() == {"loss", "grad_norm"}
    series = charts["loss"]["series"]
    assert [(one["name"], one["style"], one["colour"]) for one in series] == [
        ("pmap", "line", 0),
        ("single", "line", 1),
        ("pmap, validation", "dots", 0),
        ("single, validation", "dots", 1),
    ]
    assert floats(series[0]["y"]) == pytest.approx([step.loss for step in measured[0].steps])
    assert floats(series[2]["y"]) == (2.0, 1.0)


def test_further_metrics_have_charts_and_columns() -> None:
    """In groups by the beginning of their names, with a line for each run of a variant in the variant's colour."""
    one, two = (
        replace(variant(name, 0.01), metrics={"val/f1": ((1, 0.5), (2, value)), "lr": ((1, 0.1),)})
        for name, value in (("a", 0.75), ("b", 0.25))
    )
    again = replace(two, variant=replace(two.variant, repeat=2))
    charts = charts_of(rows(one, two, again))
    assert [(chart.title, chart.group) for chart in charts[2:]] == [("lr", ""), ("val/f1", "val")]
    assert [(s.name, s.y, s.colour) for s in charts[-1].series] == [
        ("a", [0.5, 0.75], 0),
        ("b", [0.5, 0.25], 1),
        ("b #2", [0.5, 0.25], 1),
    ]
    page = page_of(rows(one, two, again), ABOUT)
    assert "<tr><td>val/f1</td>" in page and '<td class="number">0.7500</td>' in page


def test_a_loss_that_is_not_finite_is_left_out() -> None:
    measured = replace(variant("a", 0.02), evaluations=((20, 2.0), (40, None)))
    (loss, _) = charts_of(rows(measured, variant("b", 0.01)))
    assert loss.series[2].y == [2.0] and measured.validation_loss is None


def test_of_many_steps_the_lowest_and_highest_remain() -> None:
    spiked = variant("pmap", 0.02, steps=100_000)
    steps = [*spiked.steps]
    steps[70_000] = replace(steps[70_000], loss=99.0)
    (loss, _) = charts_of(rows(replace(spiked, steps=tuple(steps)), variant("single", 0.01)))
    curve = loss.series[0]
    assert len(curve.x) <= 20_000 and curve.high is not None and curve.low is not None
    assert max(curve.high) == 99.0 and min(curve.low) == pytest.approx(1e-5)
    assert curve.x[-1] == 100_000


def test_a_variant_that_failed_is_named_with_its_reason() -> None:
    failed = replace(variant("b", 0.01), state=VariantState.FAILED, reason="the loss is not finite", evaluations=())
    page = page_of(rows(variant("a", 0.02), failed), ABOUT)
    assert '<section id="verdict" class="verdict failed"><h2>1 of 2 variants are done</h2>' in page
    assert "b: failed, the loss is not finite" in page


def test_a_comparison_without_a_step_has_a_page() -> None:
    """It was interrupted before the first one."""
    none = [Measurement(Variant(n, n, (("parallel", n),)), VariantState.NOT_RUN) for n in ("pmap", "single")]
    page = page_of(rows(*none), ABOUT)
    assert "0 of 2 variants are done" in page and "<h2>Step times</h2>" not in page and "<h2>Metrics</h2>" not in page


def test_names_stay_text() -> None:
    evil = '</script><img src=x onerror="alert(1)">\x1b[31m&'
    hostile = replace(
        variant("a", 0.01), variant=Variant(evil, "a", ((evil, evil),)), reason=evil, state=VariantState.FAILED
    )
    page = page_of(rows(hostile, variant("b", 0.02)), replace(ABOUT, name=evil, slice=evil, command=evil, workdir=evil))
    assert "<img" not in page and "\x1b" not in page
    assert page.count("</script>") == 2


# --- spread ---------------------------------------------------------------------------------------------------------


def test_the_box_holds_half_of_the_steps() -> None:
    spread = spread_of([float(n) for n in range(101)])
    assert (spread.low, spread.first, spread.median, spread.third, spread.high) == (5, 25, 50, 75, 95)
    assert spread_of([3.0]).low == spread_of([3.0]).high == 3.0
    svg = box_svg(spread, 100.0, "label")
    assert f'x="{0.25 * WIDTH}"' in svg and f'width="{0.5 * WIDTH:.1f}"' in svg and f"M{0.5 * WIDTH} 2" in svg


@pytest.mark.parametrize("highest", [1e-6, 0.0123, 0.1, 0.99, 1.0, 7.3, 60.0, 12345.0])
def test_the_axis_is_round_and_long_enough(highest: float) -> None:
    ticks = ticks_to(highest)
    assert ticks[0] == 0 and 3 <= len(ticks) <= 6
    assert ticks[-1] >= highest * 0.998 and ticks[-2] < highest

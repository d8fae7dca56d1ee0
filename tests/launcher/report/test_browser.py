"""The page in a real browser: opened from disk, looked at, hovered, zoomed and switched to the other theme."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.report.curves import key_of
from podrun.launcher.report.make_page import page_of_run
from podrun.launcher.report.write_html import html_of
from podrun.launcher.rundir.runs import RunDirectory

from ..browsers import WAIT, chromium
from ..rundir.made import event, make, record
from .made import BEGIN, hostile_run, phase, run_with_restart, run_with_samples, start, steps

pytestmark = pytest.mark.long
WHITE_OR_NOT = """(id) => {
  const canvas = document.querySelector(id + " canvas"), pen = canvas.getContext("2d");
  const pixels = new Uint32Array(pen.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  return pixels.filter((pixel) => pixel !== 0).length / pixels.length;
}"""
"""Share of the pixels of a canvas that are drawn."""
ALL_DRAWN = (
    "new Promise((done) => { const look = () => waiting.length ? requestAnimationFrame(look) : done(); look(); })"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Open the page of a run. What it requests besides itself, and what goes wrong in it, fails the test."""
    contexts, requests, trouble = [], [], []

    def open_page(directory: RunDirectory, scheme: str = "light", width: int = 1280) -> Any:
        file = tmp_path / "page.html"
        file.write_text(html_of(page_of_run(directory)), encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        context.set_default_timeout(WAIT)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: trouble.append(dialog.message))
        page.goto(file.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert set(requests) <= {(tmp_path / "page.html").as_uri()} and trouble == []


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 390)])
def test_all_is_drawn_and_fits(opened: Open, scheme: str, width: int) -> None:
    page = opened(run_with_restart(), scheme, width)
    assert page.locator("#verdict h2").inner_text() == "Done"
    figures = page.evaluate("[...document.querySelectorAll('figure')].map((figure) => '#' + figure.id)")
    assert {"#chart-loss", "#chart-cpu", "#strip-time", "#strip-late"} <= set(figures)
    assert all(page.evaluate(WHITE_OR_NOT, figure) > 0.005 for figure in figures)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")


def shown(page: Any) -> str:
    """Return the values at the pointer, after the frame in which they are drawn."""
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    text: str = page.locator("#chart-loss output").inner_text()
    return text


def test_values_under_the_pointer_are_those_on_record(opened: Open) -> None:
    """Step 12 is the last one, with a loss of 4 / 12; the smoothed value comes first."""
    page = opened(run_with_restart())
    box = page.locator("#chart-loss canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 13, box["y"] + 50)
    text = shown(page)
    assert text.startswith("step 12: training ") and "(0.3333)" in text and "validation 1.5" in text
    page.locator("#smooth").fill("0")
    page.mouse.move(box["x"] + box["width"] - 14, box["y"] + 50)
    assert shown(page).startswith("step 12: training 0.3333, ")
    strip = page.locator("#strip-time canvas").bounding_box()
    page.locator("#strip-time canvas").hover(position={"x": strip["width"] - 20, "y": 5})
    assert page.locator("#strip-time output").inner_text().endswith(": save")


def test_a_curve_without_noise_is_not_smoothed(opened: Open) -> None:
    """Of a program only one chart has the marks; the words of its legend are those of the documentation."""
    directory = make()
    rows = steps(1, 40, 0, hosts=1)
    for row in rows[::2]:
        row["loss"] += 1
    saved = event("checkpoint", 0, time=BEGIN + 9, step=9)
    record(directory, start(0, 0, hosts=1, program="python own.py"), *rows, saved)
    page = opened(directory)
    smoothed = dict(page.evaluate("charts.map((c) => [c.spec.key, c.series[0].smooth !== null])"))
    assert smoothed["loss"] and not smoothed["learning_rate"]
    assert page.locator("[data-part=metrics] .legend span").all_inner_texts() == ["training", "checkpoint"]


@pytest.mark.parametrize("first", [12, 13])
def test_the_legend_has_only_marks_that_are_drawn(opened: Open, first: int) -> None:
    """Curves that go on from an earlier checkpoint begin after the mark of the restart."""
    directory = make()
    rows = steps(first, 20, 0, hosts=1)
    resume, save = event("resume", 0, time=BEGIN, step=12), event("checkpoint", 0, time=BEGIN + 8, step=20)
    record(directory, start(0, 0, hosts=1), resume, *phase("train", 0, 1), *rows, save)
    page = opened(directory)
    drawn = ["restart", "checkpoint"] if first == 12 else ["checkpoint"]
    assert page.locator("#chart-loss .legend span").all_inner_texts() == ["training", *drawn]


def test_zoom_theme_and_log_axis(opened: Open) -> None:
    page = opened(run_with_restart())
    box = page.locator("#chart-loss canvas").bounding_box()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 60)
    page.mouse.up()
    page.evaluate(ALL_DRAWN)
    ranges = page.evaluate("charts.filter((chart) => chart.spec.axis === 'step').map((chart) => chart.range)")
    assert all(low == pytest.approx(6.5, abs=0.3) and high == pytest.approx(9.25, abs=0.3) for low, high in ranges)
    page.locator("#reset").click()
    assert page.evaluate("charts[0].range") == [1, 12]
    page.locator("#log").check()
    assert page.evaluate("charts[0].log") is True
    page.locator("#theme").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 28)"


def test_an_outlier_does_not_flatten_the_rest(opened: Open) -> None:
    """The axis leaves it out, which is said, until the reader asks for all values."""
    directory = make()
    rows = steps(1, 100, 0, hosts=1)
    rows[60]["loss"] = 1e6
    record(directory, start(0, 0, hosts=1), *phase("train", 0, 1), *rows)
    page = opened(directory)
    assert page.evaluate("charts[0].bounds(charts[0].range)[1] < 5")
    assert page.locator("#chart-loss output").inner_text() == "1 value is beyond the axis"
    assert page.evaluate("charts.find((chart) => chart.spec.key === 'learning_rate').note") == ""
    page.locator("#outliers").check()
    page.evaluate(ALL_DRAWN)
    assert page.evaluate("charts[0].bounds(charts[0].range)[1] > 1e6")
    assert page.locator("#chart-loss output").inner_text() == ""


def test_a_warm_up_and_a_burst_on_the_network_are_no_outliers(opened: Open) -> None:
    """Low values stay on an axis from zero; charts of hosts, which are mostly idle, show all values."""
    directory = make()
    rows = steps(1, 100, 0, hosts=1)
    for row in rows:
        row["learning_rate"] = 1e-3 * (1 - row["step"] / 1e5) if row["step"] > 1 else 1e-4
    usage = {"cpu": 0.5, "memory": 10**9, "memory_total": 4 * 10**9, "sent": 0.0, "devices": []}
    events = [
        event("usage", host="host-0", time=BEGIN + at, received=1e6 if at == 50 else 0.0, **usage) for at in range(99)
    ]
    record(directory, start(0, 0, hosts=1), *phase("train", 0, 1), *rows, *events)
    page = opened(directory)
    for key, index, within in (("learning_rate", 0, 1e-4), ("network", 1, 1)):
        chart = f"charts.find((chart) => chart.spec.key === '{key}')"
        bounds = page.evaluate(f"{chart}.bounds({chart}.range)")
        assert bounds[0] <= within <= bounds[1] and bounds[index] == pytest.approx(within, abs=0.1), key
        assert page.evaluate(f"{chart}.note") == ""


def test_the_verdict_leads_to_the_log(opened: Open) -> None:
    """It is opened, and on the screen."""
    directory = make()
    record(directory, start(0, 0), *phase("train", 1), *steps(1, 40, 1))
    for host in ("host-0", "host-1"):
        (directory.logs / f"{host}.log").write_text(f"last words of {host}\n")
    record(directory, event("error", 1, time=BEGIN + 8, kind="exception", message="boom", traceback="Traceback: boom"))
    record(directory, event("end", time=BEGIN + 9, code=1, host="host-1", process=1, message="failed: boom"))
    page = opened(directory)
    log = page.locator("pre", has_text="last words of host-1")
    assert not log.is_visible()
    page.locator("#verdict a").click()
    log.wait_for()
    box = log.bounding_box()
    assert box["y"] >= 0 and box["y"] + box["height"] <= 800
    assert not page.locator("pre", has_text="last words of host-0").is_visible()


def test_a_long_count_of_steps_is_broken_at_its_slash(opened: Open) -> None:
    directory = make()
    rows = steps(1_400_000, 1_400_002, 0, hosts=1)
    for row in rows:
        row |= {"steps": 2_000_000, "tokens_seen": 9e9}
    record(directory, start(0, 0, hosts=1), *phase("train", 0, 1), *rows, event("eval", 0, step=1_400_002, loss=1.5))
    value = opened(directory).locator(".tiles dd", has_text="2000000")
    lines = """(value) => [...value.childNodes].filter((node) => node.data).map((node) => {
      const range = document.createRange();
      range.selectNode(node);
      return range.getClientRects().length;
    })"""
    assert value.evaluate(lines) == [1, 1] and value.bounding_box()["height"] > 40


def test_a_time_axis_says_its_unit(opened: Open) -> None:
    page = opened(run_with_restart())
    assert page.evaluate("[59, 3600].map(timeTitle)") == [
        f"time since the start, {unit}" for unit in ("m:ss", "h:mm:ss")
    ]


def test_curves_over_time_and_tokens(opened: Open) -> None:
    """A step that a restart has repeated stands at the time of the repetition; evaluations and marks between steps."""
    directory = make()
    rows = [*steps(1, 4, 10, hosts=1), *steps(3, 6, 30, hosts=1)]
    for row in rows:
        row["tokens_seen"] = 100 * row["step"]
    record(directory, start(0, 0, hosts=1), *rows, event("eval", 0, time=BEGIN + 33, step=4, loss=1.5))
    page = opened(directory)
    loss, ranges = "charts.find((chart) => chart.spec.key === 'loss')", "charts.map((chart) => chart.range)"
    assert page.evaluate(f"[...{loss}.series[0].x]") == [1, 2, 3, 4, 3, 4, 5, 6]
    page.locator("#over").select_option("seconds")
    page.evaluate(ALL_DRAWN)
    assert page.evaluate(f"[...{loss}.series[0].x]") == [11, 12, 31, 32, 31, 32, 33, 34]
    assert page.evaluate(f"[...{loss}.series[1].x]") == [32]
    assert page.evaluate(ranges) == [[0, 34]] * len(page.evaluate(ranges))
    page.locator("#over").select_option("tokens")
    page.evaluate(ALL_DRAWN)
    assert page.evaluate(ranges)[0] == [100, 600]
    box = page.locator("#chart-loss canvas").bounding_box()
    page.mouse.move(box["x"] + box["width"] - 13, box["y"] + 50)
    assert shown(page).startswith("600 tokens: training ")


def test_a_hostile_run_is_only_text(opened: Open) -> None:
    """The fixture sees scripts that run, and what the policy of the page had to stop."""
    page = opened(hostile_run())
    assert page.locator("#verdict .cause").inner_text().startswith("</script><script>alert(1)</script><b>&red")
    assert page.evaluate("document.querySelectorAll('script').length") == 2


def test_samples_and_metrics_of_a_program(opened: Open) -> None:
    """Images are drawn, also under the content policy; on a narrow screen all fits."""
    for width in (1280, 390):
        page = opened(run_with_samples(), "dark", width)
        sizes = page.evaluate("[...document.querySelectorAll('.samples img')].map((image) => image.naturalWidth)")
        assert sizes == [8, 8, 8]
        for name in ("f1", "val/auc"):
            assert page.evaluate(WHITE_OR_NOT, f"#chart-{key_of(name)}") > 0.005
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_phone_shows_the_step_times_of_a_process_at_once(opened: Open) -> None:
    """Its few columns need no scrolling to the side."""
    directory = make()
    record(directory, start(0, 0, hosts=1), *phase("train", 1, 1), *steps(1, 3, 1, hosts=1))
    page = opened(directory, width=390)
    table, card = (page.locator(f"[data-part=steps] {one}").bounding_box() for one in ("table", "section"))
    assert table["x"] + table["width"] <= card["x"] + card["width"]

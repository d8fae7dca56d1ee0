"""The live page in a real browser: it goes on by itself, and talks to nobody but its server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from ..browsers import WAIT, chromium
from ..report.made import BEGIN, start
from ..rundir.made import ID, event, make, record
from .conftest import LIMIT, Client, LiveRun, live_run

pytestmark = pytest.mark.long


FITS = "document.querySelector('.wide').scrollWidth <= document.querySelector('.wide').clientWidth"
"""Return whether a table needs no scrolling to the side."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser: Any, client: Client) -> Iterator[Any]:
    """Return an empty page. A request to another server, or an error in a script, fails the test."""
    trouble: list[str] = []
    page = browser.new_page()
    page.set_default_timeout(WAIT)
    page.on("console", lambda message: trouble.append(message.text))
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: trouble.extend([request.url] * (not request.url.startswith(client.server.url))))
    yield page
    page.close()
    assert trouble == []


def wait_for(page: Any, condition: str) -> None:
    """Wait until a condition holds. (Playwright's own way compiles it in the page, which its policy does not allow.)"""
    deadline = time.monotonic() + LIMIT
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(50)


def test_new_steps_appear_without_a_reload(client: Client, run: LiveRun, page: Any) -> None:
    """From before the first step to the end of the run; what a reader has opened and chosen stays as it is."""
    (run.directory.logs / "host-0.log").write_text("a line\n")
    page.goto(f"{client.server.url}run/{ID}")
    assert page.locator("#verdict h2").inner_text() == "Running"
    page.evaluate("window.mine = true")
    page.locator("summary").first.click()
    for step in (1, 2, 3):
        run.step(step, 8.0 / step)
        wait_for(page, f"charts.some((c) => c.spec.key === 'loss' && c.series[0].x.at(-1) === {step})")
        assert page.locator(".tiles").inner_text().splitlines().index(f"{step}/9") > 0
    assert page.evaluate("[...charts[0].series[0].y]") == [8, 4, pytest.approx(8 / 3)]
    page.locator("#log").check()
    page.locator("#over").select_option("seconds")
    run.step(4, 2.0)
    wait_for(page, "charts[0].series[0].x.at(-1) === 5")  # the run began a second before its first step
    # A mark that comes later has its colour at once.
    swatches = (
        "(mark([[4, 'save']]), [...document.querySelectorAll('#chart-loss .legend i')].map((i) => i.style.background))"
    )
    colours = page.evaluate(swatches)
    assert len(colours) == 2 and all(colours)
    run.end()
    wait_for(page, "document.querySelector('#verdict h2').innerText === 'Done'")
    assert page.evaluate("window.mine && charts[0].log && document.querySelector('details').open")
    assert page.evaluate("charts[0].axis") == page.locator("#over").input_value() == "seconds"
    assert page.locator("#live").inner_text().startswith("The run does not go on")
    assert page.locator("#stop").is_hidden()


def test_the_button_stops_the_run(client: Client, run: LiveRun, page: Any) -> None:
    """After a question, which may be answered with no."""
    page.goto(f"{client.server.url}run/{ID}")
    answers = iter(("dismiss", "accept"))
    page.on("dialog", lambda dialog: getattr(dialog, next(answers))())
    page.locator("#stop").click()
    assert client.stopped == []
    page.locator("#stop").click()
    wait_for(page, "document.getElementById('live').innerText.startsWith('Stopping')")
    assert client.stopped == [ID]


def test_the_list_leads_to_runs_over_each_other(client: Client, run: LiveRun, page: Any) -> None:
    """A run that begins meanwhile comes on top; what was chosen stays chosen."""
    run.step(1, 3.0)
    page.goto(client.server.url)
    page.locator(f"#run-{ID} input").check()
    with live_run("20260102-000000-beef") as other:
        other.step(1, 2.0)
        wait_for(page, "document.querySelectorAll('tbody tr').length === 2")
        assert page.evaluate("[...document.querySelectorAll('tbody input')].map((box) => box.checked)") == [False, True]
        button = page.locator("button[type=submit]")
        assert button.inner_text() == "Compare 1 run"
        page.locator("tbody input").first.check()
        assert button.inner_text() == "Compare 2 runs"
        button.click()
        page.locator("h1", has_text="Runs over each other").wait_for()
        page.wait_for_load_state()
        assert page.evaluate("charts[0].series.map((s) => s.name)") == ["abcd", "beef"]
        other.step(2, 1.0)
        wait_for(page, "charts[0].series[1].x.length === 2")


def test_the_list_is_searched_and_sorted(client: Client, run: LiveRun, page: Any) -> None:
    """Also after an update; a failure is red; a phone shows all of it without scrolling to the side."""
    shown = "[...document.querySelectorAll('tbody tr')].filter((r) => !r.hidden).map((r) => r.id.slice(-4))"
    run.step(1, 3.0)
    with live_run("20260102-000000-beef") as other:
        other.step(2, 1.0)
        other.record(event("end", time=BEGIN + 9, code=3, host="host-0", message="failed: boom"))
        page.goto(client.server.url)
        assert page.evaluate(shown) == ["beef", "abcd"]
        page.locator("th button", has_text="Step").click()
        assert page.evaluate(shown) == ["abcd", "beef"]
        page.locator("th button", has_text="Step").click()
        assert page.evaluate(shown) == ["beef", "abcd"]
        run.step(5, 0.5)
        wait_for(page, f"({shown}).join() === 'abcd,beef'")
        page.locator("#search").fill("Failed 0102-000000-beef")
        assert page.evaluate(shown) == ["beef"] and page.locator("#count").inner_text() == "1 of 2 runs"
        colours = "['.state.failed', 'th'].map((one) => getComputedStyle(document.querySelector(one)).color)"
        red, quiet = page.evaluate(colours)
        assert red == "rgb(179, 38, 30)" and red != quiet
        page.set_viewport_size({"width": 390, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.evaluate(FITS)
        assert page.locator("tbody tr:not([hidden])").inner_text().count("failed") == 1


def test_the_list_fits_a_screen(client: Client, page: Any) -> None:
    """1280 pixels with a scroll bar: a failure with a long cause, a path as the name, many steps and a long time."""
    directory = make("20260102-000000-abcdef")
    began = start(0, 0, workdir=f"/data/{'experiments_' * 9}", slice="v5litepod-256")
    step = {**event("step", 0, time=BEGIN + 1, step=101_000, loss=0.09301), "steps": 200_000}
    end = event("end", time=BEGIN + 9e6, code=1, host="host-0", message=f"failed: boom {'long ' * 20}")
    record(directory, began, step, end)
    page.set_viewport_size({"width": 1265, "height": 800})
    page.goto(client.server.url)
    assert "104d 04h" in page.locator("tbody").inner_text()
    assert page.evaluate(FITS)


def test_a_run_is_hidden_by_its_name(client: Client, run: LiveRun, page: Any) -> None:
    """In all charts, by a click or a key; the log axis is that of all charts with values above zero."""
    for step in (1, 2):
        run.step(step, 100.0, f1=-1.0)
    with live_run("20260102-000000-beef") as other:
        for step in (1, 2):
            other.step(step, 1.0, f1=0.5, bleu=10.0**step)
        page.goto(f"{client.server.url}overlay?run={ID}&run=20260102-000000-beef")
        page.locator("#chart-loss .legend span", has_text="abcd").click()
        assert page.evaluate("charts.map((c) => c.shown.map((s) => s.name))") == [["beef"]] * 3
        assert page.evaluate("charts[0].bounds([1, 2])[1]") < 2
        pressed = page.locator(".legend [aria-pressed='false']")
        assert pressed.all_inner_texts() == ["abcd"]  # only the first chart names the runs
        pressed.first.press("Enter")
        assert page.evaluate("charts[0].shown.length") == 2
        page.locator("#log").check()
        assert page.evaluate("charts.map((c) => c.log)") == [True] * 3


def test_the_values_of_many_runs_are_listed(client: Client, page: Any) -> None:
    """Beside the pointer, the highest first, in the chart under it alone; a button compares no run and not too many."""
    names = [f"20260102-000000-000{n}" for n in range(1, 7)]
    with ExitStack() as runs:
        for number, name in enumerate(names, 1):
            run = runs.enter_context(live_run(name))
            for step in (1, 2):
                run.step(step, float(number), f1=1.0 / number)
        page.goto(client.server.url)
        assert page.locator("button[type=submit]").is_disabled()
        page.goto(f"{client.server.url}overlay?{'&'.join(f'run={name}' for name in names)}")
        canvas = page.locator("#chart-loss canvas")
        canvas.hover(position={"x": canvas.bounding_box()["width"] - 13, "y": 50})
        wait_for(page, "document.querySelectorAll('.tip').length === 1")
        lines = page.locator("#chart-loss .tip div").all_inner_texts()
        assert [line.split() for line in lines] == [[f"000{n}", str(n)] for n in range(6, 0, -1)]
        assert page.locator("#chart-loss output").inner_text() == "step 2"
        box, chart = page.locator(".tip").bounding_box(), canvas.bounding_box()
        assert chart["x"] <= box["x"] and box["x"] + box["width"] <= chart["x"] + chart["width"]
        page.mouse.move(0, 0)
        wait_for(page, "document.querySelector('.tip').hidden")


def test_a_phone_shows_the_rows_of_runs_as_lines(client: Client, page: Any) -> None:
    """Over each other: a long command does not make them high, and does not push their losses away."""
    program = "python own.py " + "--learning-rate 0.001 " * 6
    names = ["20260102-000000-0001", "20260102-000000-0002"]
    for name in names:
        evaluated = {**event("eval", 0, step=1), "val/f1": 0.5, "val/accuracy": 0.5, "val/loss": 1.0}
        record(make(name), start(0, 0, program=program), event("step", 0, step=1, loss=1.0), evaluated)
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"{client.server.url}overlay?run={names[0]}&run={names[1]}")
    table = page.locator("[data-part=runs] tbody")
    assert table.bounding_box()["height"] < 100 and program.strip() in table.inner_text()
    loss = table.locator("td:nth-child(4)").first
    assert loss.inner_text() == "1.000" and loss.bounding_box()["x"] + loss.bounding_box()["width"] <= 390

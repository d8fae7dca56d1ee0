"""The live page in a real browser: it goes on by itself, and talks to nobody but its server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from ..browsers import WAIT, chromium
from ..rundir.made import ID
from .conftest import LIMIT, Client, LiveRun, live_run

pytestmark = pytest.mark.long


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
    run.end()
    wait_for(page, "document.querySelector('#verdict h2').innerText === 'Done'")
    assert page.evaluate("window.mine && charts[0].log && document.querySelector('details').open")
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
        assert page.evaluate("[...document.querySelectorAll('input')].map((box) => box.checked)") == [False, True]
        page.locator("tbody input").first.check()
        page.locator("button[type=submit]").click()
        page.locator("h1", has_text="Runs over each other").wait_for()
        page.wait_for_load_state()
        assert page.evaluate("charts[0].series.map((s) => s.name)") == ["abcd training", "beef training"]
        other.step(2, 1.0)
        wait_for(page, "charts[0].series[1].x.length === 2")

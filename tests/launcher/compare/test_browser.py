"""The page of a comparison in a real browser, opened from disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.compare.page import page_of

from ..browsers import WAIT, chromium
from .made import ABOUT, rows, variant

pytestmark = pytest.mark.long


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_draws_all_variants_and_loads_nothing(tmp_path: Path, width: int) -> None:
    names = ["pmap", "single", "jit", "a variant whose name is" + " long" * 20]
    measured = [variant(name, 0.01 * (n + 1), loss=1.0 + n) for n, name in enumerate(names)]
    file = tmp_path / "compare.html"
    file.write_text(page_of(rows(*(replace(one, compile_seconds=1.0) for one in measured)), ABOUT), encoding="utf-8")
    requests: list[str] = []
    trouble: list[str] = []
    with chromium() as browser:
        page = browser.new_page(viewport={"width": width, "height": 800})
        page.set_default_timeout(WAIT)
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.goto(file.as_uri())
        assert page.locator("#chart-loss .legend span").all_inner_texts() == names
        boxes = page.locator("svg.box rect").all()
        assert len(boxes) == 4 and all(box.bounding_box()["height"] > 5 for box in boxes)
        canvas = page.locator("#chart-loss canvas")
        canvas.hover(position={"x": canvas.bounding_box()["width"] - 13, "y": 50})
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        assert page.locator("#chart-loss output").inner_text() == "step 40"
        lines = page.locator("#chart-loss .tip div").all_inner_texts()
        assert {line.split("\n")[0] for line in lines} == {
            one for name in names for one in (name, f"{name}, validation")
        }
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        # The losses of all variants are seen without scrolling to the side.
        losses = page.locator("[data-part=results] th", has_text="loss").all()
        assert [head.inner_text() for head in losses] == ["Training loss", "Validation loss"]
        assert all(head.bounding_box()["x"] + head.bounding_box()["width"] <= width for head in losses)
    assert requests == [file.as_uri()] and trouble == []

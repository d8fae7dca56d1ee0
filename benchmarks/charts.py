"""Compare the charts of a run's page with bokeh's, in headless Chromium: bytes, opening, hovering, zooming.

    pip install bokeh playwright; apt install chromium
    python benchmarks/charts.py [--rounds 3] [--points 12000 1000000]

Both draw the same numbers, one after the other in the same browser: seven charts, of more than 100,000 points one. Times are
medians over the rounds, with ratios to podrun's. Without bokeh podrun's page is measured alone.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setting import print_setting

from podrun.launcher.report.model import Chart, Page, Series, Verdict
from podrun.launcher.report.write_html import html_of

WAIT = 300_000  # milliseconds
KEYS = ("loss", "accuracy", "learning_rate", "grad_norm", "throughput", "step_time", "mfu")
TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
WATCH = """() => { window.gaps = []; let last = performance.now();
  const frame = () => { const now = performance.now(); gaps.push(now - last); last = now; requestAnimationFrame(frame); };
  requestAnimationFrame(frame); }"""


def podruns_page(points: int, charts: int) -> str:
    x, y = numbers(points)
    made = [Chart(key, key, "", [Series("training", x, y)]) for key in KEYS[:charts]]
    return html_of(Page("t", "", Verdict("done", "Done", "", [], []), [], made, [], [], [], "", [], [], "", [], ""))


def bokehs_page(points: int, charts: int) -> str:
    import numpy as np
    from bokeh.embed import file_html
    from bokeh.layouts import column
    from bokeh.models import ColumnDataSource, HoverTool
    from bokeh.plotting import figure
    from bokeh.resources import INLINE

    x, y = numbers(points)
    source = ColumnDataSource({"x": np.array(x), "y": np.array(y, np.float32)})
    figures: list[Any] = []
    for _ in range(charts):
        shared = {"x_range": figures[0].x_range} if figures else {}
        one = figure(width=1200, height=220, tools="xbox_zoom,reset", **shared)
        one.line("x", "y", source=source)
        one.add_tools(HoverTool(tooltips=[("step", "@x"), ("loss", "@y")], mode="vline"))
        figures.append(one)
    return str(file_html(column(figures), INLINE, "t"))


def numbers(points: int) -> tuple[list[float], list[float]]:
    rng = random.Random(1)
    x = [float(step) for step in range(1, points + 1)]
    return x, [4 * step**-0.15 + rng.gauss(0, 0.05) for step in x]


def measure(browser: Any, file: Path) -> tuple[float, float, float]:
    """Return seconds to open the file, and of the longest frame while the pointer moves, and while it zooms."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(WAIT)
    page = context.new_page()
    began = time.perf_counter()
    page.goto(file.as_uri())
    if "bokeh" in file.name:
        page.wait_for_function("window.Bokeh && Bokeh.documents.length && Bokeh.documents[0].is_idle")
    page.evaluate(TWO_FRAMES)
    opened = time.perf_counter() - began
    page.evaluate(WATCH)
    box = page.locator("canvas").first.bounding_box()

    def at(share: float) -> tuple[float, float]:
        return box["x"] + share * box["width"], box["y"] + 60

    for number in range(50):
        page.mouse.move(*at(0.2 + 0.01 * number))
    hover = longest(page)
    page.mouse.move(*at(0.4))
    page.mouse.down()
    page.mouse.move(*at(0.6), steps=5)
    page.mouse.up()
    zoom = longest(page)
    context.close()
    return opened, hover, zoom


def longest(page: Any) -> float:
    page.evaluate(TWO_FRAMES)
    return float(page.evaluate("() => { const most = Math.max(...gaps); gaps.length = 0; return most; }")) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--points", type=int, nargs="+", default=[12_000, 1_000_000])
    arguments = parser.parse_args()
    print_setting()
    from playwright.sync_api import sync_playwright

    makers = {"podrun": podruns_page, "bokeh": bokehs_page}
    if find_spec("bokeh") is None:
        del makers["bokeh"]
        print("not installed: bokeh")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None:
        sys.exit("needs chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"], timeout=WAIT)
        for points in arguments.points:
            charts = len(KEYS) if points <= 100_000 else 1
            files = {}
            for name, make in makers.items():
                files[name] = Path(folder, f"{name}.html")
                files[name].write_text(make(points, charts), encoding="utf-8")
            rounds: dict[str, list[tuple[float, float, float]]] = {name: [] for name in files}
            for _ in range(arguments.rounds):
                for name, file in files.items():
                    rounds[name].append(measure(browser, file))
            medians = {
                name: [statistics.median(column) for column in zip(*rows, strict=True)] for name, rows in rounds.items()
            }
            for name, row in medians.items():
                size = files[name].stat().st_size / 1e6
                ratios = [value / base for value, base in zip(row, medians["podrun"], strict=True)]
                texts = [f"{value:.2f} s ({ratio:.1f})" for value, ratio in zip(row, ratios, strict=True)]
                print(f"{points:>9} points, {charts} charts, {name:<6} {size:6.2f} MB  ", *texts, sep="  ", flush=True)
        browser.close()


if __name__ == "__main__":
    main()

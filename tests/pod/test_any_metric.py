"""A program reports thirty metrics of any names, evaluations of two sets, and samples: all are seen wherever one looks."""

from __future__ import annotations

import csv
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from podrun.launcher.rundir.runs import all_runs
from podrun.launcher.watch.server import WatchServer

from ..conftest import Sandbox, make_sandbox
from ..launcher.browsers import WAIT, chromium
from ..runtime.measure.event_files import tensorboard_events

NAMES = [
    *(
        "loss",
        "train/loss/total",
        "train/loss/kl divergence",
        "grad norm",
        "lr",
        "Größe",
        "損失",
        "精度 (top-5)",
        "🚀 speed",
    ),
    *("<b>bold</b>", "<script>alert(1)</script>", "&amp;", "a & b", 'say "hi"', "it's", "100%", "a=b", "a,b", "a:b"),
    *(
        "{curly}",
        "[0]",
        "back\\slash",
        "#hash",
        "$dollar",
        "constructor",
        "__proto__",
        "val/f1",
        "val/auc",
        "x_seconds",
    ),
    "layer/encoder.blocks.11.attention.output.dense.kernel/gradient_norm_after_clipping_but_before_scaling",
]
SHOWN = [NAMES[6], NAMES[9], "val/f1", NAMES[-1]]
EVALUATED = {"eval": {"loss": 0.5, "精度": 0.75}, "held out <set>": {"auc": 0.875, "損失": 3.0}}
OF_SETS = ["精度", "held out <set>/auc", "held out <set>/損失"]
"""Names of the metrics that only evaluations have."""
LEFT_OUT = ("__proto__", "a:b", "#hash")
"""A few names whose values are 0 or below, which a log axis cannot show."""
PROGRAM = f"""
import sys
import numpy as np
import podrun

podrun.init(show={SHOWN!r})
rate = float(sys.argv[1])
for step in range(1, 5):
    values = {{name: rate * number / step for number, name in enumerate({NAMES!r}, 1)}}
    values |= dict.fromkeys({LEFT_OUT!r}, -rate)
    podrun.report(step, values)
for kind, values in {EVALUATED!r}.items():
    podrun.report(4, values, kind=kind)
podrun.report(4, sample={{
    "rows <of> 損失": [{{"name": "a <b>cell</b>", "損失": 0.5}}],
    "picture/🚀": np.zeros((4, 6, 3)),
    "text & more": "a <i>text</i>",
    "weights": np.arange(9.0),
}})
"""


def console(value: float) -> str:
    return f"{value:.4f}"


class Compared(NamedTuple):
    """Two runs of the program, as one comparison."""

    sandbox: Sandbox
    text: str
    """The printed text of the comparison."""

    @property
    def folder(self) -> Path:
        return self.sandbox.path / "runs/own-compare"


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    assert len(set(NAMES)) == 30
    sandbox = make_sandbox(tmp_path_factory.mktemp("metrics"))
    (sandbox.path / "own.py").write_text(PROGRAM)
    pod = ("--slice", "cpu-1x1", "--simulate")
    done = sandbox.podrun("compare", *pod, "--over", "rate=1,2", "--", "python", "own.py", "{rate}")
    assert done.returncode == 0, done.stdout + done.stderr
    return Compared(sandbox, done.stdout + done.stderr)


def test_the_console_and_the_status_have_them(compared: Compared) -> None:
    """The console those that are chosen, and those of evaluations; the status all of them."""
    numbers = {name: (NAMES.index(name) + 1) / 4 for name in NAMES}
    assert f"step 4  {'  '.join(f'{name} {console(numbers[name])}' for name in SHOWN)}  elapsed" in compared.text
    assert "validation at step 4: loss 0.5000  精度 0.7500\n" in compared.text
    assert "validation at step 4: held out <set>/auc 0.8750  held out <set>/損失 3.0000\n" in compared.text
    status = " ".join(compared.sandbox.podrun("status").stdout.split())
    expected = numbers | dict.fromkeys(LEFT_OUT, -1.0)
    for name, value in expected.items():
        assert f"{name} {console(2 * value)}" in status
    assert all(name in status for name in OF_SETS)
    last, _ = json.loads(compared.sandbox.podrun("ps", "--json").stdout)
    assert (last["metric"], last["value"]) == (SHOWN[0], 2 * numbers[SHOWN[0]])


def test_tensorboard_has_them(compared: Compared) -> None:
    folder = compared.folder / "rate=1/tensorboard"
    tags = {value.tag for event in tensorboard_events(folder) for value in event.summary.value}
    trained = {name if name.startswith("train/") else f"train/{name}" for name in NAMES}
    assert trained | {"eval/loss", *(f"eval/{name}" for name in OF_SETS)} <= tags
    assert {"rows <of> 損失/text_summary", "picture/🚀", "text & more/text_summary", "weights"} <= tags


def test_the_table_of_the_comparison_has_a_line_for_each(compared: Compared) -> None:
    """The loss of the validation set is in its column, although another set was evaluated after it at the same step."""
    table = compared.text[compared.text.index("METRIC ") :].splitlines()
    lines = {line.rsplit(maxsplit=2)[0]: line.split()[-2:] for line in table if len(line.split()) > 2}
    for name in (*NAMES[1:], "validation 精度", *OF_SETS[1:]):
        assert len(lines[name]) == 2
    assert [float(value) for value in lines["val/f1"]] == [27 / 4, 27 / 2]
    rows = list(csv.DictReader((compared.folder / "compare.csv").open(newline="", encoding="utf-8")))
    assert [row["validation_loss"] for row in rows] == ["0.5", "0.5"]


@contextmanager
def served() -> Iterator[str]:
    """Serve the pages of the runs; the value is the address."""
    server = WatchServer(0, lambda run: None)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server.url
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def drawn_titles(page: Any) -> list[str]:
    """Return the names over the charts of metrics, all of which must be drawn."""
    page.evaluate(
        "new Promise((done) => { const look = () => waiting.length ? requestAnimationFrame(look) : done(); look(); })"
    )
    assert page.evaluate("charts.every((chart) => chart.still && chart.canvas.getAttribute('aria-label'))")
    titles: list[str] = page.evaluate(
        "charts.filter((chart) => chart.spec.axis === 'step')"
        ".map((chart) => chart.figure.querySelector('figcaption').firstChild.nodeValue.trim())"
    )
    return titles


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_have_a_chart_of_each(compared: Compared, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report, the live page, runs over each other and the comparison; the search finds one; samples are seen."""
    monkeypatch.setenv("PODRUN_HOME", compared.sandbox.env["PODRUN_HOME"])
    report = compared.sandbox.path / f"report-{width}.html"
    assert compared.sandbox.podrun("report", "-o", str(report)).returncode == 0
    runs = [run.run_id for run in all_runs()]
    trouble: list[str] = []
    with chromium() as browser, served() as url:
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.set_default_timeout(WAIT)
        page.on("console", lambda message: trouble.append(message.text))
        page.on("pageerror", lambda error: trouble.append(str(error)))
        page.on("dialog", lambda dialog: trouble.append(dialog.message))
        places = {
            "report": report.as_uri(),
            "live": f"{url}run/{runs[0]}",
            "overlay": f"{url}overlay?run={runs[0]}&run={runs[1]}",
            "compare": (compared.folder / "compare.html").as_uri(),
        }
        for place, address in places.items():
            page.goto(address)
            titles = drawn_titles(page)
            compared_name = {"loss": "Loss: lines in training, dots in validation"} if place == "compare" else {}
            of_sets = ["validation 精度", *OF_SETS[1:]] if place == "compare" else OF_SETS
            assert sorted(titles) == sorted(compared_name.get(name, name) for name in (*NAMES, *of_sets)), place
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), place
            page.locator("#find").fill("損失 held")
            visible = page.locator("figure[id^='chart-']:visible")
            assert visible.count() == 1 and visible.inner_text().startswith("held out <set>/損失"), place
            page.locator("#find").fill("")
            assert visible.count() >= len(titles)
        for place in ("report", "live"):
            page.goto(places[place])
            samples = page.locator("[data-part='samples']")
            texts = [
                "rows <of> 損失",
                "a <b>cell</b>",
                "picture/🚀",
                "text & more",
                "a <i>text</i>",
                "weights",
                "0 to 8, 9 numbers",
            ]
            assert all(text in samples.inner_text() for text in texts), place
            assert page.evaluate("document.querySelector('.samples img').naturalWidth") == 6
    assert trouble == []

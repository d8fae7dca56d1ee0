"""Write a page as one HTML file that loads nothing. All texts of the run are escaped. PURE, but for the files beside it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files

from ..view.printable import without_colours
from .encode import data_of
from .model import Chart, Log, Page, Share, Strips, Table, Tempo, Verdict

_SCRIPTS = ("charts.js", "strips.js", "page.js")
_STRIPS = {
    "time": ("Time of each process", "Where the time went, from the start of the run to its end."),
    "late": (
        "Who the others wait for",
        "How much of a step the others waited for a process, because it came to the step last.",
    ),
}


def html_of(page: Page) -> str:
    """Return the file's text."""
    style = _file("page.css")
    script = "".join(_file(name) for name in _SCRIPTS)
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}"
    return "".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            # Even if a text were not escaped, a browser would load nothing and run no script but podrun's.
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{_text(page.title)} - podrun</title><style>{style}</style></head><body>",
            _header(page),
            "<main>",
            *_sections(page),
            f"</main><footer>Made by podrun at {_text(page.made)}.</footer>",
            f'<script type="application/json" id="data">{data_of(page)}</script>',
            f"<script>{script}</script></body></html>\n",
        ]
    )


def _sections(page: Page) -> Iterable[str]:
    yield _verdict(page.verdict)
    yield _tiles(page.tiles)
    yield _charts("Metrics", [chart for chart in page.charts if chart.axis == "step"], controls=True)
    yield _time(page)
    if page.tempos:
        late = [one for one in page.strips if one.key == "late"]
        yield _section("Steps", _tempos(page.tempos), *map(_strip, late))
    yield _charts("Hosts", [chart for chart in page.charts if chart.axis == "time"], controls=False)
    for table in page.tables:
        yield _section(table.title, _table(table))
    if page.logs:
        yield _section("Last lines of the logs", *map(_log, page.logs))


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _text(text: str) -> str:
    """Return text that may stand in an element or in quotes: control characters are shown, not obeyed."""
    return escape(without_colours(text))


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{''.join(parts)}</section>"


def _header(page: Page) -> str:
    return (
        f'<header><div><h1>{_text(page.title)}</h1><p class="quiet">{_text(page.subtitle)}</p></div>'
        '<button id="theme" type="button">Dark or light</button></header>'
    )


def _verdict(verdict: Verdict) -> str:
    parts = [f"<h2>{_text(verdict.title)}</h2>"]
    if verdict.text:
        parts.append(f'<p class="cause">{_lines(verdict.text)}</p>')
    if verdict.evidence:
        parts.append(f"<pre>{_lines(chr(10).join(verdict.evidence))}</pre>")
    if verdict.history:
        rows = "".join(f"<li><time>{_text(when)}</time> {_lines(why)}</li>" for when, why in verdict.history)
        parts.append(f"<p>Restarts, by the time since the start:</p><ol>{rows}</ol>")
    return f'<section id="verdict" class="verdict {_text(verdict.state)}">{"".join(parts)}</section>'


def _lines(text: str) -> str:
    return "\n".join(map(_text, text.split("\n")))


def _tiles(tiles: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in tiles)
    return f'<dl class="tiles">{rows}</dl>'


def _charts(title: str, charts: Sequence[Chart], *, controls: bool) -> str:
    if not charts:
        return ""
    bar = (
        '<div class="controls"><label>Smoothing <input id="smooth" type="range" min="0" max="0.99" step="0.01" value="0.6">'
        '</label><label><input id="log" type="checkbox"> Log axis</label>'
        '<button id="reset" type="button">Whole run</button>'
        '<span class="quiet">Drag over a chart to zoom.</span></div>'
    )
    return _section(title, bar if controls else "", '<div class="charts">', *map(_chart, charts), "</div>")


def _chart(chart: Chart) -> str:
    unit = f' <span class="quiet">[{_text(chart.unit)}]</span>' if chart.unit else ""
    label = f"{chart.title}, {chart.unit}" if chart.unit else chart.title
    return (
        f'<figure id="chart-{_text(chart.key)}"><figcaption>{_text(chart.title)}{unit}<output></output></figcaption>'
        f'<canvas role="img" aria-label="{_text(label)}"></canvas><div class="legend"></div></figure>'
    )


def _time(page: Page) -> str:
    strips = [one for one in page.strips if one.key == "time"]
    if not strips or not page.shares:
        return ""
    return _section("Time", _shares(page.shares), *map(_strip, strips))


def _shares(shares: Sequence[Share]) -> str:
    rows = "".join(
        f'<tr><td><i class="swatch {_text(share.kind)}"></i>{_text(share.label)}</td>'
        f'<td class="number">{share.seconds:,.1f} s</td><td class="number">{100 * share.share:.1f} %</td></tr>'
        for share in shares
    )
    return (
        "<table><thead><tr><th>Mean over the processes</th><th>Time</th><th>Share</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def _strip(strips: Strips) -> str:
    title, note = _STRIPS[strips.key]
    return (
        f'<figure id="strip-{strips.key}"><figcaption>{title}<output></output></figcaption>'
        f'<p class="quiet">{note}</p><canvas role="img" aria-label="{title}"></canvas><div class="legend"></div></figure>'
    )


def _tempos(tempos: Sequence[Tempo]) -> str:
    head = "".join(
        f"<th>{name}</th>"
        for name in (
            "Process",
            "Last step",
            "Median, ms",
            "95 %, ms",
            "Waits, ms a step",
            "Others wait for it, ms a step",
            "Share of a step",
        )
    )
    rows = "".join(
        f'<tr class="{"late" if tempo.late else ""}"><td>{_text(tempo.name)}</td><td class="number">{tempo.steps}</td>'
        + "".join(
            f'<td class="number">{_milliseconds(seconds)}</td>'
            for seconds in (tempo.p50, tempo.p95, tempo.waits, tempo.behind)
        )
        + f'<td class="number">{"-" if tempo.share is None else f"{100 * tempo.share:.1f} %"}</td></tr>'
        for tempo in tempos
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f}"


def _table(table: Table) -> str:
    rows = "".join(f"<tr><th>{_text(name)}</th><td>{_lines(text)}</td></tr>" for name, text in table.rows)
    return f'<table class="facts"><tbody>{rows}</tbody></table>'


def _log(log: Log) -> str:
    return f"<details><summary>{_text(log.name)}</summary><pre>{_lines(chr(10).join(log.lines))}</pre></details>"

"""Render a page as one self-contained HTML file, and write it; all texts of the run are escaped."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from podrun.runtime.contract import UserError

from ..view.printable import without_colours
from ..view.times import size
from .encode import PageData, drawn_charts, drawn_data, in_element
from .model import Chart, Log, Page, Seen, Share, StepTimes, Strips, Table, Verdict

_SCRIPTS = ("charts.js", "strips.js", "page.js")
_STRIPS = {
    "time": ("Time of each process", "Where the time went, from the start of the run to its end."),
    "late": (
        "Who the others wait for",
        "How much of a step the others waited for a process, because it came to the step later than they did.",
    ),
}


@dataclass(frozen=True)
class Live:
    """Additions to a served page, which updates itself from its server."""

    header: str
    """HTML below the title."""
    style: str
    script: str
    data: dict[str, str | int]
    """Data for the script, besides the data of the charts."""


def check_writable(file: Path) -> None:
    """Raise UserError if no page can be written to the file."""
    if file.is_dir():
        raise _not_writable(file, os.strerror(errno.EISDIR))
    part = _part_of(file)
    try:
        part.touch()
        part.unlink()
    except OSError as error:
        raise _not_writable(file, error.strerror or str(error)) from None


def write_page(file: Path, html: str) -> None:
    """Write a page, and print its path. The write is atomic, because a browser may have the file open. Raises UserError."""
    part = _part_of(file)
    try:
        try:
            part.write_text(html, encoding="utf-8")
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise _not_writable(file, error.strerror or str(error)) from None
    print(f"{file}: {size(len(html.encode()))}; open it in a browser, it loads nothing from elsewhere")


def _part_of(file: Path) -> Path:
    return file.with_name(f".{file.name}.{os.getpid()}")


def _not_writable(file: Path, why: str) -> UserError:
    return UserError(f"cannot write {file}: {why}; give another file with -o FILE")


def html_of(page: Page, live: Live | None = None) -> str:
    """Return the HTML of a page."""
    data = drawn_data(page.charts, page.strips)
    return document(page.title, page.subtitle, parts_of(page), data, page.made, live)


def document(
    title: str, subtitle: str, parts: dict[str, str], data: PageData, made: str, live: Live | None = None
) -> str:
    """Return an HTML document.

    Args:
        title: its title.
        subtitle: the line below the title.
        parts: HTML by the key of each part.
        data: data of the charts, for the scripts.
        made: time at which it was made, as text.
        live: additions if a server updates it.
    """
    style = _file("page.css") + (live.style if live else "")
    script = "".join(map(_file, _SCRIPTS)) + (live.script if live else "")
    policy = f"default-src 'none'; img-src data:; style-src {_digest(style)}; script-src {_digest(script)}"
    return "".join(
        [
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
            # a second defence: even if a text is not escaped, the browser loads nothing and runs only podrun's script
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy + _ONLY_HERE if live else policy)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{text_of(title)} - podrun</title><style>{style}</style></head><body>",
            _header(title, subtitle),
            live.header if live else "",
            "<main>",
            *(f'<div data-part="{key}">{html}</div>' for key, html in parts.items()),
            f"</main><footer>Made by podrun at {text_of(made)}.</footer>",
            f'<script type="application/json" id="data">{in_element({**data, "live": live.data} if live else data)}</script>',
            f"<script>{script}</script></body></html>\n",
        ]
    )


_MANY = 8
"""Number of charts beyond which a page has a field to search them."""
_FEW_COLUMNS = 3
"""Number of columns of numbers that fit a phone."""
_GOODPUT = "Goodput is the share of the time in training whose steps were kept."
_SEARCH = '<label>Search <input id="find" type="search" placeholder="metric"></label>'
_ONLY_HERE = "; connect-src 'self'"
"""Addition to the content policy of a page that polls its server."""


def parts_of(page: Page) -> dict[str, str]:
    """Return the HTML of all parts that have content, by key, in page order. The server can update each part alone."""
    late = [one for one in page.strips if one.key == "late"]
    parts = {
        "verdict": _verdict(page.verdict, next((log for log in page.logs if log.has_failed), None)),
        "tiles": tiles_of(page.tiles),
        "metrics": figures("Metrics", [chart for chart in page.charts if chart.axis == "step"], controls=True),
        "samples": _samples(page.samples),
        "time": _time(page),
        "steps": section("Steps", _step_times_table(page.step_times), _quiet(page.step_times_note), *map(_strip, late))
        if page.step_times
        else "",
        "hosts": figures("Hosts", [chart for chart in page.charts if chart.axis == "time"], controls=False),
        "tables": "".join(section(table.title, _table(table)) for table in page.tables),
        "logs": section("Last lines of the logs", *_logs(page), _quiet(page.logs_note)) if page.logs else "",
    }
    return {key: html for key, html in parts.items() if html}


def _file(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def text_of(text: str) -> str:
    """Escape text for an element or a quoted attribute, and make control characters visible."""
    return escape(without_colours(text))


def section(title: str, *parts: str) -> str:
    """Return a section that contains `parts`, which are HTML."""
    return f"<section><h2>{text_of(title)}</h2>{''.join(parts)}</section>"


def _header(title: str, subtitle: str) -> str:
    return (
        f'<header><div><h1>{text_of(title)}</h1><p class="quiet">{text_of(subtitle)}</p></div>'
        '<button id="theme" type="button">Dark or light</button></header>'
    )


def _verdict(verdict: Verdict, log: Log | None) -> str:
    """Return the verdict. `log`: that of the process that has failed."""
    parts = [f"<h2>{text_of(verdict.title)}</h2>"]
    if verdict.text:
        parts.append(f'<p class="cause">{_lines(verdict.text)}</p>')
    if verdict.evidence:
        parts.append(f"<pre>{_lines(chr(10).join(verdict.evidence))}</pre>")
    if log:
        parts.append(f'<p><a href="#failed">Last lines of the log of {text_of(log.name)}</a></p>')
    if verdict.history:
        rows = "".join(f"<li><time>{text_of(when)}</time> {_lines(why)}</li>" for when, why in verdict.history)
        parts.append(f"<p>Restarts, by the time since the start:</p><ol>{rows}</ol>")
    return f'<section id="verdict" class="verdict {text_of(verdict.state)}">{"".join(parts)}</section>'


def _lines(text: str) -> str:
    return "\n".join(map(text_of, text.split("\n")))


def tiles_of(tiles: Sequence[tuple[str, str]]) -> str:
    rows = "".join(
        # a number that is too long is broken at its slash, not within its digits
        f"<div><dt{_explained(name)}>{text_of(name)}</dt><dd>{text_of(value).replace('/', '/<wbr>')}</dd></div>"
        for name, value in tiles
    )
    return f'<dl class="tiles">{rows}</dl>'


def _explained(name: str) -> str:
    return f' title="{_GOODPUT}"' if name == "goodput" else ""


def figures(title: str, charts: Sequence[Chart], *, controls: bool) -> str:
    """Return a section of empty charts, which the scripts draw. `controls`: add those for smoothing and a log axis."""
    if not charts:
        return ""
    bar = (
        '<div class="controls"><label>Smoothing <input id="smooth" type="range" min="0" max="0.99" step="0.01" value="0.6">'
        '</label><label><input id="log" type="checkbox"> Log axis</label>'
        '<label><input id="outliers" type="checkbox"> Outliers</label>'
        f"{_axes(charts)}"
        '<button id="reset" type="button">Whole run</button>'
        f"{_SEARCH if len(charts) > _MANY else ''}"
        '<span class="quiet drag">Drag over a chart to zoom.</span></div>'
    )
    shown = drawn_charts(charts)
    sizes = Counter(chart.group for chart in shown)
    groups: dict[str, list[Chart]] = {"": []}
    for chart in shown:  # a group of one needs no title: its chart has the whole name
        groups.setdefault(chart.group if sizes[chart.group] > 1 else "", []).append(chart)
    drawn = [
        f'<div class="group">{f"<h3>{text_of(group)}</h3>" if group else ""}'
        f'<div class="charts">{"".join(map(_chart, members))}</div></div>'
        for group, members in groups.items()
        if members
    ]
    more = len(charts) - len(shown)
    left_out = f"{more} further metrics have no chart here; metrics.jsonl in the workdir has all." if more else ""
    return section(title, bar if controls else "", *drawn, _quiet(left_out))


def _axes(charts: Sequence[Chart]) -> str:
    """Return the choice of what the charts are drawn over; nothing if there is only one."""
    runs = [one.progress for chart in charts for one in chart.series if one.progress is not None]
    if not runs:
        return ""
    tokens = '<option value="tokens">tokens</option>' if any(run.tokens for run in runs) else ""
    return (
        '<label>Over <select id="over"><option value="steps">steps</option><option value="seconds">time</option>'
        f"{tokens}</select></label>"
    )


def _chart(chart: Chart) -> str:
    unit = f' <span class="quiet">[{text_of(chart.unit)}]</span>' if chart.unit else ""
    label = f"{chart.title}, {chart.unit}" if chart.unit else chart.title
    return (
        f'<figure id="chart-{text_of(chart.key)}"><figcaption>{text_of(chart.title)}{unit}<output></output></figcaption>'
        f'<canvas role="img" aria-label="{text_of(label)}"></canvas><div class="legend"></div></figure>'
    )


def _samples(samples: Sequence[Seen]) -> str:
    """Return a section of the samples. Samples of the same name stand side by side."""
    by_name: dict[str, list[Seen]] = {}
    for seen in samples:
        by_name.setdefault(seen.name, []).append(seen)
    rows = [
        f'<h3>{text_of(name)}</h3><div class="samples">{"".join(map(_sample, those))}</div>'
        for name, those in by_name.items()
    ]
    return section("Samples", *rows) if rows else ""


def _sample(seen: Seen) -> str:
    try:
        shown = {"image": _image, "table": _rows, "histogram": _histogram}.get(seen.form, _words)(seen)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):  # a program can write events itself
        shown = '<p class="quiet">it cannot be shown</p>'
    return f"<figure><figcaption>step {seen.step}</figcaption>{shown}</figure>"


def _words(seen: Seen) -> str:
    return f"<pre>{_lines(seen.content)}</pre>"


def _image(seen: Seen) -> str:
    """Return the sample as an image. Raises ValueError unless it is base64 of a PNG."""
    data = base64.b64decode(seen.content, validate=True)
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        raise ValueError("not a PNG")
    name = text_of(f"{seen.name} of step {seen.step}")
    return f'<img alt="{name}" src="data:image/png;base64,{base64.b64encode(data).decode()}">'


def _rows(seen: Seen) -> str:
    head, *rows = json.loads(seen.content)
    cells = "".join(f"<th>{text_of(str(cell))}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(f'<td>{_lines(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table></div>'


def _histogram(seen: Seen) -> str:
    content = json.loads(seen.content)
    counts, edges = [float(count) for count in content["counts"]], [float(edge) for edge in content["edges"]]
    if not counts:
        return '<p class="quiet">no finite numbers</p>'
    most = max(counts) or 1.0
    bars = "".join(
        f'<rect x="{n * 300 / len(counts):.2f}" y="{80 - 80 * count / most:.2f}" width="{300 / len(counts) - 0.5:.2f}" '
        f'height="{80 * count / most:.2f}"/>'
        for n, count in enumerate(counts)
    )
    label = f"{edges[0]:.4g} to {edges[-1]:.4g}, {sum(counts):,.0f} numbers"
    return (
        f'<svg class="histogram" viewBox="0 0 300 80" role="img" aria-label="{text_of(label)}">{bars}</svg>'
        f'<p class="quiet">{text_of(label)}</p>'
    )


def _time(page: Page) -> str:
    strips = [one for one in page.strips if one.key == "time"]
    if not strips or not page.shares:
        return ""
    has_goodput = any(name == "goodput" for name, _ in page.tiles)
    return section(
        "Time",
        _shares(page.shares),
        _quiet(_GOODPUT if has_goodput else ""),
        _quiet(page.expected),
        *map(_strip, strips),
    )


def _shares(shares: Sequence[Share]) -> str:
    rows = "".join(
        f'<tr><td><i class="swatch {text_of(share.kind)}"></i>{text_of(share.label)}</td>'
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


def _step_times_table(step_times: Sequence[StepTimes]) -> str:
    columns = {
        "Last step": [str(row.steps) for row in step_times],
        "Median, ms": [_milliseconds(row.p50) for row in step_times],
        "95th percentile, ms": [_milliseconds(row.p95) for row in step_times],
        "Waits, ms a step": [_milliseconds(row.waits) for row in step_times],
        "Others wait for it, ms a step": [_milliseconds(row.behind) for row in step_times],
        "Share of a step": ["-" if row.share is None else f"{100 * row.share:.1f} %" for row in step_times],
    }
    known = {name: texts for name, texts in columns.items() if set(texts) != {"-"}}
    head = "<th>Process</th>" + "".join(f'<th class="number">{name}</th>' for name in known)
    rows = "".join(
        f'<tr class="{"late" if row.late else ""}"><td>{text_of(row.name)}</td>'
        + "".join(f'<td class="number">{texts[number]}</td>' for texts in known.values())
        + "</tr>"
        for number, row in enumerate(step_times)
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="wide">{table}</div>' if len(known) > _FEW_COLUMNS else table


def _quiet(note: str) -> str:
    return f'<p class="quiet">{text_of(note)}</p>' if note else ""


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.1f}"


def _table(table: Table) -> str:
    rows = "".join(f"<tr><th>{text_of(name)}</th><td>{_lines(text)}</td></tr>" for name, text in table.rows)
    return f'<table class="facts"><tbody>{rows}</tbody></table>'


def _logs(page: Page) -> list[str]:
    """Return the logs. The first one is open if it is all that there is to say why the run has failed."""
    is_evidence = page.verdict.state == "failed" and not page.verdict.evidence
    return [_log(log, is_open=is_evidence and number == 0) for number, log in enumerate(page.logs)]


def _log(log: Log, is_open: bool) -> str:
    place = ' id="failed"' if log.has_failed else ""
    text = f"<summary>{text_of(log.name)}</summary><pre{place}>{_lines(chr(10).join(log.lines))}</pre>"
    return f"<details{' open' if is_open else ''}>{text}</details>"

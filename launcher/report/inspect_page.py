"""Build the page of an inspected job: memory against the device's, bounds of a step's time, collectives, layout. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from podrun.runtime.job_report import Buffer, Excess, Limit, Report
from podrun.runtime.wording import in_bytes, in_seconds

from .encode import drawn_data
from .write_html import document, section, text_of, tiles_of

_WIDTH = 1000
"""Width of a bar in its own units."""
_STATE = {"params": "parameters", "opt_state": "optimizer state", "ema": "moving average", "model_state": "model state"}
_SPARE = "spare"


def page_of(report: Report, name: str, made: str) -> str:
    """Return the page of a job: one self-contained HTML file.

    Args:
        report: the report on the job.
        name: name of the job.
        made: time at which the page was made, as text.
    """
    parts = {
        "verdict": _verdict(report),
        "tiles": tiles_of(_tiles(report)),
        "memory": _memory(report),
        "roofline": _roofline(report),
        "traffic": _traffic(report),
        "layout": _layout(report),
    }
    return _document(report, parts, name, made)


def page_of_excess(excess: Excess, problem: str, name: str, made: str) -> str:
    """Return the page of a job that does not fit: one self-contained HTML file.

    Args:
        excess: by how much the job does not fit.
        problem: the message, whose last line says what to do.
        name: name of the job.
        made: time at which the page was made, as text.
    """
    needed, usable, least = excess.needed, excess.usable, "at least " * excess.is_least
    title = "It does not fit"
    attention = _attention(excess)
    memory = ""
    if needed and usable:
        over = needed - usable
        title = f"It does not fit: {least}{in_bytes(over)} too much"
        state = min(excess.state, usable)
        drawn = [("state", state, "fill0"), ("everything else", usable - state, "fill1"), ("too much", over, "beyond")]
        rows = [
            ('<i class="swatch fill0"></i>state', in_bytes(excess.state)),
            ('<i class="swatch fill1"></i>everything else', least + in_bytes(needed - excess.state)),
            ("a device has", in_bytes(usable)),
            ('<i class="swatch beyond"></i>too much', least + in_bytes(over)),
        ]
        memory = _bar([(size, kind, f"{label}: {in_bytes(size)}") for label, size, kind in drawn if size]) + _table(
            ("Part", "Size"), rows
        )
    buffers = _buffers(excess.buffers, f"The largest temporaries with batch_size={excess.buffers_batch}")
    advice = f'<p class="cause">{text_of(problem.splitlines()[-1])}</p>'
    parts = {
        "verdict": f'<section id="verdict" class="verdict failed"><h2>{text_of(title)}</h2>{advice}{attention}</section>',
        "memory": section("Memory of each device", memory, buffers) if memory or buffers else "",
    }
    return _document(excess, parts, name, made)


def _document(report: Report | Excess, parts: dict[str, str], name: str, made: str) -> str:
    return document(
        f"{name} on {report.slice}",
        f"podrun inspect: {report.devices} devices, {report.parallel}, {report.precision}, compiled for "
        f"{'CPU' if report.compiled_for == 'cpu' else report.compiled_for} in {report.compile_seconds:.3g} s",
        {key: html for key, html in parts.items() if html},
        drawn_data([], []),
        made,
    )


def _verdict(report: Report) -> str:
    memory, usable, bounds = report.memory, report.usable, report.roofline
    if not memory:
        title = "The compiler does not say how much memory the step needs"
    elif not usable:
        title = f"A device needs {in_bytes(memory.total)}, as compiled for CPU"
    else:
        title = f"It fits, with {in_bytes(usable - memory.total)} of {in_bytes(usable)} to spare"
    text = ""
    if bounds and bounds.bound:
        least = f"A step takes at least {in_seconds(bounds.bound)}, limited by {bounds.limited_by}."
        text = f'<p class="cause">{text_of(least)}</p>'
    text += _attention(report)
    return f'<section id="verdict" class="verdict done"><h2>{text_of(title)}</h2>{text}</section>'


def _attention(report: Report | Excess) -> str:
    """Return a sentence on which attention kernel was compiled, and why; empty if the model has no choice."""
    choice = report.attention
    if not choice:
        return ""
    return f'<p class="quiet">Attention: {text_of(choice.kernel)}, {text_of(choice.reason)}.</p>'


def _tiles(report: Report) -> list[tuple[str, str]]:
    computed = report.computed
    total = computed.flops + computed.repeated
    tiles = [
        ("parameters", f"{sum(row.count for row in report.parameters):,}"),
        ("examples in a step", f"{computed.examples:,}"),
        ("TFLOP in a step", f"{computed.flops / 1e12:,.4g}"),
    ]
    return [*tiles, ("repeated by remat", f"{computed.repeated / total:.0%}")] if computed.repeated else tiles


def _memory(report: Report) -> str:
    memory, usable = report.memory, report.usable
    if not memory:
        return ""
    state = [(_STATE.get(name, name), size.per_device) for name, size in report.state.items()]
    rest = memory.arguments - sum(size for _, size in state)
    parts = [
        *state,
        ("batch and padding", rest),
        ("outputs in memory of their own", memory.outputs - memory.reused),
        ("temporaries", memory.temporaries),
    ]
    parts = [(name, size) for name, size in parts if size > 0]
    coloured = [(name, size, f"fill{number}") for number, (name, size) in enumerate(parts)]
    if usable:
        coloured.append(("to spare", max(0, usable - memory.total), _SPARE))
    rows = [(f'<i class="swatch {kind}"></i>{name}', in_bytes(size)) for name, size, kind in coloured]
    return section(
        "Memory of each device",
        _bar([(size, kind, f"{name}: {in_bytes(size)}") for name, size, kind in coloured]),
        _table(("Part", "Size"), rows),
        _buffers(report.buffers, "The largest temporaries, when most memory is needed"),
    )


def _buffers(buffers: Sequence[Buffer], title: str) -> str:
    rows = [
        (
            text_of(one.name),
            (f"{one.count} x " if one.count > 1 else "") + text_of(one.array),
            in_bytes(one.bytes * one.count),
        )
        for one in buffers
    ]
    return _table((title, "", "Size"), rows) if rows else ""


def _roofline(report: Report) -> str:
    bounds = report.roofline
    if not bounds:
        return ""
    longest = bounds.bound or 1.0
    rows = [
        (
            text_of(one.name),
            _bar_of(one, longest),
            "unknown" if one.seconds is None else in_seconds(one.seconds),
            text_of(one.assumption),
        )
        for one in bounds.limits
    ]
    table = _table(("Limit", "", "Time", "Assumption"), rows, numbers=(2,))
    return section(
        "A step takes at least",
        '<p class="quiet">Bounds, not promises: everything at its full published speed and at the same time.</p>',
        f'<div class="wide">{table}</div>',
        _uncounted(report),
    )


def _bar_of(limit: Limit, longest: float) -> str:
    if limit.seconds is None:
        return ""
    kind = "fill1" if limit.seconds == longest else "fill0"
    return _bar([(limit.seconds, kind, limit.name), (longest - limit.seconds, "", "")])


def _traffic(report: Report) -> str:
    rows = [
        (
            text_of(one.kind),
            str(one.count),
            in_bytes(one.bytes),
            text_of(one.axes or "between slices"),
            str(one.devices),
            text_of(one.link),
        )
        for one in report.traffic
    ]
    if not rows:
        return ""
    head = ("Collective", "Number", "Bytes of a device", "Over", "Devices or slices", "Slowest link")
    table = _table(head, rows, numbers=(1, 2, 4))
    return section("Communication in a step", f'<div class="wide">{table}</div>', _uncounted(report))


def _uncounted(report: Report) -> str:
    """Return a sentence about loops with an unknown number of iterations; empty if there are none."""
    loops = report.unknown_loops
    if not loops:
        return ""
    which, are = ("1 loop", "is") if loops == 1 else (f"{loops} loops", "are")
    return f'<p class="quiet">{which} with an unknown number of iterations {are} counted once.</p>'


def _layout(report: Report) -> str:
    rows = [
        (text_of(one.name), text_of(one.array), text_of(one.where))
        for one in (*report.batch, *report.samples, *report.outputs)
    ]
    pictures = "".join(
        f"<p>{text_of(name)}</p><pre>{chr(10).join(map(text_of, picture.splitlines()))}</pre>"
        for name, picture in report.pictures.items()
    )
    table = _table(("Array", "Type", "Where"), rows, numbers=())
    return section(f"Layout over {report.devices} devices", f'<div class="wide">{table}</div>', pictures)


def _bar(parts: Sequence[tuple[float, str, str]]) -> str:
    """Return a bar of parts: (size, class of its colour, label). A part without a class is empty."""
    total = sum(size for size, _, _ in parts) or 1.0
    at, drawn = 0.0, []
    for size, kind, label in parts:
        width = _WIDTH * size / total
        if kind:
            place = f'x="{at:.1f}" y="2" width="{width:.1f}" height="16"'
            drawn.append(f'<rect class="{kind}" {place}><title>{text_of(label)}</title></rect>')
        at += width
    label = text_of("; ".join(label for _, _, label in parts if label))
    return (
        f'<svg class="bar" viewBox="0 0 {_WIDTH} 20" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f"{''.join(drawn)}</svg>"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = (-1,)) -> str:
    """Return a table. `rows`: cells as HTML; `numbers`: indexes of the columns of numbers, by default the last."""
    columns = {number % len(head) for number in numbers}
    top = "".join(f"<th>{text_of(name)}</th>" for name in head)
    body = "".join(
        "<tr>"
        + "".join(f"<td{' class=number' if n in columns else ''}>{cell}</td>" for n, cell in enumerate(row))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"

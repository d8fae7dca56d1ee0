"""Render the report about a job as text for a terminal, and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ..job_report import Choice, Computed, Layout, Report, Roofline, Row
from ..wording import counted, in_bytes, in_flops, in_seconds
from .arrays import fold
from .divided import lines as divided_lines
from .look import buffer_lines

_CPU = "cpu"
_BUFFERS = 5
"""Number of buffers in the text; the JSON has ten."""
_LARGE = 0.01
"""Buffers below this share of the memory are not listed."""
_SHOWN = 40
"""Maximum number of rows of parameters in the text; the JSON has all."""
_NAMES = {"params": "parameters", "opt_state": "optimizer state", "ema": "moving average", "model_state": "model state"}


def text(report: Report, title: str, width: int) -> str:
    """Return the report as text."""
    sections = [
        _head(report, title),
        _parameters(report, width),
        _layout(report, width),
        *([_pictures(report)] if report.pictures else []),
        _step(report.computed, report),
        *(["\n".join(_wrap(_sentence(report.attention), width))] if report.attention else []),
        *([_roofline(report.roofline, report.unknown_loops, width)] if report.roofline else []),
        _memory(report),
        *([_traffic(report)] if report.compiled_for != _CPU and report.devices > 1 else []),
    ]
    return "\n\n".join(sections)


def _head(report: Report, title: str) -> str:
    return f"{title} on {report.slice}: {counted(report.devices, 'device')}, {report.parallel}, {report.precision}"


# --- parameters -----------------------------------------------------------------------------------------------------


def _parameters(report: Report, width: int) -> str:
    folded = fold(list(report.parameters))
    shown = folded[:_SHOWN]
    body = [_cells(row) for row in shown]
    if hidden := folded[_SHOWN:]:
        body.append((f"... and {len(hidden)} more", "", "", *_amount(hidden), ""))
    total = ("together", counted(len(report.parameters), "array"), "", *_amount(report.parameters), "")
    update = "update" if any(row.update for row in report.parameters) else ""
    lines = table([("", "shape", "type", "count", "size", update), *body, total], width, right=(3, 4))
    lines[0] = "Parameters".ljust(len(lines[0]) - len(lines[0].lstrip())) + lines[0].lstrip()
    if update:
        lines += _wrap(f"  {_updates(report.parameters)}", width)
    if report.models > 1:
        lines.append(f"  x {report.models} models")
    for name, size in report.state.items():
        if name != "params":
            numbers = f"{counted(size.arrays, 'array')}, {size.count:,} numbers, {in_bytes(size.bytes)}"
            lines.append(f"  {_NAMES.get(name, name)}: {numbers}")
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    repeat = f"{row.repeat} x " if row.repeat > 1 else ""
    return row.name, f"{repeat}{list(row.shape)}", row.dtype, *_amount([row]), row.update


def _amount(rows: Sequence[Row]) -> tuple[str, str]:
    return f"{sum(row.count for row in rows):,}", in_bytes(sum(row.bytes for row in rows))


def _updates(parameters: Sequence[Row]) -> str:
    """Return the number of arrays and of elements for each treatment by the optimizer."""
    kinds = {row.update for row in parameters}
    parts = []
    for kind in sorted(kinds, key=lambda kind: (not kind, kind)):
        rows = [row for row in parameters if row.update == kind]
        parts.append(f"{kind or 'not decayed'}: {counted(len(rows), 'array')}, {_amount(rows)[0]} numbers")
    if "frozen" in kinds:
        trained, all_of_them = (sum(row.count for row in rows) for rows in (_trained(parameters), parameters))
        parts.insert(0, f"{trained:,} of {all_of_them:,} parameters are trained ({trained / all_of_them:.2%})")
    return "; ".join(parts)


def _trained(parameters: Sequence[Row]) -> list[Row]:
    return [row for row in parameters if row.update != "frozen"]


# --- layout ---------------------------------------------------------------------------------------------------------


def _layout(report: Report, width: int) -> str:
    state = [one for one in report.outputs if not one.name.startswith("metrics ")]
    lines = [f"Layout over {counted(report.devices, 'device')}", *_lines([*report.batch, *report.samples], width)]
    lines += [line for long in divided_lines(report.divided, report.divided_by_model) for line in _wrap(long, width)]
    lines.append("  after the step" + (":" if state else ", the state is where it was:"))
    lines += _lines(report.outputs, width)
    sizes = [f"{_NAMES.get(name, name)} {in_bytes(size.per_device)}" for name, size in report.state.items()]
    each = "each device" if report.computing == report.devices else counted(report.computing, "device")
    return "\n".join([*lines, f"  on {each}: {', '.join(sizes)}"])


def _wrap(line: str, width: int) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(
        line.strip(), width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_long_words=False
    )


def _lines(layouts: Sequence[Layout], width: int) -> list[str]:
    """Return a line for each layout, or two lines if one would be too long."""
    lines = table([(one.name, one.array, one.where) for one in layouts])
    if max(map(len, lines)) <= width:
        return lines
    return [line for one in layouts for line in (f"  {one.name}  {one.array}", f"    {one.where}")]


def _pictures(report: Report) -> str:
    parts = []
    for name, picture in report.pictures.items():
        parts += [f"  {name}", *(f"  {line}" for line in picture.splitlines())]
    return "\n".join(parts)


# --- the step -------------------------------------------------------------------------------------------------------


def _step(computed: Computed, report: Report) -> str:
    each = in_flops(computed.flops / computed.examples)
    examples = counted(computed.examples, "example")
    lines = ["A step", f"  {in_flops(computed.flops)} for loss and gradients: {each} for each of {examples}"]
    if computed.repeated:
        share = computed.repeated / (computed.flops + computed.repeated)
        lines.append(f"  and {in_flops(computed.repeated)} repeated by remat, {share:.0%} of all that is computed")
    if computed.seconds_at_peak is not None:
        who = f"{report.computing} x {computed.device_kind}"
        lines.append(f"  {in_seconds(computed.seconds_at_peak)} at 100 % of the peak of {who} in {report.precision}")
    return "\n".join(lines)


def _sentence(choice: Choice) -> str:
    text = str(choice)
    return f"{text[0].upper()}{text[1:]}"


def _roofline(roofline: Roofline, unknown_loops: int, width: int) -> str:
    """Return the text about the lower bound of a step's time, with the reason."""
    if roofline.bound is None:
        head = "The time of a step has no known bound"
    else:
        times = [f"{one.name} {in_seconds(one.seconds)}" for one in roofline.limits if one.seconds is not None]
        head = (
            f"A step takes at least {in_seconds(roofline.bound)}, limited by {roofline.limited_by}: {', '.join(times)}"
        )
    why = ["Bounds, not promises: everything at its full published speed and at the same time."]
    why += [f"{one.name}: {one.assumption}" for one in roofline.limits]
    why += _uncounted(unknown_loops)
    return "\n".join([*_wrap(head, width), *(line for one in why for line in _wrap(f"  {one}", width))])


def _memory(report: Report) -> str:
    memory, is_cpu = report.memory, report.compiled_for == _CPU
    kind = "CPU" if is_cpu else report.compiled_for
    head = f"Memory of each device, as compiled for {kind} in {in_seconds(report.compile_seconds)}"
    if memory is None:
        return f"{head}\n  the compiler does not report it"
    rows = [
        ("arguments", memory.arguments, "the state and a batch"),
        ("outputs", memory.outputs, f"{in_bytes(memory.reused)} of them in the place of arguments"),
        ("temporaries", memory.temporaries, "they differ on TPU and GPU" if is_cpu else ""),
        ("together", memory.total, ""),
    ]
    lines = table([(name, in_bytes(size), why) for name, size, why in rows], right=(1,))
    if report.usable:
        lines.append(f"  fits, with {in_bytes(report.usable - memory.total)} of {in_bytes(report.usable)} to spare")
    large = [b for b in report.buffers if b.bytes * b.count > memory.total * _LARGE]
    if large:
        lines += ["  the largest temporaries:", *(f"    {line}" for line in buffer_lines(large[:_BUFFERS]))]
    return "\n".join([head, *lines])


def _traffic(report: Report) -> str:
    """Return the text about the data that devices send each other in a step."""
    rows = [
        (
            f"{one.count} {one.kind}",
            in_bytes(one.bytes),
            f"over {one.axes}" if one.axes else "between slices",
            f"{one.devices} devices" if one.axes else counted(one.devices, "slice"),
            one.link,
        )
        for one in report.traffic
    ]
    lines = table(rows, right=(1,)) if rows else ["  none"]
    lines += [f"  {line}" for line in _uncounted(report.unknown_loops)]
    return "\n".join(["Communication in a step, bytes of each device", *lines])


def _uncounted(loops: int) -> list[str]:
    """Return a sentence about the loops with an unknown number of iterations, if there are any."""
    if not loops:
        return []
    return [
        f"{counted(loops, 'loop')} with an unknown number of iterations {'is' if loops == 1 else 'are'} counted once"
    ]


def table(rows: Sequence[Sequence[str]], width: int = 0, right: Sequence[int] = ()) -> list[str]:
    """Align the rows in columns. If a line would be wider than `width`, the first column is truncated."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    if width and (excess := 2 + sum(widths) + 2 * (len(widths) - 1) - width) > 0:
        widths[0] = max(12, widths[0] - excess)
    lines = []
    for row in rows:
        cells = [_fit(row[0], widths[0]), *row[1:]]
        padded = [c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
        lines.append(f"  {'  '.join(padded)}".rstrip())
    return lines


def _fit(name: str, width: int) -> str:
    return name if len(name) <= width else f"...{name[3 - width :]}"

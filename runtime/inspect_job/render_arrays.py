"""Render the report about arrays on a mesh as text for a terminal."""

from __future__ import annotations

import math

from ..wording import counted
from .collectives import Collective
from .on_mesh import Drawn, MeshReport, Result


def text(report: MeshReport) -> str:
    """Return the report as text: the arrays, then the value of the expression."""
    axes = " x ".join(f"{name} {size}" for name, size in report.mesh.items())
    sections = [f"Mesh {axes}: {counted(math.prod(report.mesh.values()), 'device')}"]
    sections += [_section(drawn) for drawn in report.arrays]
    if report.result:
        sections.append(_result(report.result))
    return "\n\n".join(sections)


def _section(drawn: Drawn, *notes: str) -> str:
    lines = [
        drawn.layout.name,
        f"  {drawn.layout.array}  {drawn.spec}",
        f"  {drawn.layout.where}",
        *(f"  {note}" for note in notes),
    ]
    return "\n".join([*lines, *(f"  {line}" for line in drawn.picture.splitlines())])


def _result(result: Result) -> str:
    rows = [f"  {_sent(collective)}" for collective in result.collectives] or ["  none"]
    notes = ["communication in the compiled program:", *rows]
    if result.explicit is not None:
        notes.append(f"with explicit axes: {result.explicit}")
    return _section(result.value, *notes)


def _sent(collective: Collective) -> str:
    return f"{collective.count} {collective.kind} to {collective.array}, {counted(collective.bytes, 'byte')} on each device"

"""Render arrays on a mesh as text for a terminal."""

from __future__ import annotations

import math

from .product import Drawn, MeshReport, Product
from .units import plural


def text(report: MeshReport) -> str:
    """Return the arrays one after another, then their product."""
    axes = " x ".join(f"{name} {size}" for name, size in report.mesh.items())
    sections = [f"Mesh {axes}: {plural(math.prod(report.mesh.values()), 'device')}"]
    sections += [_section(drawn.layout.name, drawn) for drawn in report.arrays]
    if report.product:
        sections.append(_product(report.product, [drawn.layout.name for drawn in report.arrays]))
    return "\n\n".join(sections)


def _section(title: str, drawn: Drawn, *notes: str) -> str:
    lines = [
        title,
        f"  {drawn.layout.array}  {drawn.spec}",
        f"  {drawn.layout.where}",
        *(f"  {note}" for note in notes),
    ]
    return "\n".join([*lines, *(f"  {line}" for line in drawn.picture.splitlines())])


def _product(product: Product, names: list[str]) -> str:
    counts = [f"{count} {kind}" for kind, count in product.collectives.items()]
    sent = f"communication in the compiled program: {', '.join(counts) or 'none'}"
    return _section(" times ".join(names), product.result, sent, f"with explicit axes: {product.explicit}")

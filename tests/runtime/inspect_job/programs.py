"""Programs in XLA's text form, from a few lines."""

from __future__ import annotations

from podrun.runtime.inspect_job import hlo


def program(*lines: str, others: str = "") -> hlo.Program:
    return hlo.read("\n".join(["HloModule x", others, "ENTRY %main (p: f32[]) -> f32[] {", *lines, "}"]))

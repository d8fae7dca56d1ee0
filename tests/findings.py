"""Findings about hosts as text."""

from __future__ import annotations

from collections.abc import Sequence

from podrun.launcher.preflight.base import Finding
from podrun.launcher.preflight.rules import fatal_findings


def explain(findings: Sequence[Finding]) -> str:
    """Return the fatal ones: for each what is wrong on which hosts, and below it what to do."""
    fatal = fatal_findings(findings)
    return "\n".join(line for f in fatal for line in (str(f), *([f"  {f.remedy}"] if f.remedy else [])))

"""PURE: what is wrong with a pod, by what its hosts said about themselves; how that is told to somebody who wants to run.

`agent.facts.gather` finds out what one host is like, `compare` judges all of them together.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..pod.pod import Pod
from .base import Facts, FactsByHost, Finding
from .devices import check_devices
from .machine import check_machine
from .versions import check_versions

__all__ = ["Facts", "FactsByHost", "Finding", "compare", "explain", "fatal_findings", "with_skew"]

_EXPLAINED = 8  # findings in an error before the rest is counted


def compare(pod: Pod, facts_by_host: FactsByHost, *, program: bool, before_setup: bool = False) -> list[Finding]:
    """Everything that is wrong, or may be. `program`: the user's own runs, which need not import what podrun's does.

    `before_setup`: commands that may mount the workdir are still to be run.
    """
    return [
        *check_versions(pod, facts_by_host, program=program),
        *check_devices(pod, facts_by_host),
        *check_machine(pod, facts_by_host, program=program, before_setup=before_setup),
    ]


def fatal_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Those with which a run must not start."""
    return [finding for finding in findings if finding.fatal]


def explain(findings: Sequence[Finding]) -> str:
    """The fatal ones as the text of an error: for each what is wrong on which hosts, and below it what to do."""
    fatal = fatal_findings(findings)
    lines = [line for f in fatal[:_EXPLAINED] for line in (str(f), *([f"  {f.remedy}"] if f.remedy else []))]
    if len(fatal) > _EXPLAINED:
        lines.append(f"and {len(fatal) - _EXPLAINED} more; `podrun check` shows all")
    return "\n".join(lines)


def with_skew(facts: Facts, sent: float, received: float) -> Facts:
    """The facts, with the host's clock set against ours: `sent` and `received` are our time.time() when the question left
    and when its answer came. `skew` is how far the host is ahead, give or take `uncertain`."""
    clock = facts["clock"]
    travel = (received - sent) - (clock["answered"] - clock["received"])
    skew = ((clock["received"] - sent) + (clock["answered"] - received)) / 2
    return {**facts, "clock": {**clock, "skew": skew, "uncertain": max(0.0, travel / 2)}}

"""Apply all rules to the facts of a pod's hosts. Returns findings with remedies. PURE.

`agent.facts.gather` collects the facts of one host; `apply_rules` checks all hosts together.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..pod.pod import Pod
from .base import FactsByHost, Finding
from .devices import check_devices
from .gpus import check_gpus
from .links import check_links
from .machine import check_machine
from .versions import check_versions


def apply_rules(pod: Pod, facts_by_host: FactsByHost, *, program: bool, before_setup: bool = False) -> list[Finding]:
    """Return all findings.

    Args:
        pod: the pod.
        facts_by_host: facts of the hosts that answered.
        program: a user program runs, which need not import podrun's requirements.
        before_setup: setup commands have not run yet, and may mount the workdir.
    """
    return [
        *check_versions(pod, facts_by_host, program=program),
        *check_devices(pod, facts_by_host),
        *check_gpus(pod, facts_by_host),
        *check_links(pod, facts_by_host),
        *check_machine(pod, facts_by_host, program=program, before_setup=before_setup),
    ]


def fatal_findings(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that prevent a run from starting."""
    return [finding for finding in findings if finding.fatal]

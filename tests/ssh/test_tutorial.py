"""docs/tutorial.md, its last part: on real hosts."""

from __future__ import annotations

import pytest

from ..tutorial import commands, run, sections, write_files
from .pod import PodSandbox


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_tutorial_on_real_hosts(pod: PodSandbox) -> None:
    """All is as it stands there but for pod.yaml, which then names hosts that exist, and their Python."""
    write_files(pod.path)
    init, *others = commands(sections()[1])
    run(pod, init)
    pod.write_pod(pod.hosts.names[:1], slice="cpu-1x2")
    outputs = {command.line: run(pod, command) for command in others}
    assert len(outputs) >= 5
    for line in ("podrun --pod pod.yaml digits.yaml", "podrun --pod pod.yaml -- python pod_loop.py"):
        assert outputs[line].splitlines()[-1] == "podrun: done"
    assert [*pod.path.glob("pulled/*/metrics.jsonl")]

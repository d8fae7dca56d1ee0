"""A whole pod is examined: its clocks, its workdir, and hosts of which one is down."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.preflight.rules import fatal_findings
from podrun.launcher.preflight.run_preflight import run_preflight
from podrun.launcher.preflight.table import render
from podrun.launcher.transport.local import LocalTransport


def silent(doing: str, done: int, total: int, waiting: list[str]) -> None:
    pass


def test_the_clock_of_this_machine_is_right(local: tuple[LocalTransport, Pod]) -> None:
    report = run_preflight(*local, None, silent)
    assert set(report.facts) == {"host-0", "host-1", "host-2"}
    for host_facts in report.facts.values():
        assert abs(host_facts["clock"]["skew"]) <= host_facts["clock"]["uncertain"] + 0.01


def test_a_shared_workdir_is_seen_and_left_as_it_was(local: tuple[LocalTransport, Pod], tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    report = run_preflight(*local, f"{folder}/runs/r1", silent)
    assert report.shared == f"{folder}/runs/r1"
    assert not fatal_findings(report.findings)
    assert list(folder.iterdir()) == []


class OneHostDown(LocalTransport):
    """host-1 cannot be reached."""

    def open(self, host: Host, argv: Any) -> Any:
        if host.name == "host-1":
            raise HostError(host.name, "no route to host; is it up?")
        return super().open(host, argv)


def test_a_host_that_is_down_is_named_and_the_others_are_checked(local: tuple[LocalTransport, Pod]) -> None:
    _, pod = local
    waited_for: set[str] = set()

    def say(doing: str, done: int, total: int, waiting: list[str]) -> None:
        waited_for.update(waiting)

    report = run_preflight(OneHostDown(pod), pod, None, say)
    assert report.unreached == {"host-1": "no route to host; is it up?"}
    assert (report.code, set(report.facts)) == (69, {"host-0", "host-2"})
    assert report.coordinator is not None
    assert waited_for == {"host-0", "host-1", "host-2"}
    text = render(report, 100, colour=False)
    assert "error: host-1: no route to host; is it up?" in text
    assert text.splitlines()[-1] == "not ready: 1 of 3 hosts cannot be used: host-1"

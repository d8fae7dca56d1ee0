"""Hosts on which checkpoints in memory may be left, because an agent was killed that would have removed them."""

from __future__ import annotations

from podrun.runtime.events import EventKind

from ..agent.base.places import MEMORY, MEMORY_PREFIX
from ..plan.plan import LaunchPlan
from ..preflight.base import name_hosts
from ..rundir.events import Event


class LeftMemory:
    """An observer that records which hosts of a run have lost their agent, and got no other one."""

    def __init__(self) -> None:
        self._hosts: set[str] = set()

    def event(self, event: Event) -> None:
        if event["event"] != EventKind.HOST:
            return
        if (
            event["phase"] == "lost" and event.get("left") is not None
        ):  # unknown: then the agent may live, and removes it
            self._hosts.add(event["host"])
        elif event["phase"] == "hello":
            self._hosts.discard(event["host"])

    def note(self, plan: LaunchPlan) -> str | None:
        """Return the sentence about what is left when a run ends; None if nothing is. `plan`: of the last attempt."""
        if not self._hosts or not any("memory" in host.spec for host in plan.hosts):
            return None
        folder = f"{MEMORY}/{MEMORY_PREFIX}{plan.run.run_id}"
        return (
            f"{name_hosts(sorted(self._hosts))}: checkpoints in memory may be left in {folder}, because the agent there was "
            "killed; the next run there removes them, or `podrun clean`"
        )

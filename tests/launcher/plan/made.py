"""Plans of runs that are never started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.plan import LaunchPlan, make_plan
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.pod import Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.runtime.config import Config


def pod_of(slice: str = "cpu-2x4", **changes: Any) -> Pod:
    """A simulated pod; with a `transport`, the same hosts elsewhere."""
    kind = parse_slice(slice).kind
    platform = {"gpu": "cuda"}.get(kind, kind) if "transport" in changes else "cpu"
    pod = replace(simulated_pod(parse_slice(slice)), home="~/.podrun", python=None)
    return replace(pod, **{"platform": platform, **changes})


def make(
    pod: Pod,
    job: Config | Program,
    attempt: int = 0,
    secrets: dict[str, str] | None = None,
    saved: str = "",
    **changes: Any,
) -> LaunchPlan:
    spec = RunSpec("20260101-000000-abcd", pod, job, Path("/work dir"), Path("/jobs/it's mine"), **changes)
    return make_plan(spec, attempt, secrets, saved=saved)


def plan_of(slice: str = "cpu-2x4", attempt: int = 0, **launch: Any) -> LaunchPlan:
    config = Config.model_validate({"steps": 3, "batch_size": 64, "launch": launch})
    return make(pod_of(slice), config, attempt)


def environments(plan: LaunchPlan) -> list[dict[str, str]]:
    return [worker["env"] for host in plan.hosts for worker in host.spec["processes"]]

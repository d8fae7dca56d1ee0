"""Run directories that a test makes and fills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.plan import make_plan
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.rundir.runs import RunDirectory, start_event
from podrun.runtime.config import Launch

ID = "20260101-000000-abcd"


def spec_of(run_id: str = ID, process_per: str = "host") -> RunSpec:
    launch = Launch(process_per=process_per)
    return RunSpec(run_id, simulated_pod(parse_slice("cpu-2x2")), Program(("a",), launch), Path("/w"), Path("/c"))


def make(run_id: str = ID, **arguments: Any) -> RunDirectory:
    return RunDirectory.create(spec_of(run_id, **arguments))


def record(directory: RunDirectory, *events: dict[str, Any]) -> None:
    with directory.events.open("a") as file:
        file.writelines(json.dumps({"time": 0.0, **event}) + "\n" for event in events)


OTHER_FIELDS: dict[str, dict[str, Any]] = {
    "start": {
        **dict.fromkeys(("run_id", "slice", "transport", "workdir", "logs"), "x"),
        "attempt": 0,
        "devices": 1,
        "hosts": {"host-0": [0]},
        "program": None,
    },
    "step": {"steps": 9},
    "note": {"message": "x"},
    "end": {"host": None, "message": "done"},
}


def event(name: str, process: int | None = None, **fields: Any) -> dict[str, Any]:
    place = {} if process is None else {"host": f"host-{process}", "process": process}
    return {"event": name, "time": 0.0, **place, **OTHER_FIELDS.get(name, {}), **fields}


def begin(directory: RunDirectory, attempt: int) -> None:
    plan = make_plan(directory.spec(), attempt)
    directory.begin(plan)
    record(directory, start_event(plan, directory.logs, 0.0))
    record(directory, *(event("host", host=f"host-{n}", phase="hello", pid=n) for n in range(2)))


def started(directory: RunDirectory) -> None:
    for n in range(2):
        record(directory, event("host", n, phase="started", pid=n))

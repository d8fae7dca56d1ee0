"""The newest checkpoint of a workdir is found in the records of the runs that had it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.plan.plan import make_plan
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.rundir.runs import RunDirectory, start_event
from podrun.launcher.rundir.saved import host_of_checkpoints, saved_on_record

from .made import event, record, spec_of


def spec(number: int, hosts: str = "abc", workdir: str = "/w") -> RunSpec:
    pod = Pod(parse_slice(f"cpu-{len(hosts)}x1"), tuple(Host(h, h) for h in hosts), transport="ssh", platform="cpu")
    return replace(spec_of(f"2026010{number}-000000-abcd"), pod=pod, workdir=Path(workdir))


def run(of: RunSpec, *events: dict[str, Any]) -> RunDirectory:
    """Make the run directory of a run that has started and had these events."""
    directory = RunDirectory.create(of)
    record(directory, start_event(make_plan(of, 0), directory.logs, 0.0), *events)
    return directory


def saved(step: int, host: str, kind: str = "checkpoint") -> dict[str, Any]:
    return event(kind, host=host, process=0, step=step)


def test_of_the_newest_run_that_has_saved() -> None:
    """Others have another workdir, or other hosts, or have saved nothing."""
    run(spec(1), saved(50, "a"))
    run(spec(2, "xaz"), saved(5, "x"), saved(10, "x"), event("note", host="a", process=1))
    run(spec(3, workdir="/other"), saved(99, "a"))
    run(spec(4, "xyz"), saved(98, "x"))
    RunDirectory.create(spec(5))
    run(spec(6))
    now = RunDirectory.create(spec(7))
    run(spec(8), saved(97, "a"))  # begun since
    assert saved_on_record(spec(7), now) == "10 x 20260102-000000-abcd"
    record(now, start_event(make_plan(spec(7), 0, {}), now.logs, 0.0), saved(3, "c", "resume"))
    assert saved_on_record(spec(7), now) == f"3 c {now.run_id}"
    record(now, saved(6, "c"))
    assert saved_on_record(spec(7), now) == f"6 c {now.run_id}"


@pytest.mark.parametrize("workdir", ["/w", "/other"])
def test_nothing_was_saved(workdir: str) -> None:
    run(spec(1, workdir=workdir), *([saved(5, "a")] if workdir != "/w" else []))
    assert saved_on_record(spec(2), RunDirectory.create(spec(2))) == ""


def test_the_host_that_alone_has_the_checkpoints() -> None:
    """It counts what the newest run with a checkpoint has said of its storage, in the attempt that had one."""
    alone = {"host": "a", "process": 0, "one_disk": True}
    run(spec(1), event("note", **alone), saved(50, "a"))
    now = RunDirectory.create(spec(3))
    assert host_of_checkpoints(spec(3), now) == "a"
    run(spec(2), saved(60, "a"))  # moved to a folder that all see
    assert host_of_checkpoints(spec(3), now) is None
    record(now, start_event(make_plan(spec(3), 0, {}), now.logs, 0.0), event("note", **alone))
    assert host_of_checkpoints(spec(3), now) is None  # it has saved nothing yet
    record(now, saved(3, "a"), event("step", 0, step=4))
    assert host_of_checkpoints(spec(3), now) == "a"
    assert host_of_checkpoints(spec(3, workdir="/other"), now) is None


def test_where_it_does_not_matter_which_host_is_the_first() -> None:
    """In a bucket, and where all hosts are this machine."""
    for number, of in enumerate([spec(1, workdir="gs://b/w"), replace(spec_of(), workdir=Path("/w"))]):
        run(of, saved(5, "a"))
        later = replace(of, run_id=f"2027010{number + 1}-000000-abcd")
        assert saved_on_record(later, RunDirectory.create(later)) == ""


def test_the_first_process_is_told() -> None:
    plan = make_plan(spec(1), 0, {}, None, "5 a run")
    environments = [worker["env"] for host in plan.hosts for worker in host.spec["processes"]]
    assert [env.get("PODRUN_SAVED") for env in environments] == ["5 a run", None, None]

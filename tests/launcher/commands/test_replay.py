"""`podrun replay` of what cannot be replayed: it says why, and what to do."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.commands.replay import ReplayRequest, replay_spec
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.rundir.runs import RunDirectory
from podrun.runtime.config import Config, Launch
from podrun.runtime.contract import Evaluation, Replay, UserError

from ...conftest import Sandbox
from .conftest import Made, Podrun

RUN = "20260101-000000-abcd"


def make_run(sandbox: Sandbox, slice: str = "cpu-3x1", job: Any = None, steps: int = 20, **fields: Any) -> RunDirectory:
    """A run of three hosts that has done some steps of 40."""
    job = job or job_of()
    pod = replace(simulated_pod(parse_slice(slice)), home=str(sandbox.path / "home"), python=sys.executable)
    spec = RunSpec(RUN, pod, job, sandbox.path / "work", sandbox.path)
    directory = RunDirectory.create(replace(spec, **fields))
    made = Made(directory, {host.name: [n] for n, host in enumerate(pod.hosts)}, 1000.0)
    made.start()
    if steps:
        made.event("step", step=steps, steps=40, loss=1.0, host="host-0", process=0)
    return directory


def job_of(**keys: Any) -> Config:
    data = {"name": "sine", "samples": 50}
    return Config.model_validate(
        {"task": "regression", "data": data, "optimizer": "adam", "steps": 40, "batch_size": 8, **keys}
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--step", "0"], "'0' is not a step; give a number, or the first and the last, such as 1190-1210"),
        (["--step", "3:5"], "'3:5' is not a step"),
        (["--step", "9-5"], "'9-5' ends before it begins; write 5-9"),
        (["--step", "5", "--on", "host-0,"], "a name is empty; give names with commas between them: host-0,host-3"),
        (["--step", "5", "--times", "0"], "0 is not in the range 1<=x<=20"),
        (["--step", "1-101"], "101 steps, and a replay compares at most 100; replay them in pieces"),
        (["--step", "41"], "ends with step 40, and there is no step 41"),
        (["--step", "30"], "has not done step 30 yet; the last one on record is 20"),
        (["--step", "5", "--on", "host-7"], "--on: the pod has no host host-7; it has host-0, host-1, host-2"),
        (["--step", "5", "--on", "host-1,host-1"], "--on: host-1 is given twice; keep one"),
        (["--step", "5", "--inject", "kill:host=1"], "--inject kill: a replay rehearses bitflip and wrong_sum"),
        (["--step", "5", "--inject", "bitflip:host=9"], "there is no host 9; allowed: 0 to 2"),
        (["--step", "5", "--slurm=time=1"], "--slurm submits a run and returns, and a replay has a result to wait for"),
    ],
)
def test_options(
    sandbox: Sandbox, podrun: Podrun, monkeypatch: pytest.MonkeyPatch, words: list[str], said: str
) -> None:
    monkeypatch.setenv("PODRUN_HOME", sandbox.env["PODRUN_HOME"])
    make_run(sandbox)
    done = podrun("replay", RUN, *words)
    assert (done.code, done.out) == (2, "")
    assert said in " ".join(done.err.split())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"job": Program(("python", "mine.py"), Launch())},
            "with a program of yours, whose steps only that program can",
        ),
        ({"job": job_of(parallel="ensemble")}, "each device has a model of its own, so no two compute the same"),
        ({"evaluation": Evaluation()}, "is an evaluation, which has no steps of its own"),
        ({"replay": Replay(5, 5, 3)}, "is a replay, which has no steps of its own"),
        ({"steps": 0}, "has not done step 5 yet; it has none on record"),
        ({"job": job_of(parallel={"name": "jit", "mesh": {"fsdp": 3}})}, "the job cannot run on 1 of 3 hosts"),
        ({"slice": "v3-32"}, "the hosts of a v3-32 are wired together, so some of them alone are no slice"),
    ],
)
def test_runs(
    sandbox: Sandbox, podrun: Podrun, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], said: str
) -> None:
    monkeypatch.setenv("PODRUN_HOME", sandbox.env["PODRUN_HOME"])
    make_run(sandbox, **fields)
    done = podrun("replay", RUN, "--step", "5", "--on", "host-1")
    assert (done.code, done.out) == (2, "")
    assert said in " ".join(done.err.split())


def test_steps_of_an_earlier_run(sandbox: Sandbox, podrun: Podrun, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run went on in the earlier one's workdir, maybe with another job: its own cannot tell what those steps were."""
    monkeypatch.setenv("PODRUN_HOME", sandbox.env["PODRUN_HOME"])
    directory = make_run(sandbox, steps=0)
    made = Made(directory, {f"host-{n}": [n] for n in range(3)}, 1000.0)
    made.event("resume", step=10, host="host-0", process=0)
    made.event("step", step=20, steps=40, loss=1.0, host="host-0", process=0)
    done = podrun("replay", RUN, "--step", "10-12")
    said = f"--step: run {RUN} went on from step 10 of an earlier run in its workdir, which has done step 10; replay that run"
    assert done.code == 2 and said in " ".join(done.err.split())


def test_the_step_whose_loss_is_not_finite(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the run, so the last step on record is the one before; its replay tells whether a host was the reason."""
    monkeypatch.setenv("PODRUN_HOME", sandbox.env["PODRUN_HOME"])
    directory = make_run(sandbox, steps=20)
    made = Made(directory, {f"host-{n}": [n] for n in range(3)}, 1000.0)
    made.event("error", kind="not_finite", message="x", step=21, host="host-0", process=0)
    assert replay_spec(ReplayRequest(RUN, 21, 21), directory).replay == Replay(21, 21, 3)
    with pytest.raises(UserError, match="has not done step 22 yet; the last one on record is 21"):
        replay_spec(ReplayRequest(RUN, 22, 22), directory)


def test_the_newest_run_that_trains(sandbox: Sandbox, podrun: Podrun, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later replay of it does not count, nor does a run whose spec another version has written."""
    monkeypatch.setenv("PODRUN_HOME", sandbox.env["PODRUN_HOME"])
    directory = make_run(sandbox)
    again = replace(directory.spec(), run_id="20260102-000000-abcd", replay=Replay(5, 5, 3))
    RunDirectory.create(again)
    other = RunDirectory.create(replace(directory.spec(), run_id="20260103-000000-abcd"))
    (other.path / "spec.json").write_text("{}")
    done = podrun("replay", "--step", "30")
    assert done.code == 2 and f"run {RUN} has not done step 30 yet" in " ".join(done.err.split())
    shutil.rmtree(directory.path)
    done = podrun("replay", "--step", "30")
    assert done.code == 2 and "trains, so there are no steps; `podrun ps --all`" in " ".join(done.err.split())


def test_a_run_whose_hosts_came_from_a_queue(sandbox: Sandbox, podrun: Podrun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODRUN_HOME", sandbox.env["PODRUN_HOME"])
    pod = replace(simulated_pod(parse_slice("cpu-3x1")), transport="slurm", queue_job="7")
    make_run(sandbox, pod=pod)
    done = podrun("replay", RUN, "--step", "5")
    assert done.code == 2 and "got its hosts from a queue, which may have given them to others since" in done.err


def test_the_plan_of_a_replay(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """On some hosts of the run it has no spares and no restarts; a fault strikes at the first step that is compared."""
    monkeypatch.setenv("PODRUN_HOME", sandbox.env["PODRUN_HOME"])
    directory = make_run(sandbox, job=job_of(launch={"max_restarts": 3, "max_preemptions": 5, "verify_every": 5}))
    request = ReplayRequest(RUN, 8, 9, on=("host-2", "host-0"), inject=("wrong_sum:host=1",))
    spec = replay_spec(request, directory)
    assert [host.name for host in spec.pod.hosts] == ["host-0", "host-2"] and spec.pod.slice.name == "cpu-2x1"
    launch = spec.job.launch
    assert (launch.max_restarts, launch.max_preemptions, launch.verify_every) == (0, 0, 0)
    assert spec.replay == Replay(8, 9, 3, is_rehearsal=True)
    assert spec.inject == ("wrong_sum:host=host-2,process=1@step=8",)
    assert spec.run_id != RUN and not spec.trains
    assert RunSpec.from_json(spec.to_json()) == spec
    monkeypatch.chdir(sandbox.path)
    elsewhere = replace(request, on=(), where=PodRequest("cpu-2x2", inventories={"simulate": True}))
    spec = replay_spec(elsewhere, directory)
    assert spec.pod.slice.name == "cpu-2x2" and spec.workdir == Path(sandbox.path / "work")

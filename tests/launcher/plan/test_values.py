"""Values of a plan that hosts rely on: leases, environments, and what goes before what."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.plan.plan import DETACHED_LEASE, attached_lease
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import Code
from podrun.launcher.pod.pod import Host
from podrun.runtime.config import Launch
from podrun.runtime.injection import parse_checked

from .made import environments, make, plan_of, pod_of


@pytest.mark.parametrize(("hosts", "lease"), [(1, 10.0), (100, 10.0), (101, 10.1), (1024, 102.4)])
def test_leases_of_simulated_hosts(hosts: int, lease: float) -> None:
    """Very many share this machine's cores, and get more time."""
    assert attached_lease(pod_of(f"cpu-{hosts}x1")) == pytest.approx(lease)


def test_leases_of_other_machines() -> None:
    """A connection may drop and come back; how many there are makes none slower. A detached run has a day."""
    pod = pod_of("cpu-1024x1", transport="ssh")
    assert attached_lease(pod) == 15.0
    small = replace(pod_of("cpu-2x1"), transport="ssh")
    program = Program(("true",), Launch())
    assert (make(small, program).lease, make(small, program, detached=True).lease) == (15.0, 86400.0)
    assert DETACHED_LEASE == 86400.0


def test_the_jobs_environment_goes_before_the_pods() -> None:
    """Both go before podrun's, but not before who the process is and where its workdir is."""
    pod = replace(pod_of("cpu-1x2"), env={"A": "pod", "B": "pod", "PYTHONUNBUFFERED": "", "PODRUN_WORKDIR": "/pod"})
    plan = make(pod, Program(("true",), Launch(env={"A": "launch", "PODRUN_PROCESS_ID": "7"})), owner="ann:/x")
    (env,) = environments(plan)
    assert (env["A"], env["B"], env["PYTHONUNBUFFERED"]) == ("launch", "pod", "")
    assert (env["PODRUN_PROCESS_ID"], env["PODRUN_WORKDIR"], env["PODRUN_OWNER"]) == ("0", "/work dir", "ann:/x")
    assert env["MALLOC_MMAP_THRESHOLD_"] == env["MALLOC_TRIM_THRESHOLD_"] == "4294967296"
    assert "PODRUN_OWNER" not in environments(plan_of())[0]


def test_simulated_processes_meet_on_the_loopback() -> None:
    """Others learn their address from their own host."""
    assert environments(plan_of())[0]["PODRUN_ADDRESS"] == "127.0.0.1"
    other = make(pod_of(transport="ssh"), Program(("true",), Launch()))
    assert "PODRUN_ADDRESS" not in environments(other)[0]


def test_a_process_for_each_device() -> None:
    """Numbered over all hosts, each with its device alone; logs are named by process then."""
    plan = plan_of("cpu-2x2", process_per="device")
    assert [p for host in plan.hosts for p in host.processes] == [0, 1, 2, 3]
    assert [env["PODRUN_LOCAL_DEVICE_IDS"] for env in environments(plan)] == ["0", "1"] * 2
    assert {env["PODRUN_NUM_PROCESSES"] for env in environments(plan)} == {"4"}
    assert [process["threads"] for process in plan.hosts[0].spec["processes"]] == [1, 1]
    assert plan.hosts[1].log_name(3) == "host-1.3"
    assert plan_of("cpu-2x2").hosts[1].log_name(1) == "host-1"


CODE = Code("~/p/code-1", "sub", "~/p/runtime-1", "~/.podrun/environments/e-1/bin/python")


def test_what_must_not_be_pruned_during_a_run() -> None:
    """The project, podrun's own code, and the environment if it is one that podrun made."""
    pod = pod_of("cpu-1x1", transport="ssh", home="~/.podrun")
    program = Program(("true",), Launch())
    spec = make(pod, program, code=CODE).hosts[0].spec
    assert spec["uses"][:2] == ["~/p/code-1", "~/p/runtime-1"] and len(spec["uses"]) in (2, 3)
    own = make(pod, program, code=replace(CODE, python="/usr/bin/python3"))
    assert own.hosts[0].spec["uses"] == ["~/p/code-1", "~/p/runtime-1"]
    assert own.hosts[0].spec["code"] == "~/p/code-1"
    nothing = make(pod, program)
    assert (nothing.hosts[0].spec["uses"], nothing.hosts[0].spec["code"]) == ([], None)


def test_the_workers_path() -> None:
    """The interpreter's folder goes first, so that its tools are those of the job; a bare name has no folder."""
    pod = pod_of("cpu-1x1", transport="ssh")
    program = Program(("true",), Launch(instrument=False))

    def path(code: Code | None) -> object:
        plan = make(pod, program, code=code)
        return plan.hosts[0].spec["processes"][0]["path"]

    assert path(CODE) == {"PYTHONPATH": ["~/p/runtime-1"], "PATH": ["~/.podrun/environments/e-1/bin"]}
    assert path(replace(CODE, python="python3")) == {"PYTHONPATH": ["~/p/runtime-1"]}
    assert path(None) == {"PATH": [os.path.dirname(sys.executable)]}
    plan = make(pod, program, code=CODE)
    assert plan.hosts[0].spec["processes"][0]["cwd"] == "code/sub"


def test_secrets_are_in_the_spec_alone() -> None:
    """Neither in what is printed, nor in what is recorded, nor in a repr."""
    plan = make(
        pod_of("cpu-1x1"), Program(("true",), Launch(env={"A": "x"})), secrets={"TOKEN": "hunter2", "A": "hidden9"}
    )
    (process,) = plan.hosts[0].spec["processes"]
    assert (process["env"]["TOKEN"], process["env"]["A"]) == ("hunter2", "hidden9")
    for text in (plan.render(), plan.to_json(), repr(plan)):
        assert "hunter2" not in text and "hidden9" not in text
    assert "env      TOKEN=(secret)" in plan.render() and "A=x" not in plan.render()
    recorded = json.loads(plan.to_json())
    assert recorded["hosts"][0]["processes"][0]["env"]["TOKEN"] == "(secret)"
    assert (recorded["slice"], recorded["attempt"], recorded["workdir"]) == ("cpu-1x1", 0, str(Path("/work dir")))


def test_the_rest_of_a_spec() -> None:
    """Values that the agent holds to: the grace of a stop, the ports, its own address, and whether the host is its alone."""
    pod = replace(pod_of("cpu-2x1", transport="ssh"), ports=(7000, 7010))
    pod = replace(pod, hosts=tuple(Host(h.name, h.address, "10.0.0.1") for h in pod.hosts))
    plan = make(pod, Program(("true",), Launch(stop_grace=7)))
    first, second = (host.spec for host in plan.hosts)
    assert (first["grace"], first["ports"], first["internal"], first["exclusive"]) == (
        7,
        [7000, 7010],
        "10.0.0.1",
        True,
    )
    assert (first["coordinator"], second["coordinator"]) == (True, False)
    simulated = plan_of("cpu-1x1")
    spec = simulated.hosts[0].spec
    assert (spec["ports"], spec["exclusive"], spec["devices"]) == (None, False, "cpu")


@pytest.mark.parametrize(("slice", "platform"), [("gpu-1x2", "cuda,cpu"), ("v3-8", "tpu,cpu"), ("cpu-1x2", "cpu")])
def test_jax_takes_the_devices_of_the_slice_or_fails(slice: str, platform: str) -> None:
    """Only GPUs need their numbers, and only CPUs how many they are to be."""
    plan = make(pod_of(slice, transport="ssh"), Program(("true",), Launch()))
    env = environments(plan)[0]
    assert env["JAX_PLATFORMS"] == platform
    assert env.get("JAX_LOCAL_DEVICE_IDS") == ("0,1" if "gpu" in slice else None)
    assert env.get("JAX_NUM_CPU_DEVICES") == ("2" if "cpu" in slice else None)
    assert plan.hosts[0].spec["processes"][0]["threads"] == (2 if "cpu" in slice else None)


def test_who_measures_the_machine() -> None:
    """Every host its own; simulated hosts are one machine, which the first measures."""
    program = Program(("true",), Launch())
    here, elsewhere = make(pod_of("cpu-3x1"), program), make(pod_of("cpu-3x1", transport="ssh"), program)
    assert [host.spec["measures"] for host in here.hosts] == [True, False, False]
    assert [host.spec["measures"] for host in elsewhere.hosts] == [True, True, True]


def test_the_first_process_alone_has_what_was_saved() -> None:
    """The others get it from that process; without anything saved there is no variable."""
    program = Program(("true",), Launch())
    saved = [env.get("PODRUN_SAVED") for env in environments(make(pod_of("cpu-2x1"), program, saved="gs://b/w"))]
    assert saved == ["gs://b/w", None]
    assert not any("PODRUN_SAVED" in env for env in environments(make(pod_of("cpu-2x1"), program)))


def test_faults_of_the_launcher_are_no_matter_of_a_process() -> None:
    """Each process gets its own faults; those that the launcher causes stay there."""
    faults = ("kill:process=1@step=2", "link_down:process=1@step=2")
    assert [one.by_launcher for one in parse_checked(faults)] == [False, True]
    envs = environments(make(pod_of("cpu-2x1"), Program(("true",), Launch()), inject=faults))
    assert [env.get("PODRUN_INJECT") for env in envs] == [None, "kill:process=1@step=2"]


def test_the_number_of_slices_is_printed_if_there_are_several() -> None:
    """A pod of one is not said to be in slices."""
    texts = [make(pod_of(name), Program(("true",), Launch())).render() for name in ("cpu-2x1", "2xcpu-2x1")]
    assert ["in 2 slices" in text for text in texts] == [False, True] and "in 1 slices" not in texts[0]

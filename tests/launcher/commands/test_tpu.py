"""`podrun tpu up|down|list`, with an executable `gcloud` that keeps what was ordered."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.engines.tpu import provision

from ...conftest import Sandbox
from ...gcloud import ZONE, Service, first_on_path, node, write_program
from ...tiers import nightly
from .conftest import Podrun

WHERE = ("my-tpu", "--zone", ZONE)
UP = ("tpu", "up", *WHERE, "--slice", "v5e-16", "--spot")
CREATE = (
    f"compute tpus queued-resources create my-tpu --zone={ZONE} --node-id=my-tpu --accelerator-type=v5litepod-16 "
    "--runtime-version=v2-alpha-tpuv5-lite --spot --quiet --format=json"
)
DELETE = f"compute tpus queued-resources delete my-tpu --zone={ZONE} --force --quiet --async --format=json"


@pytest.fixture(autouse=True)
def bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the gcloud that is found first."""
    return first_on_path(tmp_path, monkeypatch)


@pytest.fixture
def service(bin: Path) -> Service:
    return Service(bin)


def news(text: str) -> list[str]:
    """Return the lines that have a time, without it."""
    return [line[9:] for line in text.splitlines() if re.match(r"\d\d:\d\d:\d\d ", line)]


# --- up -----------------------------------------------------------------------------------------------------------------


def test_up_shows_what_it_costs_and_waits(service: Service, podrun: Podrun) -> None:
    done = podrun(*UP, "--yes")
    assert done.code == 0, done.err
    for row in ("zone        us-central1-a", "project     my-project", "type        v5litepod-16", "cost class  spot"):
        assert f"  {row}\n" in done.out
    assert news(done.out) == [
        "my-tpu: creating it (v5litepod-16, spot)",
        "my-tpu: ACCEPTED, Google has accepted the request",
        "my-tpu: WAITING_FOR_RESOURCES, in the queue until enough machines are free; Google gives no position and no time",
        "my-tpu: PROVISIONING, Google starts the machines",
    ]
    assert f"my-tpu is ready: podrun --tpu my-tpu --zone {ZONE} train.yaml\n" in done.out
    assert f"podrun tpu down my-tpu --zone {ZONE}" in done.out
    assert service.asked == [CREATE]


@pytest.mark.parametrize("state", ["ACTIVE", "DREAMING", *nightly("WAITING_FOR_RESOURCES", "PROVISIONING")])
def test_up_again_creates_nothing(service: Service, podrun: Podrun, state: str) -> None:
    """Nor does it ask: nothing is created."""
    service.make(state=state, course=["ACTIVE"])
    done = podrun(*UP)
    assert done.code == 0, done.err
    assert "my-tpu is ready" in done.out and service.asked == []


@pytest.mark.parametrize(
    "dead",
    [
        "SUSPENDED",
        {"state": "FAILED", "failedData": {"error": {"code": 8, "message": "no capacity"}}},
        *nightly("FAILED", {"state": "SUSPENDED", "stateInitiator": "USER"}),
    ],
    ids=str,
)
def test_a_dead_one_is_deleted_first(service: Service, podrun: Podrun, dead: Any) -> None:
    service.make(state=dead)
    done = podrun(*UP, "--yes")
    assert done.code == 0, done.err
    assert re.search(r"what is left of the last one \((SUSPENDED|FAILED)\) holds quota and is deleted first", done.out)
    assert service.asked == [DELETE, CREATE]


def test_a_preempted_one_is_deleted_first(service: Service, podrun: Podrun) -> None:
    """Its queued resource is active still."""
    service.make(vm_state="PREEMPTED")
    done = podrun(*UP, "--yes")
    assert (done.code, service.asked) == (0, [DELETE, CREATE]), done.err


def test_one_that_is_being_deleted_is_waited_for(service: Service, podrun: Podrun) -> None:
    service.make(state="DELETING", course=["DELETING", "DELETING", None])
    done = podrun(*UP, "--yes")
    assert (done.code, service.asked) == (0, [CREATE]), done.err


def test_a_vm_that_outlives_its_queued_resource_is_waited_for(service: Service, podrun: Podrun) -> None:
    """Its name is not free before."""
    service.change(vms={"my-tpu": {**node(state="DELETING"), "left": 2}})
    done = podrun(*UP, "--yes")
    assert (done.code, service.asked) == (0, [CREATE]), done.err
    assert "my-tpu: deleted, but its TPU VM is DELETING, that takes some time" in news(done.out)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        (
            {"tpu": {"nodeSpec": [{"node": {"acceleratorType": "v4-8"}, "nodeId": "my-tpu"}]}},
            "there is a v4-8 of that name",
        ),
        ({"spot": None}, "there is one of that name, but it is on demand, and the order is spot"),
        ({"tpu": None}, "is for a TPU VM with another name"),
        ({"tpu": {"nodeSpec": [{"nodeId": "a"}]}}, "is for a TPU VM with another name"),
    ],
)
def test_another_one_of_that_name(service: Service, podrun: Podrun, fields: Any, what: str) -> None:
    service.make(**fields)
    done = podrun(*UP, "--yes")
    assert done.code == 2 and service.asked == []
    assert what in done.err and f"podrun tpu down my-tpu --zone {ZONE}`" in done.err


def test_a_vm_without_a_queued_resource_is_left_alone(service: Service, podrun: Podrun) -> None:
    service.change(vms={"my-tpu": node()})
    for argv in (UP, ("tpu", "down", *WHERE)):
        done = podrun(*argv, "--yes")
        assert done.code == 2 and "leaves it alone" in done.err and "tpu-vm delete my-tpu" in done.err
    assert service.asked == []


def test_without_a_terminal_nothing_is_created(
    service: Service, podrun: Podrun, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(os.devnull) as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        done = podrun(*UP)
        assert done.code == 2 and "there is no terminal to ask whether to create it; add --yes" in done.err
        assert "cost class  spot" in done.out
        service.make()
        done = podrun("tpu", "down", *WHERE)
        assert done.code == 2 and "there is no terminal to ask whether to delete my-tpu; add --yes" in done.err
    assert service.asked == []


@pytest.mark.parametrize(("typed", "asked"), [("n\n", []), ("y\n", [CREATE])])
def test_the_user_is_asked(service: Service, sandbox: Sandbox, typed: str, asked: list[str]) -> None:
    """On a terminal. It is ready at once."""
    service.change(courses=[["ACTIVE"]])
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*sandbox.command, *UP], cwd=sandbox.path, env=sandbox.env, stdin=theirs, stdout=subprocess.PIPE, text=True
    ) as process:
        os.write(ours, typed.encode())
        out, _ = process.communicate(timeout=120)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 0 and "create it? it keeps quota and costs until it is deleted [y/N]" in out
    assert service.asked == asked and ("nothing was changed" in out) == (not asked)


def test_ctrl_c_leaves_it_in_the_queue(service: Service, sandbox: Sandbox) -> None:
    service.change(courses=[["WAITING_FOR_RESOURCES"]])
    with subprocess.Popen(
        [*sandbox.command, *UP, "--yes"], cwd=sandbox.path, env=sandbox.env, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "WAITING_FOR_RESOURCES" in line:
                process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    text = "".join(lines)
    assert "my-tpu is left as it is, and Google goes on with it" in text
    assert f"podrun tpu list --zone {ZONE} " in text and f"podrun tpu down my-tpu --zone {ZONE} " in text
    assert service.asked == [CREATE] and "my-tpu" in service.state["queued"]


QUOTA = (
    "ERROR: (gcloud.compute.tpus.queued-resources.create) RESOURCE_EXHAUSTED: Quota limit "
    "'TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI' has been exceeded. Limit: 0 in zone us-central1-a."
)


@pytest.mark.parametrize(
    ("verb", "err", "code", "what"),
    [
        ("create", QUOTA, 69, "no quota left for it in us-central1-a; .*`podrun tpu list --zone us-central1-a`"),
        (
            "create",
            "ERROR: (g) PERMISSION_DENIED: Permission 'tpu.x' denied",
            2,
            "may not create it; .*roles/tpu.admin",
        ),
        (
            "create",
            "ERROR: (g) INVALID_ARGUMENT: no such type",
            2,
            "Google refuses the request; .*accelerator-types list",
        ),
        ("create", "ERROR: (g) NOT_FOUND: no such version", 2, "refuses .*versions list --zone=us-central1-a"),
        ("create", "ERROR: (g) ALREADY_EXISTS: a node", 2, "of that name already; choose another name"),
        ("describe", "ERROR: (g) PERMISSION_DENIED: Permission 'tpu.x' denied", 2, "may not look at it; .*tpu.viewer"),
        ("describe", "ERROR: (g) You do not currently have an active account selected.", 2, "`gcloud auth login`"),
        ("describe", "ERROR: gcloud crashed (ConnectionError): Max retries exceeded", 69, "cannot reach Google"),
        ("describe", "ERROR: (gcloud.compute.tpus) Invalid choice: 'queued-resources'.", 2, "gcloud components update"),
    ],
)
def test_what_google_refuses(service: Service, podrun: Podrun, verb: str, err: str, code: int, what: str) -> None:
    service.change(errors={f"queued-resources {verb}": [err]})
    done = podrun(*UP, "--yes")
    assert done.code == code
    assert re.search(rf"^podrun: TPU my-tpu: .*{what}", done.err), done.err
    assert "gcloud said: " in done.err and "Traceback" not in done.err


def test_no_gcloud(bin: Path, podrun: Podrun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(bin))
    for argv in (UP, ("tpu", "down", *WHERE), ("tpu", "list", "--zone", ZONE)):
        done = podrun(*argv)
        assert done.code == 2 and "there is no program `gcloud` on this machine" in done.err


def test_an_outage_while_it_waits_is_waited_for(service: Service, podrun: Podrun) -> None:
    outage = "ERROR: (gcloud.compute.tpus.queued-resources.describe) UNAVAILABLE: try again"
    service.make(state="WAITING_FOR_RESOURCES", course=["WAITING_FOR_RESOURCES", "ACTIVE"])
    service.change(errors={"tpu-vm describe": [outage, outage]})
    done = podrun(*UP)
    assert done.code == 0, done.err
    told = [line for line in news(done.out) if "no answer now" in line]
    assert len(told) == 1 and told[0].endswith("(podrun tries again, up to 10 min)")


def test_a_request_that_fails_says_why(service: Service, podrun: Podrun) -> None:
    error = {"code": 8, "message": "There is no more capacity in us-central1-a"}
    service.change(courses=[["PROVISIONING", {"state": "FAILED", "failedData": {"error": error}}]])
    done = podrun(*UP, "--yes")
    assert done.code == 69
    assert "TPU my-tpu: FAILED, the request has failed: There is no more capacity in us-central1-a\n" in done.err
    assert "holds quota until `podrun tpu down my-tpu" in done.err and service.asked == [CREATE]


def test_one_that_never_gets_ready(service: Service, podrun: Podrun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision, "_LIMIT", 0.1)
    service.make(vm_state="REPAIRING")
    done = podrun(*UP)
    assert done.code == 69 and "ACTIVE, its TPU VM is REPAIRING for 0 min, longer than this should take" in done.err


# --- down and list --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["ACTIVE", "WAITING_FOR_RESOURCES", *nightly("SUSPENDED", "FAILED")])
def test_down(service: Service, podrun: Podrun, state: str) -> None:
    service.make(state=state)
    done = podrun("tpu", "down", *WHERE, "--yes")
    assert done.code == 0, done.err
    assert done.out.startswith(f"my-tpu: v5litepod-16, spot, in {ZONE}: {state}, ")
    assert done.out.endswith("my-tpu is deleted\n") and service.asked == [DELETE] and not service.state["queued"]


def test_down_of_what_is_not_there(service: Service, podrun: Podrun) -> None:
    done = podrun("tpu", "down", *WHERE)
    assert (done.code, done.out) == (0, f"my-tpu is not in {ZONE}: nothing to delete\n")
    assert service.asked == []


def test_somebody_else_deletes_it_meanwhile(service: Service, podrun: Podrun) -> None:
    service.make()
    service.change(
        errors={"queued-resources delete": ["ERROR: (g) NOT_FOUND: Resource 'x' was not found"]},
        queued={"my-tpu": {**service.state["queued"]["my-tpu"], "course": ["ACTIVE", None]}},
    )
    done = podrun("tpu", "down", *WHERE, "--yes")
    assert done.code == 0 and done.out.endswith("my-tpu is deleted\n"), done.err


def test_list(service: Service, podrun: Podrun) -> None:
    assert podrun("tpu", "list", "--zone", ZONE).out == f"no TPU VMs and no queued resources in {ZONE}\n"
    service.make("a")
    service.make("b", vm_state="PREEMPTED", spot=None)
    service.make("c", "SUSPENDED", guaranteed={"reserved": True}, spot=None)
    service.make("d", "WAITING_FOR_RESOURCES", createTime=None, tpu=None)
    service.change(vms={"my-tpu": node()})
    done = podrun("tpu", "list", "--zone", ZONE, "--project", "p1")
    assert done.code == 0, done.err
    rows = [re.split(r"  +", line)[:4] for line in done.out.splitlines()]
    assert rows[:6] == [
        ["NAME", "TYPE", "STATE", "COST"],
        ["a", "v5litepod-16", "ACTIVE", "spot"],
        ["b", "v5litepod-16", "ACTIVE, its VM PREEMPTED", "on demand"],
        ["c", "v5litepod-16", "SUSPENDED", "reserved"],
        ["d", "-", "WAITING_FOR_RESOURCES", "spot"],
        ["my-tpu", "v3-32", "READY (VM without a queue)", "on demand"],
    ]
    assert f"holding quota: b, c; podrun tpu down b --zone {ZONE} --project p1 deletes one" in done.out


def test_words_that_are_no_names(bin: Path, podrun: Podrun) -> None:
    """They never get to gcloud."""
    write_program(bin, "#!/bin/sh\necho asked >&2\nexit 1\n")
    for argv, what in (
        (("up", "my tpu", "--zone", ZONE, "--slice", "v5e-16"), "TPU: 'my tpu' cannot be the name of a tpu"),
        (("up", "my-tpu", "--zone", "z;z", "--slice", "v5e-16"), "--zone: 'z;z' cannot be the name of a zone"),
        (
            ("up", "my-tpu", "--zone", ZONE, "--slice", "v5e-17"),
            "--slice: unknown slice 'v5e-17'; nearest: v5litepod-4",
        ),
        (("down", "my-tpu", "--zone", ZONE, "--project", "a b"), "--project: 'a b' cannot be the name of a project"),
        (("list", "--zone", ""), "--zone: '' cannot be the name of a zone"),
        (("up", "my-tpu", "--slice", "v5e-16"), "missing option '--zone'"),
    ):
        done = podrun("tpu", *argv)
        assert done.code == 2 and what in done.err, done.err
        assert "asked" not in done.err and len(done.err.splitlines()) <= 5


def test_a_list_of_a_thousand(service: Service, podrun: Podrun) -> None:
    service.change(
        vms={f"tpu-{n}": node(64, "v4-512", name=f"projects/p/locations/z/nodes/tpu-{n}") for n in range(1000)}
    )
    done = podrun("tpu", "list", "--zone", ZONE)
    assert done.code == 0 and len(done.out.splitlines()) == 1001, done.err

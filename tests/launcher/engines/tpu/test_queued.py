"""Queued resources and TPU VMs, as Google's API documents them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from podrun.launcher.engines.tpu.base import Stage
from podrun.launcher.engines.tpu.gcloud import TpuName
from podrun.launcher.engines.tpu.order import Cost
from podrun.launcher.engines.tpu.queued import STATES, read_queued, read_queued_list, read_vm_list
from podrun.launcher.engines.tpu.queued_service import TpuStatus
from podrun.runtime.contract import UnavailableError

from ....gcloud import ZONE, node

TPU = TpuName("my-tpu", ZONE, typed="TPU")


def queued(now: str = "ACTIVE", kind: str = "v5litepod-16", **fields: Any) -> Any:
    """Return what `gcloud compute tpus queued-resources describe --format=json` prints; a field None is left out."""
    spec = {"node": {"acceleratorType": kind, "runtimeVersion": "v2-alpha-tpuv5-lite"}, "nodeId": "my-tpu"}
    answer = {
        "createTime": "2026-01-31T10:30:00.123456789Z",
        "name": f"projects/my-project/locations/{ZONE}/queuedResources/my-tpu",
        "state": {"state": now, "stateInitiator": "SERVICE", f"{now.lower()}Data": {}},
        "tpu": {"nodeSpec": [spec]},
        **fields,
    }
    return {key: value for key, value in answer.items() if value is not None}


@pytest.mark.parametrize("kind", ["v2-32", "v3-32", "v4-16", "v5litepod-16", "v5p-128", "v6e-16"])
@pytest.mark.parametrize("state", STATES)
def test_every_type_in_every_state(state: str, kind: str) -> None:
    found = read_queued(TPU, queued(state, kind))
    assert (found.name, found.state, found.kind, found.vm) == ("my-tpu", state, kind, "my-tpu")
    assert (found.cost, found.by_user, found.reason) == (Cost.ON_DEMAND, False, "")
    assert found.stage is STATES[state][0] and found.meaning == STATES[state][1]
    assert found.created == datetime(2026, 1, 31, 10, 30, 0, 123456, UTC).timestamp()


@pytest.mark.parametrize(
    ("fields", "cost"),
    [
        ({"spot": {}}, Cost.SPOT),
        ({"bestEffort": {}}, Cost.SPOT),
        ({"provisioningModel": "SPOT"}, Cost.SPOT),
        ({"guaranteed": {"reserved": True}}, Cost.RESERVED),
        ({"reservationName": "projects/p/locations/z/reservations/r"}, Cost.RESERVED),
        ({"guaranteed": {"minDuration": "3600s"}}, Cost.ON_DEMAND),
        ({"provisioningModel": "STANDARD"}, Cost.ON_DEMAND),
    ],
)
def test_class_of_cost(fields: Any, cost: Cost) -> None:
    assert read_queued(TPU, queued(**fields)).cost is cost


def test_the_reason_of_a_failure_is_one_line() -> None:
    error = {"code": 8, "message": "There is no more capacity in the zone;\n try \x1b[2J another.", "details": []}
    found = read_queued(TPU, queued(state={"state": "FAILED", "failedData": {"error": error}}))
    assert found.reason == "There is no more capacity in the zone; try \x1b[2J another."
    assert found.meaning == f"the request has failed: {found.reason}"


def test_what_is_missing_is_not_guessed() -> None:
    """But it is known that it is there, and in which state."""
    found = read_queued(TPU, {"name": "my-tpu", "state": {"state": "DREAMING"}})
    assert (found.kind, found.vm, found.created, found.by_user) == ("", None, None, False)
    assert found.stage is Stage.WAITING and found.meaning == "a state that podrun does not know"
    assert read_queued(TPU, queued(createTime="yesterday")).created is None
    several = {"nodeSpec": [{"nodeId": "a"}, {"nodeId": "b"}]}
    assert read_queued(TPU, queued(tpu=several)).vm is None


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        ({"name": "my-tpu"}, "has no state"),
        (queued(name=None), "has no name"),
        ({**queued(), "state": {}}, "has no state.state"),
        ({**queued(), "state": "ACTIVE"}, "has state: 'ACTIVE'"),
        (queued(tpu={"nodeSpec": "x"}), "has tpu.nodeSpec: 'x'"),
        (queued(spot=True), "has spot: 'True'"),
        ([], r"is '\[\]'"),
        (None, "is 'None'"),
    ],
)
def test_an_answer_that_podrun_cannot_use(answer: Any, what: str) -> None:
    with pytest.raises(
        UnavailableError, match=f"^TPU my-tpu: gcloud's answer {what}, .* queued-resources describe my-tpu"
    ):
        read_queued(TPU, answer)


def test_lists() -> None:
    where = TpuName(None, ZONE)
    assert [q.name for q in read_queued_list(where, [queued(), queued(name="a/b")])] == ["my-tpu", "b"]
    of_queue = node(queuedResource=f"projects/1/locations/{ZONE}/queuedResources/q", schedulingConfig={"spot": True})
    alone = node(schedulingConfig={"preemptible": True}, name="old")
    assert [(vm.name, vm.queued, vm.cost) for vm in read_vm_list(where, [of_queue, alone, node()])] == [
        ("my-tpu", "q", Cost.SPOT),
        ("old", None, Cost.SPOT),
        ("my-tpu", None, Cost.ON_DEMAND),
    ]
    for answer in (None, {"name": "x"}, [{"name": "x"}], [queued()] * 10_001):
        with pytest.raises(UnavailableError, match=f"^--zone {ZONE}: gcloud's answer .* queued-resources list --zone"):
            read_queued_list(where, answer)


@pytest.mark.parametrize("vm_state", ["PREEMPTED", "TERMINATED"])
def test_an_active_one_without_its_machines_is_dead(vm_state: str) -> None:
    """Google says so of the TPU VM first."""
    vm = read_vm_list(TPU, [node(state=vm_state)])[0]
    status = TpuStatus(read_queued(TPU, queued()), vm)
    assert status.is_dead and not status.is_ready
    assert status.label == f"ACTIVE, its TPU VM is {vm_state}"
    assert status.meaning == "its machines were taken away"

"""Create a TPU VM again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.engines.tpu import provision
from podrun.launcher.engines.tpu.gcloud import TpuName
from podrun.launcher.engines.tpu.keep import RenewableTpu
from podrun.launcher.engines.tpu.order import make_order
from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.pod.pod import Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.runtime.contract import UnavailableError, UserError

from ....gcloud import ZONE, Service

QUOTA = "ERROR: (g) RESOURCE_EXHAUSTED: Quota limit 'TPUV5sLitepod' has been exceeded."
POD = simulated_pod(parse_slice("cpu-1x1"))


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    """Make the gcloud that is found first. podrun looks as often as it can."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(provision, "PAUSE", 0.01)
    return Service(tmp_path)


@pytest.fixture
def told() -> list[str]:
    """Collect what the user is told."""
    return []


def kept(answers: list[Pod | Exception] | None = None) -> RenewableTpu:
    """Return the TPU VM; `answers` are those to who asks for its pod."""

    def find(tpu: TpuName) -> Pod:
        answer = answers.pop(0) if answers else POD
        if isinstance(answer, Exception):
            raise answer
        return answer

    order = make_order(TpuName("my-tpu", ZONE, typed="TPU"), "v5e-16", None, spot=True, reserved=False)
    return RenewableTpu(order, find)


def by(initiator: str, state: str = "SUSPENDED") -> Any:
    return {"state": state, "stateInitiator": initiator}


@pytest.mark.parametrize(
    ("state", "fields", "what"),
    [
        (by("SERVICE"), {}, "my-tpu was taken away by Google (SUSPENDED)"),
        (by("SERVICE", "SUSPENDING"), {}, "my-tpu was taken away by Google (SUSPENDING)"),
        ({"state": "SUSPENDED"}, {}, "my-tpu was taken away by Google (SUSPENDED)"),
        ("FAILED", {}, "my-tpu was taken away by Google (FAILED)"),
        ("PROVISIONING", {}, "my-tpu was taken away by Google (PROVISIONING)"),
        ("ACTIVE", {"vm_state": "PREEMPTED"}, "my-tpu was taken away by Google (ACTIVE, its TPU VM is PREEMPTED)"),
        ("ACTIVE", {"vm_state": "TERMINATED"}, "my-tpu was taken away by Google (ACTIVE, its TPU VM is TERMINATED)"),
        ("ACTIVE", {"vm_state": "REPAIRING"}, ""),
        ("ACTIVE", {}, ""),
        ("DREAMING", {}, ""),
    ],
    ids=str,
)
def test_what_is_taken(service: Service, told: list[str], state: Any, fields: Any, what: str) -> None:
    service.make(state=state, **fields)
    assert kept().why_taken(0.0, told.append, lambda: 0) == what
    assert told == []


@pytest.mark.parametrize(
    ("state", "what"),
    [
        (by("USER"), "my-tpu was suspended by a user, so it is not created again"),
        (by("USER", "SUSPENDING"), "my-tpu was suspended by a user, so it is not created again"),
        (by("USER", "DELETING"), "my-tpu was deleted by a user, so it is not created again"),
        (None, "my-tpu was deleted by a user, so it is not created again"),
    ],
    ids=str,
)
def test_what_a_user_has_done_counts(service: Service, told: list[str], state: Any, what: str) -> None:
    if state is not None:
        service.make(state=state)
    assert kept().why_taken(600.0, told.append, lambda: 0) == ""
    assert told == [what]


def test_google_may_be_slow_to_say_it(service: Service, told: list[str]) -> None:
    outage = "ERROR: (g) UNAVAILABLE: try again"
    service.make(course=["ACTIVE", "ACTIVE", "SUSPENDED"])
    service.change(errors={"tpu-vm describe": [outage]})
    assert kept().why_taken(600.0, told.append, lambda: 0) == "my-tpu was taken away by Google (SUSPENDED)"


def test_the_end_of_flex_start_is_no_preemption(service: Service, told: list[str]) -> None:
    """The queued resource is then SUSPENDED, as after a preemption."""
    tpu = TpuName("my-tpu", ZONE, typed="TPU")
    flex = RenewableTpu(make_order(tpu, "v5e-16", None, False, False, flex=True), lambda _: POD)
    made = {"spot": None, "provisioningModel": "FLEX_START"}
    service.make(**made, runDuration={"terminationTime": "2026-01-31T11:30:00Z"})
    assert flex.renew(told.append, lambda: 0) == POD
    service.make(**made, state="SUSPENDED")
    assert flex.why_taken(0.0, told.append, lambda: 0) == ""
    assert "machines of --flex-start run for at most 7d" in flex.over and told[-1] == flex.over


def test_nobody_waits_for_google_after_a_ctrl_c(service: Service, told: list[str]) -> None:
    service.make()
    assert kept().why_taken(600.0, told.append, lambda: 1) == ""
    assert kept().renew(told.append, lambda: 1) is None
    assert service.asked == []


def test_a_dead_one_is_created_again(service: Service, told: list[str]) -> None:
    service.make(state="SUSPENDED")
    assert kept().renew(told.append, lambda: 0) == POD
    assert [line.split()[3] for line in service.asked] == ["delete", "create"]


def test_one_that_is_taken_again_at_once_is_created_again(service: Service, told: list[str]) -> None:
    """Before its hosts could be listed."""
    answers: list[Pod | Exception] = [UnavailableError("my-tpu was preempted"), POD]
    assert kept(answers).renew(told.append, lambda: 0) == POD
    assert "my-tpu was preempted" in told


def test_google_may_refuse_some_times(service: Service, told: list[str]) -> None:
    """Quota that is free only some time after a deletion, and machines that are not to be had."""
    failed = {"state": "FAILED", "failedData": {"error": {"message": "no capacity"}}}
    service.change(errors={"queued-resources create": [QUOTA, QUOTA]}, courses=[[failed], ["ACTIVE"]])
    assert kept().renew(told.append, lambda: 0) == POD
    assert any("no capacity; deleting it" in line for line in told)
    assert sum("has no quota left" in line for line in told) == 2


def test_but_not_for_ever(service: Service, told: list[str]) -> None:
    service.change(errors={"queued-resources create": [QUOTA] * 100})
    with pytest.raises(UnavailableError, match="no quota left for it"):
        kept().renew(told.append, lambda: 0)
    assert len(service.asked) == 5
    service.change(errors={}, courses=[["FAILED"]])
    with pytest.raises(UnavailableError, match="FAILED, the request has failed"):
        kept().renew(told.append, lambda: 0)


def test_what_will_not_get_better_is_not_tried_again(service: Service, told: list[str]) -> None:
    service.change(errors={"queued-resources create": ["ERROR: (g) PERMISSION_DENIED: no"] * 2})
    with pytest.raises(UserError, match="may not create it"):
        kept().renew(told.append, lambda: 0)
    assert len(service.asked) == 1

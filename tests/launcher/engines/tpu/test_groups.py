"""Meanings of gcloud's answers about instance groups, and of messages of Compute Engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.engines.tpu import group_service
from podrun.launcher.engines.tpu.gcloud import TpuName, Verb
from podrun.launcher.engines.tpu.gcloud_errors import explain
from podrun.launcher.engines.tpu.groups import (
    GroupStatus,
    read_group,
    read_hosts,
    read_machines,
    read_rows,
)
from podrun.launcher.engines.tpu.order import Cost
from podrun.runtime.contract import UnavailableError, UserError

from ....gcloud import ZONE, make_gcloud

TPU = TpuName("my-tpu", ZONE, "p1", typed="TPU")


def group(**fields: Any) -> Any:
    """Return a group as `gcloud compute instance-groups managed describe` prints it; a field None is left out."""
    answer = {
        "baseInstanceName": "my-tpu",
        "creationTimestamp": "2026-01-31T10:30:00.123-08:00",
        "currentActions": {"creating": 0, "none": 2},
        "description": "podrun: v5p-16, spot",
        "id": "4815162342108",
        "instanceLifecyclePolicy": {"defaultActionOnFailure": "DO_NOTHING", "forceUpdateOnRepair": "NO"},
        "name": "my-tpu",
        "resourcePolicies": {"workloadPolicy": "https://www.googleapis.com/compute/v1/projects/p1/regions/r/x"},
        "status": {
            "isStable": True,
            "appliedAcceleratorTopologies": [{"acceleratorTopology": "2x2x2", "state": "ACTIVE"}],
        },
        "targetSize": 2,
        **fields,
    }
    return {key: value for key, value in answer.items() if value is not None}


def machine(number: int, state: str | None = "RUNNING", action: str = "NONE", *error: str) -> Any:
    """Return a machine as `list-instances` prints it."""
    errors = [{"code": error[0], "message": error[1]}] if error else []
    return {
        "currentAction": action,
        "instance": f"https://www.googleapis.com/compute/v1/projects/p1/zones/{ZONE}/instances/my-tpu-{number}",
        "instanceStatus": state,
        "lastAttempt": {"errors": {"errors": errors}} if errors else {},
    }


def vm(number: int, **fields: Any) -> Any:
    answer = {
        "id": str(100 + number),
        "name": f"my-tpu-{number}",
        "machineType": "https://www.googleapis.com/compute/v1/projects/p1/zones/z/machineTypes/ct5p-hightpu-4t",
        "networkInterfaces": [
            {"networkIP": f"10.0.0.{number + 2}", "accessConfigs": [{"natIP": f"34.1.2.{number + 2}"}]}
        ],
        "status": "RUNNING",
        **fields,
    }
    return {key: value for key, value in answer.items() if value is not None}


def status(machines: list[Any], **fields: Any) -> GroupStatus:
    return GroupStatus(TPU, read_group(TPU, group(**fields)), read_machines(TPU, machines))


REPAIRED = {"instanceLifecyclePolicy": {"defaultActionOnFailure": "REPAIR"}, "targetSize": 1, "status": {}}
ON_DEMAND = {"description": "podrun: v5p-16, on demand"}
STOCKOUT = ("ZONE_RESOURCE_POOL_EXHAUSTED", "The zone does not have enough resources available to fulfill the request.")


@pytest.mark.parametrize(
    ("machines", "fields", "what", "label"),
    [
        ([machine(0), machine(1)], {}, "ready", "RUNNING"),
        ([], {}, "queue", "PENDING"),
        ([machine(0, None, "CREATING"), machine(1, None, "CREATING")], {}, "queue", "2 no machine (CREATING)"),
        (
            [machine(0, None, "CREATING", *STOCKOUT), machine(1, None, "CREATING")],
            {},
            "queue",
            "2 no machine (CREATING)",
        ),
        ([machine(0, "STAGING", "CREATING"), machine(1)], {}, "starting", "1 STAGING (CREATING), 1 RUNNING"),
        ([machine(0, "TERMINATED"), machine(1)], {}, "dead", "1 TERMINATED, 1 RUNNING"),
        ([machine(0, "TERMINATED"), machine(1, "STOPPING")], {}, "dead", "1 TERMINATED, 1 STOPPING"),
        ([machine(1)], {}, "dead", "1 RUNNING, 1 missing"),
        ([machine(0, "TERMINATED"), machine(1)], ON_DEMAND, "queue", "1 TERMINATED, 1 RUNNING"),
        ([machine(0, "REPAIRING"), machine(1)], ON_DEMAND, "queue", "1 REPAIRING, 1 RUNNING"),
        ([machine(0, "TERMINATED")], REPAIRED, "queue", "1 TERMINATED"),
        ([machine(0, None, "RECREATING")], REPAIRED, "queue", "1 no machine (RECREATING)"),
        ([machine(0, "STAGING", "RECREATING")], REPAIRED, "starting", "1 STAGING (RECREATING)"),
        (
            [machine(0, None, "CREATING", "QUOTA_EXCEEDED", "Quota 'T' exceeded.")],
            {},
            "dead",
            "1 no machine (CREATING), 1 missing",
        ),
        (
            [machine(0, "STOPPING", "DELETING"), machine(1, None, "DELETING")],
            {},
            "ending",
            "1 STOPPING (DELETING), 1 no machine (DELETING)",
        ),
        ([], {"targetSize": 0}, "ending", "EMPTY"),
    ],
    ids=str,
)
def test_states(machines: list[Any], fields: Any, what: str, label: str) -> None:
    now = status(machines, **fields)
    is_ending = not now.is_coming and not now.is_dead
    assert (now.is_ready, now.in_queue, now.is_dead, is_ending) == (
        what == "ready",
        what == "queue",
        what == "dead",
        what == "ending",
    )
    assert now.label == label
    assert bool(now.taken("my-tpu")) == (what not in ("ready", "ending"))
    assert bool(now.stopped_by_user("my-tpu")) == (what == "ending")


def test_errors_of_all_machines_together() -> None:
    """The group has them, not its machines."""
    failures = {"errors": [{"code": "QUOTA_EXCEEDED", "message": "Quota 'T' exceeded."}]}
    bulk = {"inProgress": True, "lastProgressCheck": {"error": failures, "timestamp": "2026-11-28T00:00:00Z"}}
    machines = [machine(0, None, "CREATING"), machine(1, None, "CREATING")]
    now = status(machines, status={"bulkInstanceOperation": bulk})
    assert now.is_dead and now.meaning.startswith("the request has failed: QUOTA_EXCEEDED: Quota 'T' exceeded.; the")
    failures["errors"][0]["code"] = STOCKOUT[0]
    now = status(machines, status={"bulkInstanceOperation": bulk})
    assert now.in_queue and now.meaning.startswith(f"Google has no machines yet and tries again: {STOCKOUT[0]}")
    past = {**bulk, "inProgress": False}
    failures["errors"][0]["code"] = "QUOTA_EXCEEDED"
    assert not status(
        [machine(0, "REPAIRING"), machine(1)], **ON_DEMAND | {"status": {"bulkInstanceOperation": past}}
    ).is_dead


IN_USE = (
    "Specified reservation 'r' does not have available resources for the request.",
    "No available resources in specified reservations.",
    "Cannot use the reservation, it requires reservation to be in READY state.",
)


@pytest.mark.parametrize("message", IN_USE)
def test_a_reservation_that_is_in_use_is_waited_for(message: str) -> None:
    """Without a reservation, this message is fatal."""
    failures = {"errors": [{"code": "INVALID_RESERVATION", "message": message}]}
    bulk = {"inProgress": True, "lastProgressCheck": {"error": failures}}
    machines = [machine(0, None, "CREATING"), machine(1, None, "CREATING")]
    now = status(machines, description="podrun: v5p-16, reserved", status={"bulkInstanceOperation": bulk})
    assert now.in_queue and not now.is_dead
    assert now.meaning.startswith("Google has no free machine of the reservation yet and tries again: INVALID_RES")
    assert status(machines, status={"bulkInstanceOperation": bulk}).is_dead


def test_what_a_request_waits_for() -> None:
    machines = [machine(0, None, "CREATING"), machine(1, None, "CREATING")]
    for cost, what in (
        ("spot", "in the queue until enough machines are free"),
        ("reserved", "waits until the reservation has begun and has enough free machines"),
        ("flex-start", "in the queue of flex-start until machines are free for all of its time, which may take hours"),
    ):
        assert status(machines, description=f"podrun: v5p-16, {cost}").meaning == what


def test_reasons() -> None:
    quota = machine(0, None, "CREATING", "QUOTA_EXCEEDED", "Quota 'TPUS_PER_TPU_FAMILY' exceeded.  Limit: 0.0")
    meaning = status([quota]).meaning
    assert meaning.startswith(
        "the request has failed: QUOTA_EXCEEDED: Quota 'TPUS_PER_TPU_FAMILY' exceeded. Limit: 0.0; the project"
    )
    waits = status([machine(0, None, "CREATING", *STOCKOUT)]).meaning
    assert waits.startswith("Google has no machines yet and tries again: ZONE_RESOURCE_POOL_EXHAUSTED")
    assert status([machine(0, "TERMINATED")], **REPAIRED).meaning == "Google's group replaces the machine"
    assert status([machine(0, "TERMINATED"), machine(1)], **ON_DEMAND).meaning == "Google restarts the machines"


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (group(name=None), "has no name"),
        (group(targetSize=None), "has no targetSize"),
        (group(targetSize=10**9), "has targetSize: '?1000000000'?"),
        (group(targetSize="many"), "has targetSize: '?many'?"),
        (group(id="../x"), r"has id: '?\.\./x'?"),
        (group(status=[]), "has status: "),
        ([], r"is .*\[\]"),
        (None, "is .*None"),
    ],
)
def test_answers_with_something_wrong(answer: Any, what: str) -> None:
    with pytest.raises(UnavailableError, match=f"^TPU my-tpu: gcloud's answer {what}"):
        read_group(TPU, answer)


@pytest.mark.parametrize(
    ("vms", "what"),
    [
        ([vm(0)], "its group has 2 machines, but gcloud lists 1 of them"),
        ([vm(0), vm(7)], "its group has 2 machines, but gcloud lists 1 of them"),
        ([vm(0), vm(1, networkInterfaces=[])], "gcloud lists no address of my-tpu-1"),
        ([vm(0), vm(1, networkInterfaces=[{"networkIP": "-oProxyCommand=x"}])], "networkIP: '?-oProxyCommand=x'?"),
        (
            [vm(0), vm(1, networkInterfaces=[{"networkIP": "10.0.0.1", "accessConfigs": [{"natIP": "a.b"}]}])],
            "natIP: '?a.b'?",
        ),
        ([vm(0), vm(1, id="../x")], r"has rows.1.id: '?\.\./x'?"),
        ("x", "has rows: 'x'"),
        ([vm(0)] * 10_001, "has rows: "),
    ],
)
def test_hosts_with_something_wrong(vms: Any, what: str) -> None:
    ready = status([machine(0), machine(1)])
    with pytest.raises(UnavailableError, match=what):
        read_hosts(TPU, ready, vms)


def items(**values: str) -> Any:
    return {"items": [{"key": key.replace("_", "-"), "value": value} for key, value in values.items()]}


@pytest.mark.parametrize(
    ("metadata", "first"),
    [
        ((None, None), "10.0.0.2"),
        ((items(worker_network_endpoints="my-tpu-1,my-tpu-0"), None), "10.0.0.3"),
        ((None, items(worker_network_endpoints="unknown:unknown:10.0.0.3,unknown:unknown:10.0.0.2")), "10.0.0.3"),
        ((items(worker_network_endpoints="my-tpu-1.c.p.internal,my-tpu-0.c.p.internal"), None), "10.0.0.3"),
        ((items(worker_network_endpoints="a,b"), None), "10.0.0.2"),
        ((items(agent_worker_number="1"), items(agent_worker_number="0")), "10.0.0.3"),
        ((items(worker_id="1"), items(worker_id="0")), "10.0.0.3"),
        ((items(worker_id="1"), items(worker_id="1")), "10.0.0.2"),
    ],
    ids=str,
)
def test_the_number_of_the_worker(metadata: Any, first: str) -> None:
    """It is in the metadata of the machines; without it, the names decide."""
    vms = [vm(number, metadata=one) for number, one in enumerate(metadata)]
    listing = read_hosts(TPU, status([machine(0), machine(1)]), vms)
    assert listing.hosts[0].internal == first
    assert listing.slice and listing.slice.name == "v5p-16"


@pytest.mark.parametrize(
    ("kind", "topology", "size", "slice"),
    [
        ("ct5p-hightpu-4t", "2x2x2", 2, "v5p-16"),
        ("ct6e-standard-4t", "4x4", 4, "v6e-16"),
        ("tpu7x-standard-4t", "2x2x2", 2, "tpu7x-16"),
        ("ct6e-standard-8t", "", 1, "v6e-8"),
        ("ct6e-standard-8t", "2x4", 1, "v6e-8"),
        ("ct6e-standard-4t", "2x4", 2, "v6e-8"),
        ("ct6e-standard-1t", "", 1, "v6e-1"),
    ],
)
def test_the_slice_of_a_group_of_somebody_else(kind: str, topology: str, size: int, slice: str) -> None:
    applied = [{"acceleratorTopology": topology}] if topology else []
    fields = {"description": "", "targetSize": size, "status": {"appliedAcceleratorTopologies": applied}}
    now = status([machine(number) for number in range(size)], **fields)
    vms = [vm(number, machineType=f"x/machineTypes/{kind}") for number in range(size)]
    found = read_hosts(TPU, now, vms).slice
    assert found and (found.name, found.hosts) == (slice, size)
    with pytest.raises(UserError, match="which podrun does not know"):
        read_hosts(TPU, now, [vm(number, machineType="n2-standard-8") for number in range(size)])


def test_rows() -> None:
    """Only groups of podrun are rows."""
    groups = [
        group(),
        group(name="b", description="of a colleague"),
        group(name="c", description="podrun: v6e-8, reserved"),
    ]
    vms = [{"labels": {"podrun-tpu": "my-tpu"}, "status": state} for state in ("RUNNING", "TERMINATED")]
    rows = read_rows(TpuName(None, ZONE), groups, vms)
    assert [(row.name, row.kind, row.state, row.cost, row.is_dead) for row in rows] == [
        ("my-tpu", "v5p-16", "1 RUNNING, 1 TERMINATED", Cost.SPOT, True),
        ("c", "v6e-8", "PENDING", Cost.RESERVED, False),
    ]


FETCH = "ERROR: (gcloud.compute.instance-groups.managed.create) Could not fetch resource:\n - "


@pytest.mark.parametrize("is_compute", [True, False])
@pytest.mark.parametrize(
    ("text", "kind", "what"),
    [
        (
            "The zone 'projects/p/zones/z' does not have enough resources available to fulfill the request.",
            UnavailableError,
            "no free machines .* --zones",
        ),
        (
            "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            UnavailableError,
            "no free machines of this type in us-central1-a now",
        ),
        (
            "Quota 'TPUS_PER_TPU_FAMILY' exceeded.  Limit: 0.0 in region us-central1.",
            UnavailableError,
            "quota of Compute Engine left .*tpu/docs/quota",
        ),
        (
            "Constraint constraints/compute.vmExternalIpAccess violated for project 1234.",
            UserError,
            "--internal-ips.* Cloud NAT in us-central1",
        ),
        (
            "Constraint constraints/compute.requireShieldedVm violated for project 1",
            UserError,
            "--gcloud shielded-secure-boot",
        ),
        (
            "Location z violates constraint constraints/gcp.resourceLocations on the resource",
            UserError,
            "choose a zone that it allows",
        ),
        (
            "Constraint constraints/compute.trustedImageProjects violated for project p.",
            UserError,
            "a policy of your organization",
        ),
        (
            "The resource 'projects/p/global/networks/default' was not found",
            UserError,
            "no network `default`; .*--network",
        ),
        (
            "The resource 'projects/p/global/networks/net' was not found",
            UserError,
            "no such network; .*networks list --project=p1",
        ),
        (
            "The resource 'projects/p/regions/r/subnetworks/s' was not found",
            UserError,
            "give --subnetwork: .*region:us-central1",
        ),
        ("IP_SPACE_EXHAUSTED: Instance 'x' creation failed", UserError, "no free addresses"),
        (
            "The user does not have access to service account '1-compute@developer.gserviceaccount.com'.  User: 'me@x.com'.  "
            "Ask a project owner to grant you the iam.serviceAccountUser role on the service account",
            UserError,
            "roles/iam.serviceAccountUser",
        ),
        ("The resource 'projects/p/serviceAccounts/a@b' was not found", UserError, "no such service account"),
        (
            "Specified reservation projects/p/reservations/r does not exist.",
            UserError,
            "no such reservation in us-central1-a",
        ),
        (
            "Specified reservation r does not have available resources for the request.",
            UnavailableError,
            "the reservation has no free machines",
        ),
        ("Cannot use it: it requires reservation to be in READY state", UnavailableError, "has not begun yet"),
        (
            "CONDITION_NOT_MET: Unsupported TPU configuration: 2x2x3",
            UserError,
            "no TPU of this topology; `podrun slices`",
        ),
        (
            "Machine type with name 'ct6e-standard-4t' does not exist in zone 'us-central1-a'.",
            UserError,
            "us-central1-a has no machines of this type",
        ),
        ("The project is not allowed to use the machine type tpu7x-standard-4t", UserError, "has not opened this type"),
        (
            "The resource 'projects/ubuntu-os-accelerator-images/global/images/family/x' was not found",
            UserError,
            "what --runtime-version may be",
        ),
        ("The resource 'projects/p/zones/z/disks/tokens' was not found", UserError, "no such disk in us-central1-a"),
    ],
)
def test_what_machines_lack(is_compute: bool, text: str, kind: type[Exception], what: str) -> None:
    """The advice is the same whichever of Google's APIs says it."""
    verb = Verb("x", "create", is_compute=is_compute)
    with pytest.raises(kind, match=rf"^TPU my-tpu: (.|\n)*{what}") as raised:
        raise explain(verb, TPU, 1, FETCH + text, "gcloud x")
    assert str(raised.value).splitlines()[1].startswith(f"gcloud said: {text[:100]}")


@pytest.mark.parametrize(
    ("verb", "err", "kind", "what"),
    [
        (
            "create",
            f"{FETCH}Required 'compute.instanceTemplates.create' permission for 'projects/p'",
            UserError,
            "may not create it; .*roles/compute.instanceAdmin.v1",
        ),
        (
            "describe",
            f"{FETCH}Required 'compute.x.get' permission for 'projects/p'",
            UserError,
            "may not look at it; .*roles/compute.viewer",
        ),
        (
            "describe",
            "ERROR: (g) Compute Engine API has not been used in project 1 before or it is disabled.",
            UserError,
            "`gcloud services enable compute.googleapis.com --project=p1`",
        ),
        (
            "create",
            "ERROR: (g) unrecognized arguments: --target-size-policy-mode=bulk",
            UserError,
            "gcloud is too old .*`gcloud components update`",
        ),
        (
            "create",
            "ERROR: (g) argument --provisioning-model: Invalid choice: 'FLEX_START'.",
            UserError,
            "gcloud is too old",
        ),
        ("describe", "ERROR: (g) Unknown zone", UserError, "there is no zone us-central1-a"),
        ("describe", f"{FETCH}The resource 'projects/nobody' was not found", UserError, "no such project"),
        (
            "create",
            f"{FETCH}The resource 'projects/p/zones/z/instanceGroupManagers/x' already exists",
            UserError,
            "of that name already",
        ),
        ("create", f"{FETCH}Invalid value for field 'resource.x': ''. ", UserError, "Google refuses the request"),
        (
            "create",
            f"{FETCH}Internal error. Please try again or contact Google Support.",
            UnavailableError,
            "no answer now",
        ),
        (
            "create",
            "ERROR: (g) You do not currently have an active account selected.",
            UserError,
            "`gcloud auth login`",
        ),
        ("delete", "ERROR: (g) Something new", UserError, "gcloud has failed; try `gcloud x` by hand"),
    ],
)
def test_what_compute_engine_refuses(verb: str, err: str, kind: type[Exception], what: str) -> None:
    with pytest.raises(kind, match=rf"^TPU my-tpu: (.|\n)*{what}"):
        raise explain(Verb("x", verb, is_compute=True), TPU, 1, err, "gcloud x")


def test_a_list_that_lacks_something_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """gcloud compute prints what it has got, warns, and ends with exit code 0."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    warning = "WARNING: Some requests did not succeed.\n - Required 'compute.groups.list' permission for 'x'\n\n"
    make_gcloud(tmp_path, out="[]\n", err=warning)
    with pytest.raises(UserError, match=r"roles/compute.viewer\ngcloud said: Required 'compute"):
        group_service.list_rows(TpuName(None, ZONE))

"""`podrun tpu up|down|list` on Compute Engine, with an executable `gcloud` that keeps a ledger of all that was made."""

from __future__ import annotations

import re
from itertools import count, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from podrun.launcher.engines.tpu import group_service
from podrun.launcher.engines.tpu.gcloud import TpuName
from podrun.launcher.engines.tpu.order import Order, make_order
from podrun.launcher.inventory.find import find_pod
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.runtime.contract import UnavailableError, UserError

from ...conftest import Sandbox
from ...gcloud import ZONE, Service, first_on_path, interrupt_held
from ...tiers import mostly_long, nightly
from .conftest import Podrun

WHERE = ("my-tpu", "--zone", ZONE)
UP = ("tpu", "up", *WHERE, "--slice", "v5p-16", "--spot", "--yes")
DOWN = ("tpu", "down", *WHERE, "--yes")
TEMPLATE = f"templates /my-tpu-{ZONE}"
POLICY = f"policies us-central1/my-tpu-{ZONE}"
GROUP = f"groups {ZONE}/my-tpu"
ALL = [TEMPLATE, POLICY, GROUP]


@pytest.fixture(autouse=True)
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    """Service of the gcloud that is found first. podrun looks for a lost group some times, however long that takes."""
    monkeypatch.setattr(group_service, "time", SimpleNamespace(monotonic=count().__next__, sleep=lambda _: None))
    monkeypatch.setattr(group_service, "_APPEARS", 4)
    return Service(first_on_path(tmp_path, monkeypatch))


def fail_at(service: Service, **faults: Any) -> None:
    """Have gcloud fail at a command, such as `managed create`, once for each fault."""
    service.change_compute(faults={key.replace("_", " ", 1).replace("0", "-"): value for key, value in faults.items()})


# --- up, list, down -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slice", "machine", "image", "size", "topology"),
    [
        *mostly_long(
            (
                ("v5p-8", "ct5p-hightpu-4t", "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", 1, None),
                ("v5p-32", "ct5p-hightpu-4t", "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", 4, "2x2x4"),
                ("v6e-8", "ct6e-standard-8t", "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", 1, None),
                ("v6e-16", "ct6e-standard-4t", "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", 4, "4x4"),
                ("tpu7x-16", "tpu7x-standard-4t", "ubuntu-accel-2404-amd64-tpu-tpu7x", 2, "2x2x2"),
            ),
            lambda _, case: case[0] in ("v6e-8", "tpu7x-16"),
        ),
        *nightly(
            ("v6e-1", "ct6e-standard-1t", "ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e", 1, None),
            ("tpu7x-2", "tpu7x-standard-1t", "ubuntu-accel-2404-amd64-tpu-tpu7x", 1, None),
            ("tpu7x-8", "tpu7x-standard-4t", "ubuntu-accel-2404-amd64-tpu-tpu7x", 1, None),
        ),
    ],
)
def test_up_use_and_down(
    service: Service, podrun: Podrun, slice: str, machine: str, image: str, size: int, topology: str | None
) -> None:
    """A TPU of each generation: its parts, its hosts, and nothing of it at the end."""
    done = podrun("tpu", "up", *WHERE, "--slice", slice, "--yes")
    assert done.code == 0, done.err
    assert re.search(r"made as +an instance group of Compute Engine\n", done.out)
    assert f"my-tpu is ready: podrun --tpu my-tpu --zone {ZONE} train.yaml\n" in done.out
    assert service.ledger == ([TEMPLATE, POLICY, GROUP] if topology else [TEMPLATE, GROUP])
    template = service.compute["templates"][f"/my-tpu-{ZONE}"]["options"]
    assert (template["machine-type"], template["image-family"]) == (machine, image)
    group = service.compute["groups"][f"{ZONE}/my-tpu"]
    assert (group["size"], group["topology"] or None, group["repairs"]) == (size, topology, topology is None)
    pod = find_pod(PodRequest(inventories={"tpu": "my-tpu"}, refinements={"zone": ZONE}))
    assert (pod.slice.name, len(pod.hosts), pod.platform) == (slice, size, "tpu")
    assert (pod.hosts[0].name, pod.hosts[0].address, pod.hosts[0].internal) == ("my-tpu-w-0", "34.1.2.2", "10.0.0.2")
    rows = podrun("tpu", "list", "--zone", ZONE).out.splitlines()
    assert rows[1].split()[:5] == ["my-tpu", slice, "RUNNING", "on", "demand"]
    done = podrun(*DOWN)
    assert done.code == 0 and done.out.endswith("my-tpu is deleted\n"), done.err
    assert service.ledger == []
    assert podrun(*DOWN).out == f"my-tpu is not in {ZONE}: nothing to delete\n"


@pytest.mark.parametrize(
    ("options", "template", "group"),
    [
        (("--spot",), {"provisioning-model": "SPOT", "instance-termination-action": "STOP"}, {}),
        (
            ("--flex-start", "--max-run-duration", "4h", "--valid-until-duration", "2h"),
            {
                "provisioning-model": "FLEX_START",
                "instance-termination-action": "DELETE",
                "max-run-duration": "4h",
                "request-valid-for-duration": "2h",
            },
            {},
        ),
        (
            ("--reservation", "projects/p/reservations/r1"),
            {
                "provisioning-model": "RESERVATION_BOUND",
                "instance-termination-action": "DELETE",
                "reservation": "projects/p/reservations/r1",
                "reservation-affinity": "specific",
            },
            {},
        ),
        (
            ("--network", "net", "--subnetwork", "sub", "--internal-ips", "--service-account", "a@p.iam"),
            {
                "network": "net",
                "subnet": "sub",
                "region": "us-central1",
                "no-address": "",
                "service-account": "a@p.iam",
            },
            {},
        ),
        (
            ("--labels", "team=a,cost=b", "--data-disk", "tokens", "--runtime-version", "my-image"),
            {
                "labels": "podrun-tpu=my-tpu,team=a,cost=b",
                "disk": "name=tokens,device-name=tokens,mode=ro",
                "image-family": "my-image",
            },
            {},
        ),
        (
            ("--gcloud", "tags=a,b", "--gcloud", "boot-disk-size=200GB", "--gcloud", "shielded-secure-boot"),
            {"tags": "a,b", "boot-disk-size": "200GB", "shielded-secure-boot": ""},
            {},
        ),
        (
            ("--gcloud", "maintenance-policy=OTHER", "--gcloud", "group.list-managed-instances-results=pageless"),
            {"maintenance-policy": "OTHER"},
            {"list-managed-instances-results": "pageless"},
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_options(
    service: Service, podrun: Podrun, options: tuple[str, ...], template: dict[str, str], group: dict[str, str]
) -> None:
    """They reach Google, each at its place."""
    done = podrun("tpu", "up", *WHERE, "--slice", "v6e-16", *options, "--yes")
    assert done.code == 0, done.err
    made = service.compute["templates"][f"/my-tpu-{ZONE}"]["options"]
    assert {key: made.get(key) for key in template} == template
    made = service.compute["groups"][f"{ZONE}/my-tpu"]["options"]
    assert {key: made.get(key) for key in group} == group


def test_flex_start_says_when_it_ends(service: Service, podrun: Podrun) -> None:
    """Before, at its start, and in the list. After its end `up` makes it again."""
    service.change_compute(ends="2030-01-31T10:30:00.000-08:00")
    up = ("tpu", "up", *WHERE, "--slice", "v6e-16", "--flex-start", "--max-run-duration", "4h", "--yes")
    done = podrun(*up)
    assert done.code == 0 and "Google deletes the machines 4h after their start" in done.out, done.err
    assert "  Google ends its machines at 2030-01-3" in done.out
    assert "my-tpu: Google ends its machines at 2030-01-3" in podrun("tpu", "list", "--zone", ZONE).out
    group = service.compute["groups"][f"{ZONE}/my-tpu"]
    service.change_compute(groups={f"{ZONE}/my-tpu": {**group, "now": "ENDED", "course": []}})
    assert "dead, and still holding quota: my-tpu" in podrun("tpu", "list", "--zone", ZONE).out
    done = podrun(*up)
    assert done.code == 0 and "what is left of the last one (EMPTY)" in done.out, done.err
    assert service.made.count("create group") == 2


def test_a_topology_of_its_own(service: Service, podrun: Podrun) -> None:
    done = podrun("tpu", "up", *WHERE, "--slice", "v5p-256", "--topology", "4x4x8", "--yes")
    assert done.code == 0, done.err
    policy = service.compute["policies"][f"us-central1/my-tpu-{ZONE}"]["options"]
    assert policy["accelerator-topology"] == "4x4x8" and policy["type"] == "HIGH_THROUGHPUT"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--slice", "v5e-16", "--api", "compute"), "--api compute: Compute Engine has no v5litepod in groups"),
        (("--slice", "tpu7x-8", "--api", "queued"), "--api queued: Google has tpu7x only on Compute Engine"),
        (("--slice", "v6e-8", "--reserved"), "on Compute Engine a reservation is named; give --reservation NAME"),
        (("--slice", "v6e-8", "--spot", "--flex-start"), "--spot and --flex-start are two classes of cost"),
        (("--slice", "v6e-8", "--max-run-duration", "4h"), "--max-run-duration is for --flex-start"),
        (("--slice", "v6e-8", "--flex-start", "--valid-until-duration", "3h"), "3h is not between 90s and 2h"),
        (("--slice", "v6e-8", "--flex-start", "--valid-until-duration", "60s"), "60s is not between 90s and 2h"),
        (("--slice", "v5e-8", "--flex-start", "--max-run-duration", "8d"), "8d is not between 10m and 7d"),
        (("--slice", "v6e-8", "--flex-start", "--max-run-duration", "5m"), "5m is not between 10m and 7d"),
        (("--slice", "tpu7x-18432"), "a tpu7x-18432 has 2304 hosts, but an instance group of Compute Engine at most"),
        (("--slice", "v6e-8", "--valid-until-duration", "4h"), "only requests with --flex-start end by themselves"),
        (("--slice", "v6e-16", "--topology", "2x4"), "--topology: 2x4 has 8 chips, but a v6e-16 has 16, as 4x4 has"),
        (("--slice", "v6e-16", "--topology", "4by4"), "--topology: '?4by4'? is no topology"),
        (("--slice", "v6e-16", "--labels", "Team=x"), "--labels: '?Team=x'? is no label"),
        (("--slice", "v6e-16", "--data-disk", "a:rw"), "only one machine can write to a disk"),
        (("--slice", "v6e-16", "--network", "--x"), "--network: '?--x'? cannot be a name"),
        (("--slice", "v6e-16", "--gcloud", "zone=x"), "--gcloud: podrun sets zone itself"),
        (("--slice", "v6e-16", "--gcloud", "labels=a=b"), "--gcloud: give --labels of podrun in place of labels"),
        (("--slice", "v6e-16", "--gcloud", "provisioning-model=SPOT"), "--gcloud: give --spot, --reservation or"),
        (("--slice", "v6e-16", "--gcloud", "group.default-action-on-vm-failure=repair"), "podrun sets default-action"),
        (("--slice", "v6e-16", "--gcloud", "--x y"), "--gcloud: '?--x y'? is no option"),
        (("--slice", "v5e-16", "--gcloud", "group.x=1"), "a queued resource has no such part"),
        (("--slice", "v6e-16", "--flex-start", "--max-run-duration", "soon"), "'?soon'? is no duration"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_mistakes_in_options(service: Service, podrun: Podrun, options: tuple[str, ...], what: str) -> None:
    """gcloud is not even asked."""
    done = podrun("tpu", "up", *WHERE, *options, "--yes")
    assert done.code == 2 and re.search(what, done.err), done.err
    assert not (service.folder / "asked").exists() and "Traceback" not in done.err


def test_names_that_compute_engine_refuses(podrun: Podrun) -> None:
    for name in ("My-tpu", "my_tpu", "x" * 50):
        done = podrun("tpu", "up", name, "--zone", ZONE, "--slice", "v6e-8", "--yes")
        assert done.code == 2 and "cannot be a name on Compute Engine" in done.err, done.err


def test_queued_resources_with_the_same_options(service: Service, podrun: Podrun) -> None:
    more = (
        "--network",
        "net",
        "--subnetwork",
        "sub",
        "--internal-ips",
        "--labels",
        "a=b",
        "--valid-until-duration",
        "6h",
    )
    disk = ("--data-disk", "d:rw", "--service-account", "s@p", "--gcloud", "tags=x", "--gcloud", "shielded-secure-boot")
    done = podrun("tpu", "up", *WHERE, "--slice", "v5e-16", *more, *disk, "--yes")
    assert done.code == 0, done.err
    assert service.asked == [
        f"compute tpus queued-resources create my-tpu --zone={ZONE} --node-id=my-tpu --accelerator-type=v5litepod-16 "
        "--runtime-version=v2-alpha-tpuv5-lite --network=net --subnetwork=sub --service-account=s@p "
        "--valid-until-duration=6h --internal-ips --labels=a=b "
        f"--data-disk=source=projects/my-project/zones/{ZONE}/disks/d,mode=read-write --tags=x --shielded-secure-boot "
        "--quiet --format=json"
    ]
    done = podrun("tpu", "up", "other", "--zone", ZONE, "--slice", "v5e-16", "--flex-start", "--yes")
    assert done.code == 0, done.err
    assert service.asked[1].startswith("alpha compute tpus queued-resources create other ")
    assert " --provisioning-model=FLEX_START --max-run-duration=7d " in service.asked[1]


def test_up_again_creates_nothing(service: Service, podrun: Podrun) -> None:
    assert podrun(*UP).code == 0
    before = service.made
    done = podrun(*UP)
    assert done.code == 0 and "my-tpu is ready" in done.out and service.made == before, done.err


def test_another_one_of_that_name(service: Service, podrun: Podrun) -> None:
    assert podrun(*UP).code == 0
    for options, what in (
        (
            ("--slice", "v5p-32", "--spot"),
            "there is a v5p-16 2x2x2 of that name (RUNNING), but the order is for a v5p-32",
        ),
        (("--slice", "v5p-16"), "there is one of that name, but it is spot, and the order is on demand"),
        (("--slice", "v5e-16"), "there is a TPU of that name already, in an instance group of Compute Engine"),
    ):
        done = podrun("tpu", "up", *WHERE, *options, "--yes")
        assert done.code == 2 and what in done.err and f"podrun tpu down my-tpu --zone {ZONE}`" in done.err, done.err
    assert service.ledger == ALL


def test_up_waits_for_machines(service: Service, podrun: Podrun) -> None:
    stockout = "ZONE_RESOURCE_POOL_EXHAUSTED: The zone does not have enough resources available."
    service.change_compute(courses=[["PENDING", [stockout, stockout], ["STAGING", "RUNNING"], "RUNNING"]])
    done = podrun(*UP)
    assert done.code == 0, done.err
    told = [line[9:] for line in done.out.splitlines() if re.match(r"\d\d:\d\d:\d\d ", line)]
    assert told == [
        "my-tpu: creating it (v5p-16, spot)",
        "my-tpu: 2 no machine (CREATING), in the queue until enough machines are free",
        "my-tpu: 1 STAGING (CREATING), 1 RUNNING, Google starts the machines",
    ]


def test_without_the_other_api(service: Service, podrun: Podrun) -> None:
    """Projects that are new have only Compute Engine, old ones perhaps only TPU VMs."""
    disabled = "ERROR: (g) PERMISSION_DENIED: Cloud TPU API has not been used in project p before or it is disabled."
    assert podrun(*UP).code == 0
    for argv in (("tpu", "list", "--zone", ZONE), DOWN):
        service.change(
            errors={
                f"{group} {verb}": [disabled]
                for group in ("queued-resources", "tpu-vm")
                for verb in ("list", "describe")
            }
        )
        done = podrun(*argv)
        assert done.code == 0 and "my-tpu" in done.out, done.err
    assert service.ledger == []
    service.change(errors={"queued-resources list": [disabled]})
    fail_at(service, managed_list=["ERROR: (g) Compute Engine API has not been used in project p"])
    done = podrun("tpu", "list", "--zone", ZONE)
    assert done.code == 2 and "the Cloud TPU API is not enabled" in done.err


# --- faults ---------------------------------------------------------------------------------------------------------------


STAGES = ("instance0templates_create", "resource0policies_create", "managed_create")
FAULTS = ("dies", "ERROR: (g) Could not fetch resource:\n - Quota 'TPUS' exceeded. Limit: 0.0", "hangs")


@pytest.mark.parametrize(
    ("fault", "stage"), mostly_long(product(FAULTS, STAGES), lambda number, _: number % (len(STAGES) + 1) == 0)
)
def test_nothing_is_left_after_a_fault(
    service: Service, podrun: Podrun, monkeypatch: pytest.MonkeyPatch, stage: str, fault: str
) -> None:
    """Google may have done it or not."""
    if fault == "hangs":
        monkeypatch.setattr(group_service, "_CREATE_LIMIT", 5.0)
    fail_at(service, **{stage: [fault]})
    done = podrun(*UP)
    assert done.code == 69 and "Traceback" not in done.err, done.err
    assert service.ledger == []
    assert podrun(*UP).code == 0 and service.ledger == ALL


def test_what_cannot_be_undone_is_named_and_down_removes_it(service: Service, podrun: Podrun) -> None:
    outage = "ERROR: gcloud crashed (ConnectionError): Max retries exceeded"
    fail_at(service, managed_create=["dies"], managed_delete=[outage])
    done = podrun(*UP)
    assert (
        done.code == 69 and "could not be deleted" in done.err and f"podrun tpu down my-tpu --zone {ZONE}" in done.err
    )
    assert service.ledger == ALL
    assert podrun(*DOWN).code == 0 and service.ledger == []


@pytest.mark.parametrize("stage", ["managed_delete", "resource0policies_delete", "instance0templates_delete"])
def test_a_second_down_finds_what_the_first_has_left(service: Service, podrun: Podrun, stage: str) -> None:
    assert podrun(*UP).code == 0
    fail_at(service, **{stage: ["ERROR: gcloud crashed (ConnectionError): Max retries exceeded"]})
    done = podrun(*DOWN)
    assert done.code == 69 and "Traceback" not in done.err
    left = service.ledger
    assert left and (GROUP in left) == (stage == "managed_delete")
    done = podrun(*DOWN)
    assert done.code == 0 and service.ledger == [], done.err
    assert GROUP in left or "but there is left of it: " in done.out


def order(slice: str, spot: bool = True) -> Order:
    return make_order(TpuName("my-tpu", ZONE, typed="TPU"), slice, None, spot, False)


@pytest.mark.parametrize(
    ("slice", "before"),
    mostly_long(
        product(("v5p-8", "v5p-16"), ([], ["templates"], ["templates", "policies"])),
        lambda number, _: number in (0, 5),
    ),
    ids=str,
)
def test_two_podruns_at_once(service: Service, podrun: Podrun, slice: str, before: list[str]) -> None:
    """The second one, which has seen no TPU, deletes nothing of the first one's."""
    assert podrun("tpu", "up", *WHERE, "--slice", slice, "--spot", "--yes").code == 0
    for kind in before:  # so that the second one gets as far as the group
        service.change_compute(**{kind: {}})
    running = service.compute["groups"]
    group_service.create(order(slice), lambda: 0)
    assert service.compute["groups"] == running
    assert "delete group" not in service.made
    assert service.ledger == (ALL if slice == "v5p-16" else [TEMPLATE, GROUP])


def test_a_failure_undoes_only_what_this_call_has_made(service: Service) -> None:
    """Leave a group that another podrun makes while this one fails."""
    group_service.create(order("v5p-16"), lambda: 0)
    running = service.compute["groups"]
    service.change_compute(templates={}, policies={})
    fail_at(service, managed_create=["ERROR: (g) Could not fetch resource:\n - Invalid value for field 'x'"])
    with pytest.raises(UserError, match="Google refuses the request"):
        group_service.create(order("v5p-16"), lambda: 0)
    assert service.compute["groups"] == running and "delete group" not in service.made


def test_a_group_that_appears_after_its_answer_is_lost(service: Service, podrun: Podrun) -> None:
    fail_at(service, managed_create=["late"])
    done = podrun(*UP)
    assert done.code == 69 and service.ledger == [], done.err
    service.change_compute(looks=2)
    fail_at(service, managed_create=["ERROR: gcloud crashed (ConnectionError): Max retries exceeded"])
    done = podrun(*UP)
    assert done.code == 69 and "a group may still appear, and cost" in done.err, done.err
    assert service.ledger == []


def test_an_api_that_refuses_does_not_hide_the_other(service: Service, podrun: Podrun) -> None:
    """Refuse an account that has roles of Compute Engine only."""
    denied = "ERROR: (g) PERMISSION_DENIED: Permission 'tpu.nodes.list' denied on 'projects/p/locations/z'"

    def refuse() -> None:
        groups = ("queued-resources", "tpu-vm")
        service.change(errors={f"{group} {verb}": [denied] * 9 for group in groups for verb in ("list", "describe")})

    assert podrun(*UP).code == 0
    refuse()
    done = podrun("tpu", "list", "--zone", ZONE)
    assert done.code == 0 and "my-tpu" in done.out and "roles/tpu.viewer" in done.err, done.err
    assert len(find_pod(PodRequest(inventories={"tpu": "my-tpu"}, refinements={"zone": ZONE})).hosts) == 2
    assert podrun(*DOWN).code == 0 and service.ledger == []
    refuse()
    done = podrun(*DOWN)  # it may be a TPU VM
    assert done.code == 2 and "roles/tpu.viewer" in done.err
    assert podrun("tpu", "list", "--zone", ZONE).code == 2


def test_what_a_killed_podrun_has_left_is_replaced(service: Service, podrun: Podrun) -> None:
    """With the options that are asked for now."""
    assert podrun(*UP, "--network", "old").code == 0
    service.change_compute(groups={})
    assert podrun(*UP, "--network", "new").code == 0
    assert service.compute["templates"][f"/my-tpu-{ZONE}"]["options"]["network"] == "new"


@pytest.mark.parametrize("kind", ["templates", "policies", "groups"])
def test_what_podrun_has_not_made_is_left_alone(service: Service, podrun: Podrun, kind: str) -> None:
    """Leave it alone whatever its name is."""
    assert podrun(*UP).code == 0
    compute = service.compute
    ((key, row),) = compute[kind].items()
    foreign = {"templates": {}, "policies": {}, "groups": {}, kind: {key: {**row, "description": "of a colleague"}}}
    service.change_compute(**foreign)
    done = podrun(*UP)
    assert done.code == 2 and "leaves it alone" in done.err, done.err
    assert service.ledger == [f"{kind} {key}"]
    done = podrun(*DOWN)
    assert service.ledger == [f"{kind} {key}"] and (done.code == 2) == (kind == "groups"), done.err
    assert podrun("tpu", "list", "--zone", ZONE).out.startswith("no TPU VMs")


QUOTA = "QUOTA_EXCEEDED: Quota 'TPUS_PER_TPU_FAMILY' exceeded. Limit: 0.0 in region us-central1."


def test_a_group_that_cannot_get_machines_is_deleted(service: Service, podrun: Podrun) -> None:
    """It would go on trying, and cost from the day on which it gets them."""
    service.change_compute(courses=[["PENDING", [QUOTA, QUOTA]]])
    done = podrun(*UP)
    assert done.code == 69 and "QUOTA_EXCEEDED" in done.err and "no quota of Compute Engine left" in done.err, done.err
    assert "it was deleted again, so that it does not cost" in done.err
    assert service.ledger == []


def test_a_slice_with_a_part_of_its_machines_is_not_used(service: Service, podrun: Podrun) -> None:
    assert podrun(*UP).code == 0
    service.change_compute(
        groups={f"{ZONE}/my-tpu": {**service.compute["groups"][f"{ZONE}/my-tpu"], "now": ["RUNNING", ""]}}
    )
    with pytest.raises(UnavailableError, match="it is not ready: 1 RUNNING, 1 missing, its machines were taken away"):
        find_pod(PodRequest(inventories={"tpu": "my-tpu"}, refinements={"zone": ZONE}))
    rows = podrun("tpu", "list", "--zone", ZONE).out
    assert "holding quota: my-tpu" in rows
    done = podrun(*UP)
    assert done.code == 0 and "holds quota and is deleted first" in done.out, done.err
    assert service.made[-6:] == [
        *("delete group", "delete policy", "delete template"),
        *("create template", "create policy", "create group"),
    ]


def test_answers_that_are_none(service: Service, podrun: Podrun) -> None:
    """A line before the answer is skipped; one that is cut is asked for again."""
    assert podrun(*UP).code == 0
    fail_at(service, managed_describe=["warns"])
    assert podrun(*UP).code == 0
    fail_at(service, managed_describe=["cut"])
    done = podrun(*UP)
    assert done.code == 69 and "gcloud's answer is not JSON but " in done.err and "Traceback" not in done.err
    service.change_compute(groups={}, policies={}, templates={}, courses=[["PENDING", "RUNNING"]], made=0)
    fail_at(service, managed_describe=["", "", "cut", "warns"])
    done = podrun(*UP)
    assert done.code == 0 and "(podrun tries again, up to 10 min)" in done.out, done.err


@pytest.mark.long
def test_a_list_of_ten_thousand(service: Service, podrun: Podrun) -> None:
    assert podrun(*UP).code == 0
    group = service.compute["groups"][f"{ZONE}/my-tpu"]
    rows = {f"{ZONE}/tpu-{n}": {**group, "name": f"tpu-{n}", "size": 1, "now": "RUNNING"} for n in range(10_000)}
    service.change_compute(groups=rows)
    done = podrun("tpu", "list", "--zone", ZONE)
    assert done.code == 0 and len(done.out.splitlines()) == 10_001, done.err[:500]


@pytest.mark.parametrize(
    ("stage", "left"),
    mostly_long(
        (
            ("instance-templates create", []),
            ("resource-policies create", []),
            ("managed create", ALL),
            ("managed list-instances", ALL),
        ),
        lambda number, _: number % 2 == 0,
    ),
)
def test_ctrl_c_at_every_stage(service: Service, sandbox: Sandbox, podrun: Podrun, stage: str, left: list[str]) -> None:
    """Before the group nothing is left. The group stays in the queue, as podrun says, and `down` removes it all."""
    service.change_compute(faults={stage: ["hold"]}, courses=[["PENDING"]])
    done = interrupt_held(service, sandbox, *UP)
    assert done.returncode == 130
    assert (
        "podrun: Ctrl-C: podrun ends as soon as Google has answered." in done.stderr and "Ctrl-C again" in done.stderr
    )
    assert ("podrun tpu down my-tpu" if left else "podrun: interrupted; nothing is left of my-tpu\n") in done.stdout
    assert service.ledger == left
    assert podrun(*DOWN).code == 0 and service.ledger == []


# --- hosts ----------------------------------------------------------------------------------------------------------------


def test_hosts_are_in_the_order_of_the_workers(service: Service, podrun: Podrun) -> None:
    """Google's metadata says it; a machine with another key gets another file of known hosts."""
    service.change_compute(order=[1, 0])
    assert podrun(*UP).code == 0

    def find() -> Any:
        return find_pod(PodRequest(inventories={"tpu": "my-tpu"}, refinements={"zone": ZONE}))

    pod = find()
    assert [host.internal for host in pod.hosts] == ["10.0.0.3", "10.0.0.2"]
    assert pod.ssh.known_hosts.name.startswith("group-7001-") and pod.ssh.host_keys == "accept-new"
    group = service.compute["groups"][f"{ZONE}/my-tpu"]
    service.change_compute(groups={f"{ZONE}/my-tpu": {**group, "number": 2}}, order=[0, 1])
    assert [host.internal for host in find().hosts] == ["10.0.0.2", "10.0.0.3"]
    assert find().ssh.known_hosts != pod.ssh.known_hosts


def test_the_hosts_of_a_large_slice(service: Service, podrun: Podrun) -> None:
    """Ask one machine for the order: the metadata of all are more than podrun reads of an answer."""
    hosts = 1536
    order = [*range(1, hosts), 0]
    addresses = [f"10.0.{n // 250}.{n % 250 + 2}" for n in range(hosts)]
    service.change_compute(order=order, addresses=addresses)
    done = podrun("tpu", "up", *WHERE, "--slice", "v5p-12288", "--spot", "--yes")
    assert done.code == 0, done.err
    assert service.compute["groups"][f"{ZONE}/my-tpu"]["options"]["list-managed-instances-results"] == "paginated"
    pod = find_pod(PodRequest(inventories={"tpu": "my-tpu"}, refinements={"zone": ZONE}))
    assert [host.internal for host in pod.hosts] == [*addresses[1:], addresses[0]]


def test_a_group_that_podrun_has_not_made_can_be_used(service: Service, podrun: Podrun) -> None:
    assert podrun(*UP).code == 0
    group = service.compute["groups"][f"{ZONE}/my-tpu"]
    service.change_compute(groups={f"{ZONE}/my-tpu": {**group, "description": ""}})
    assert find_pod(PodRequest(inventories={"tpu": "my-tpu"}, refinements={"zone": ZONE})).slice.name == "v5p-16"


def test_no_such_name(service: Service) -> None:
    with pytest.raises(UserError, match=f"there is no such TPU VM in {ZONE}"):
        find_pod(PodRequest(inventories={"tpu": "nothing"}, refinements={"zone": ZONE}))


def test_a_queued_resource_of_that_name_can_still_be_used(service: Service, podrun: Podrun) -> None:
    """Use one that an older podrun has made for v6e."""
    service.make(tpu={"nodeSpec": [{"node": {"acceleratorType": "v6e-8"}, "nodeId": "my-tpu"}]})
    words = ("tpu", "up", *WHERE, "--slice", "v6e-8", "--spot", "--yes")
    for more in ((), ("--api", "queued")):
        done = podrun(*words, *more)
        assert done.code == 0 and "my-tpu is ready" in done.out, done.err
        told = (
            "my-tpu is there already, in queued resources, Google's legacy TPU API; podrun goes on with it" in done.out
        )
        assert told == (not more)
    done = podrun(*words, "--api", "compute")
    assert done.code == 2 and "there is a TPU of that name already, in queued resources" in done.err
    assert service.asked == []
    words = ("tpu", "up", "other", "--zone", ZONE, "--slice", "v6e-8", "--spot", "--yes")
    service.change(courses=[["WAITING_FOR_RESOURCES", "ACTIVE"]])
    assert podrun(*words, "--api", "compute").code == 0
    done = podrun(*words, "--api", "queued")
    assert done.code == 2 and "in an instance group of Compute Engine" in done.err

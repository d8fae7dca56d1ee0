"""Create TPUs on Compute Engine again, in the first of several zones that has machines; and what they cost."""

from __future__ import annotations

import json
import os
import time
from datetime import datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from podrun.launcher.engines.tpu import keep, provision
from podrun.launcher.engines.tpu.gcloud import TpuName
from podrun.launcher.engines.tpu.keep import RenewableTpu
from podrun.launcher.engines.tpu.order import Order, Settings, make_order
from podrun.launcher.engines.tpu.prices import Price, read_prices
from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.pod.pod import Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.runtime.contract import UnavailableError, UserError

from ....gcloud import Service

A, B, C = "us-central1-a", "us-east5-b", "europe-west4-a"
POD = simulated_pod(parse_slice("cpu-1x1"))
QUOTA = "QUOTA_EXCEEDED: Quota 'TPUS_PER_TPU_FAMILY' exceeded. Limit: 0.0"
STOCKOUT = "ZONE_RESOURCE_POOL_EXHAUSTED: The zone does not have enough resources available."
NO_TYPE = (
    "ERROR: (g) Could not fetch resource:\n - Machine type with name 'ct5p-hightpu-4t' does not exist in zone 'z'."
)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    """Make the gcloud that is found first. podrun looks as often as it can, and leaves a zone after some looks.

    By the time they take, a slow machine would leave each zone before its machines are there.
    """
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(provision, "PAUSE", 0.01)
    monkeypatch.setattr(
        provision, "time", SimpleNamespace(monotonic=count().__next__, time=time.time, sleep=time.sleep)
    )
    monkeypatch.setattr(keep, "_ZONE_WAIT", 20)
    return Service(tmp_path)


@pytest.fixture
def told() -> list[str]:
    """Collect what the user is told."""
    return []


def order(slice: str = "v5p-16", **options: Any) -> Order:
    return make_order(TpuName("my-tpu", A, typed="TPU"), slice, None, **{"spot": True, "reserved": False, **options})


def kept(*zones: str, places: list[str] | None = None, slice: str = "v5p-16", **options: Any) -> RenewableTpu:
    """Return the TPU; `places` gets the zone of each pod that is asked for."""

    def find(tpu: TpuName) -> Pod:
        if places is not None:
            places.append(tpu.zone)
        return POD

    return RenewableTpu(order(slice), find, zones, **options)


def now(service: Service, zone: str, step: Any) -> None:
    """Put the group of a zone into a state."""
    groups = service.compute["groups"]
    service.change_compute(groups={**groups, f"{zone}/my-tpu": {**groups[f"{zone}/my-tpu"], "now": step, "course": []}})


@pytest.mark.parametrize(
    ("step", "what"),
    [
        ("RUNNING", ""),
        ("TERMINATED", "my-tpu was taken away by Google (2 TERMINATED)"),
        (["TERMINATED", "RUNNING"], "my-tpu was taken away by Google (1 TERMINATED, 1 RUNNING)"),
        (["RUNNING", ""], "my-tpu was taken away by Google (1 RUNNING, 1 missing)"),
        ("DELETING", ""),
    ],
    ids=str,
)
def test_what_is_taken(service: Service, told: list[str], step: Any, what: str) -> None:
    tpu = kept()
    assert tpu.renew(told.append, lambda: 0) == POD
    now(service, A, step)
    told.clear()
    assert tpu.why_taken(0.0, told.append, lambda: 0) == what
    assert told == (["my-tpu was deleted by a user, so it is not created again"] if step == "DELETING" else [])


END = "2030-01-31T10:30:00.000-08:00"


@pytest.mark.parametrize("gone", ["ENDED", "DELETING", "TERMINATED"])
@pytest.mark.parametrize("slice", ["v6e-8", "v6e-16"])
def test_the_end_of_flex_start_is_no_preemption(
    service: Service, told: list[str], monkeypatch: pytest.MonkeyPatch, slice: str, gone: str
) -> None:
    """Google deletes the machines after their time. Before it they may be taken, and are created again."""
    service.change_compute(ends=END)
    flex = order(slice, spot=False, flex=True, settings=Settings(max_run="4h"))
    tpu = RenewableTpu(flex, lambda _: POD)
    assert tpu.renew(told.append, lambda: 0) == POD
    assert any(line.startswith("my-tpu: Google ends its machines at 2030-01-31 ") for line in told)
    if gone == "TERMINATED":
        now(service, A, gone)
        assert tpu.why_taken(0.0, told.append, lambda: 0).startswith("my-tpu was taken away by Google")
        assert tpu.over == ""
    now(service, A, gone)
    monkeypatch.setattr(time, "time", lambda: datetime.fromisoformat(END).timestamp() + 20)
    assert tpu.why_taken(0.0, told.append, lambda: 0) == ""
    assert "my-tpu has ended: machines of --flex-start run for at most 4h, so it is not created again" in tpu.over
    assert told[-1] == tpu.over and "its machines are gone, and `podrun tpu down my-tpu" in tpu.remark
    made = service.made.count("create group")
    if gone != "DELETING":  # the same command later
        service.change_compute(ends="2031-01-31T10:30:00.000-08:00")
        assert RenewableTpu(flex, lambda _: POD).renew(told.append, lambda: 0) == POD
        assert service.made.count("create group") == made + 1


def test_five_preemptions_and_two_zones(service: Service, told: list[str]) -> None:
    """Each time the zone that has taken them has no more; there are never two groups, and none at the end."""
    places: list[str] = []
    tpu = kept(B, places=places)
    for number in range(6):
        zone, other = (A, B) if number % 2 == 0 else (B, A)
        service.change_compute(by_zone={zone: ["PENDING", "RUNNING"], other: ["PENDING", [QUOTA, QUOTA]]})
        assert tpu.renew(told.append, lambda: 0) == POD
        assert service.ledger[-1] == f"groups {zone}/my-tpu" and len(service.ledger) == 3
        now(service, zone, "TERMINATED")
        assert tpu.why_taken(0.0, told.append, lambda: 0).startswith("my-tpu was taken away by Google")
    assert places == [A, B, A, B, A, B]
    assert service.compute["most"] == 1
    tpu.delete(told.append, lambda: 0)
    assert service.ledger == []
    assert any(f"{A} has no machines for my-tpu now; the next zone is tried" in line for line in told)


def test_the_machine_of_one_host_is_replaced_by_its_group(service: Service, told: list[str]) -> None:
    """podrun waits, however long that is, and creates nothing."""
    tpu = kept(slice="v6e-8")
    assert tpu.renew(told.append, lambda: 0) == POD
    made = service.made
    group = service.compute["groups"][f"{A}/my-tpu"]
    course = ["TERMINATED", "TERMINATED", "RECREATING", "RECREATING", "PENDING", "STAGING", "RUNNING"]
    service.change_compute(groups={f"{A}/my-tpu": {**group, "course": course}})
    assert tpu.why_taken(0.0, told.append, lambda: 0) == "my-tpu was taken away by Google (1 TERMINATED)"
    assert tpu.renew(told.append, lambda: 0) == POD
    assert service.made == made
    assert "my-tpu: 1 TERMINATED, Google's group replaces the machine" in told


def test_a_slow_repair_is_left_for_another_zone(service: Service, told: list[str]) -> None:
    places: list[str] = []
    tpu = kept(B, places=places, slice="v6e-8")
    assert tpu.renew(told.append, lambda: 0) == POD
    now(service, A, "RECREATING")
    service.change_compute(by_zone={B: ["RUNNING"]})  # at once, however slow this machine is
    assert tpu.renew(told.append, lambda: 0) == POD
    assert places == [A, B] and service.compute["most"] == 1
    assert service.ledger == [f"templates /my-tpu-{B}", f"groups {B}/my-tpu"]


def test_a_restart_of_an_on_demand_slice_is_not_left(
    service: Service, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wait for it without a limit; only a new request is left after the limit of a zone."""
    monkeypatch.setattr(keep, "_ZONE_WAIT", 0.0)
    service.change_compute(courses=[["RUNNING"]])
    places: list[str] = []

    def find(tpu: TpuName) -> Pod:
        places.append(tpu.zone)
        return POD

    tpu = RenewableTpu(order(spot=False), find, (B,))
    assert tpu.renew(told.append, lambda: 0) == POD
    group = service.compute["groups"][f"{A}/my-tpu"]
    course = [["REPAIRING", "RUNNING"], ["REPAIRING", "RUNNING"], ["TERMINATED", "RUNNING"], "RUNNING"]
    service.change_compute(groups={f"{A}/my-tpu": {**group, "course": course}})
    assert tpu.renew(told.append, lambda: 0) == POD
    assert places == [A, A] and service.made.count("create group") == 1


def test_flex_start_waits_longer_in_a_zone(service: Service, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep, "_ZONE_WAIT", 0.0)
    flex = order(spot=False, flex=True)
    service.change_compute(courses=[["PENDING", "PENDING", "PENDING", "RUNNING"]])
    assert RenewableTpu(flex, lambda _: POD, (B,)).renew(told.append, lambda: 0) == POD
    assert list(service.compute["groups"]) == [f"{A}/my-tpu"]


def test_a_repair_that_ends_is_not_left(service: Service, told: list[str]) -> None:
    """The zone where it is goes first, though it is not the first of the list."""
    places: list[str] = []
    service.change_compute(by_zone={A: ["PENDING", [QUOTA]]})
    tpu = kept(B, places=places, slice="v6e-8")
    assert tpu.renew(told.append, lambda: 0) == POD
    group = service.compute["groups"][f"{B}/my-tpu"]
    service.change_compute(
        groups={f"{B}/my-tpu": {**group, "course": ["TERMINATED", "RECREATING", "RUNNING"]}}, by_zone={}
    )
    made = service.made
    assert tpu.renew(told.append, lambda: 0) == POD
    assert places == [B, B] and service.made == made


def test_zones_are_tried_again_and_again_while_there_is_a_queue(service: Service, told: list[str]) -> None:
    """A stockout is no refusal."""
    service.change_compute(by_zone={A: ["PENDING", [STOCKOUT, STOCKOUT]], B: ["PENDING"]})
    ends = [0]

    def stopped() -> int:
        ends[0] += sum("the next zone is tried" in line for line in told) >= 4
        return ends[0]

    assert kept(B).renew(told.append, stopped) is None
    assert service.compute["most"] == 1


def test_but_not_where_all_refuse(service: Service, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep, "_ZONE_WAIT", 600.0)  # a queue that is too slow is no refusal
    service.change_compute(by_zone={A: ["PENDING", [QUOTA, QUOTA]], B: ["PENDING", [QUOTA, QUOTA]]})
    with pytest.raises(UnavailableError, match="QUOTA_EXCEEDED"):
        kept(B).renew(told.append, lambda: 0)
    assert service.ledger == [] and service.made.count("create group") == 10


def test_a_zone_without_this_type_is_left_out(service: Service, told: list[str]) -> None:
    places: list[str] = []
    service.change_compute(faults={"managed create": [NO_TYPE]})
    assert kept(B, places=places).renew(told.append, lambda: 0) == POD
    assert places == [B] and f"{A} is left out from now on" in "\n".join(told)
    assert len(service.ledger) == 3
    service.change_compute(faults={"managed create": [NO_TYPE] * 2}, groups={}, templates={}, policies={})
    with pytest.raises(UserError, match="has no machines of this type"):
        kept(B).renew(told.append, lambda: 0)
    assert service.ledger == []


@pytest.mark.parametrize("fields", [{"description": "of a colleague"}, {"description": "podrun: v6e-16, spot"}])
def test_what_is_not_this_tpu_is_never_deleted(service: Service, told: list[str], fields: Any) -> None:
    """It has the same name, in one of the zones."""
    assert kept().renew(told.append, lambda: 0) == POD
    group = service.compute["groups"][f"{A}/my-tpu"]
    service.change_compute(groups={f"{A}/my-tpu": {**group, **fields}})
    tpu = kept(B)
    assert tpu.renew(told.append, lambda: 0) == POD
    assert sorted(service.compute["groups"]) == [f"{A}/my-tpu", f"{B}/my-tpu"]
    tpu.delete(told.append, lambda: 0)
    alone = kept()
    alone.delete(told.append, lambda: 0)
    assert list(service.compute["groups"]) == [f"{A}/my-tpu"]
    assert any("my-tpu in us-central1-a is left alone" in line for line in told)


def test_an_outage_at_the_end_is_waited_for(service: Service, told: list[str]) -> None:
    tpu = kept()
    assert tpu.renew(told.append, lambda: 0) == POD
    service.change_compute(
        faults={"managed delete": ["ERROR: gcloud crashed (ConnectionError): Max retries exceeded"] * 2}
    )
    tpu.delete(told.append, lambda: 0)
    assert service.ledger == []


def test_queued_resources_in_several_zones(service: Service, told: list[str]) -> None:
    places: list[str] = []
    failed = {"state": "FAILED", "failedData": {"error": {"message": "no capacity"}}}
    service.change(courses=[[failed], ["ACTIVE"]])
    assert kept(B, places=places, slice="v5e-16").renew(told.append, lambda: 0) == POD
    assert places == [B]
    assert [line.split()[3] for line in service.asked] == ["create", "delete", "create"]
    assert f"--zone={A}" in service.asked[0] and f"--zone={B}" in service.asked[2]


# --- the cost -------------------------------------------------------------------------------------------------------------


def test_the_cost_so_far(service: Service, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hours in one zone, one in the other."""
    clock = [1000.0]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    tpu = kept(B, prices={A: Price(4.0, "USD", 8), B: Price(10.0, "USD", 8)}, is_deleted=True)
    assert tpu.remark.startswith("my-tpu had machines for 0.00 h so far (spot)")
    assert tpu.renew(told.append, lambda: 0) == POD
    clock[0] += 7200
    now(service, A, "TERMINATED")
    service.change_compute(by_zone={A: ["PENDING", [QUOTA, QUOTA]]})
    assert tpu.renew(told.append, lambda: 0) == POD
    assert "my-tpu had machines for 2.00 h so far (spot, about 8.00 USD by the price list)" in told
    clock[0] += 3600
    what = "my-tpu had machines for 3.00 h so far (spot, about 18.00 USD by the price list); my-tpu is deleted now"
    assert tpu.remark == what


def sku(text: str, price: float, *regions: str, usage: str = "OnDemand", unit: str = "h") -> Any:
    """Return a SKU as the Cloud Billing Catalog API has it."""
    rate = {
        "startUsageAmount": 0,
        "unitPrice": {"currencyCode": "USD", "units": str(int(price)), "nanos": round(price % 1 * 10**9)},
    }
    return {
        "name": "services/6F81-5844-456A/skus/0000-0000-0000",
        "description": text,
        "category": {"serviceDisplayName": "Compute Engine", "resourceGroup": "TPU", "usageType": usage},
        "serviceRegions": list(regions),
        "pricingInfo": [{"pricingExpression": {"usageUnit": unit, "tieredRates": [rate]}}],
    }


SKUS = [
    sku("TpuV5p running in Iowa", 4.2, "us-central1"),
    sku("Preemptible TpuV5p running in Iowa", 2.1, "us-central1", usage="Preemptible"),
    sku("DWS Defined Duration TpuV5p in Iowa", 2.5, "us-central1"),
    sku("Commitment v1: TpuV5p in Iowa for 1 Year", 1.0, "us-central1", usage="Commit1Yr"),
    sku("Preemptible TpuV6e running in Columbus", 0.9, "us-east5", usage="Preemptible"),
    sku("TpuV5e in Iowa", 1.2, "us-central1"),
    sku("TpuV5p storage", 99.0, "us-central1", unit="GiBy.mo"),
]


@pytest.mark.parametrize(
    ("slice", "options", "price"),
    [
        ("v5p-16", {}, 16.8),
        ("v5p-16", {"spot": False}, 33.6),
        ("v5p-16", {"spot": False, "flex": True}, 20.0),
        ("v5e-16", {"spot": False}, 19.2),
        ("v5e-16", {}, None),
        ("v6e-16", {}, None),
        ("v4-16", {}, None),
    ],
)
def test_prices(tmp_path: Path, slice: str, options: Any, price: float | None) -> None:
    """Per hour of all chips; in other regions there is none in this list."""
    for answer in ({"skus": SKUS, "nextPageToken": ""}, SKUS):
        (tmp_path / "skus.json").write_text(json.dumps(answer))
        prices = read_prices(tmp_path / "skus.json", order(slice, **options), [A, C])
        assert {zone: round(one.per_hour, 6) for zone, one in prices.items()} == ({} if price is None else {A: price})
    if slice == "v6e-16":
        assert str(read_prices(tmp_path / "skus.json", order(slice), [B])[B]) == "14.40 USD per hour (16 x 0.9)"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "is not JSON; save the answer of https://cloudbilling"),
        ("{}", "is no price list: 'skus' is missing"),
        ('{"skus": 3}', "is no price list: 'skus' is missing or wrong"),
        (
            '[{"pricingInfo": [{"pricingExpression": {"tieredRates": [{"unitPrice": {"nanos": -1}}]}}]}]',
            "is no price list",
        ),
        (None, "cannot be read: No such file"),
    ],
)
def test_files_that_are_no_price_list(tmp_path: Path, text: str | None, what: str) -> None:
    path = tmp_path / "skus.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UserError, match=f"^--prices: .*skus.json {what}"):
        read_prices(path, order(), [A])

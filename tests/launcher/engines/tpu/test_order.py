"""Order TPU VMs from Google."""

from __future__ import annotations

import pytest

from podrun.launcher.engines.tpu.gcloud import TpuName
from podrun.launcher.engines.tpu.order import Cost, make_order
from podrun.launcher.engines.tpu.queued_service import create_flags
from podrun.runtime.contract import UserError

from ....gcloud import ZONE

TPU = TpuName("my-tpu", ZONE, "p1", typed="TPU")


@pytest.mark.parametrize(
    ("slice", "kind", "runtime"),
    [
        ("v2-8", "v2-8", "tpu-ubuntu2204-base"),
        ("v3-32", "v3-32", "tpu-ubuntu2204-base"),
        ("v4-64", "v4-64", "tpu-ubuntu2204-base"),
        ("v5e-16", "v5litepod-16", "v2-alpha-tpuv5-lite"),
        ("v5litepod-16", "v5litepod-16", "v2-alpha-tpuv5-lite"),
    ],
)
def test_type_and_system(slice: str, kind: str, runtime: str) -> None:
    order = make_order(TPU, slice, None, spot=False, reserved=False)
    assert order.api == "queued"
    assert create_flags(order) == ["--node-id=my-tpu", f"--accelerator-type={kind}", f"--runtime-version={runtime}"]
    assert make_order(TPU, slice, "other", False, False).runtime == "other"


def test_class_of_cost() -> None:
    spot = make_order(TPU, "v5e-8", None, spot=True, reserved=False)
    reserved = make_order(TPU, "v5e-8", None, spot=False, reserved=True)
    flex = make_order(TPU, "v5e-8", None, False, False, flex=True)
    assert (spot.cost, create_flags(spot)[-1]) == (Cost.SPOT, "--spot")
    assert (reserved.cost, create_flags(reserved)[-1]) == (Cost.RESERVED, "--reserved")
    assert create_flags(flex)[-2:] == ["--provisioning-model=FLEX_START", "--max-run-duration=7d"]


def test_all_mistakes_at_once() -> None:
    with pytest.raises(UserError) as raised:
        make_order(TPU, "v5e-17", "-x", spot=True, reserved=True)
    lines = str(raised.value).splitlines()
    assert lines[0].startswith("--slice: unknown slice 'v5e-17'; nearest: v5litepod-4")
    assert any(line.startswith("--spot and --reserved are two classes of cost") for line in lines)
    assert any(line.startswith("--runtime-version: '-x' cannot be a version") for line in lines)


@pytest.mark.parametrize(
    ("slice", "what"),
    [
        ("gpu-2x8", "--slice: gpu-2x8 is no TPU type; `podrun slices` lists them"),
        ("2xv5e-16", "--slice: 2xv5litepod-16 is 2 slices, but a TPU VM is one; give the type of one"),
    ],
)
def test_what_cannot_be_ordered(slice: str, what: str) -> None:
    with pytest.raises(UserError, match=what):
        make_order(TPU, slice, None, False, False)

"""Several slices that train together: what libtpu is told, and which layouts fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.agent.base.protocol import MULTISLICE
from podrun.launcher.inventory.find import find_pod
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.plan.base_env import multislice_coordinator, multislice_env
from podrun.launcher.pod.pod import Pod
from podrun.runtime.config import Config, check_slice
from podrun.runtime.contract import UserError


def pod(slice: str, number: int | None = None, hosts: str = "h[0-31]") -> Pod:
    return find_pod(PodRequest(slice, inventories={"hosts": hosts}, num_slices=number))


@pytest.mark.parametrize(("slice", "number"), [("2xv5e-64", None), ("v5e-64", 2), ("2xv5e-64", 2)])
def test_every_host_gets_all_four_variables(slice: str, number: int | None) -> None:
    """Number the slices in the order of the hosts, so a stale value of a login never reaches libtpu."""
    both = pod(slice, number)
    for host in range(32):
        env = {**multislice_env(both, host), **multislice_coordinator(both, "10.0.0.1:4321")}
        assert env.keys() == set(MULTISLICE)
        assert (env["MEGASCALE_NUM_SLICES"], env["MEGASCALE_SLICE_ID"]) == ("2", str(host // 16))
        assert env["MEGASCALE_COORDINATOR_ADDRESS"] == "10.0.0.1"
    assert multislice_coordinator(both, "[fd00::1]:4321") == {"MEGASCALE_COORDINATOR_ADDRESS": "fd00::1"}


def test_one_slice_and_other_platforms_get_none() -> None:
    for other in (pod("v5e-64", hosts="h[0-15]"), pod("2xgpu-2x8", hosts="h[0-3]")):
        assert multislice_env(other, 0) == multislice_coordinator(other, "10.0.0.1:1") == {}


def test_a_wrong_number_of_hosts_is_told() -> None:
    with pytest.raises(
        UserError, match="16 hosts, but 2xv5litepod-64 has 32 hosts; give 32 hosts, those of each of its 2"
    ):
        pod("v5e-64", 2, "h[0-15]")
    with pytest.raises(UserError, match="2xv5litepod-64 is 2 slices, not 3"):
        pod("2xv5e-64", 3)


def test_fewer_hosts_are_no_slices(tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text("slice: 2xcpu-2x2\nhosts: h[0-3]\nmin_hosts: 2\n")
    with pytest.raises(UserError, match="2xcpu-2x2 cannot continue with fewer hosts: it is 2 slices"):
        find_pod(PodRequest(pod=file))


def test_parameters_are_not_divided_over_slices() -> None:
    """Keep what is gathered at each layer on the fast network inside of a slice."""
    job = Config.model_validate({"steps": 1, "batch_size": 64, "parallel": {"name": "jit", "mesh": {"fsdp": 8}}})
    check_slice(job, 16, 2)
    with pytest.raises(UserError, match="fsdp 8 does not divide the 4 devices of each of the 2 slices"):
        check_slice(job, 8, 2)
    check_slice(job, 8, 1)

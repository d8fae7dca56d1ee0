"""`--hosts-from gke`: the pod of the slice that a container is a part of, from the variables that GKE sets."""

from __future__ import annotations

import pytest

from podrun.launcher.engines.kubernetes.gke import read_environment
from podrun.launcher.inventory.find import find_pod
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.pod.pod import Host
from podrun.launcher.pod.slices import parse_slice
from podrun.runtime.contract import UserError


def container(hosts: int = 4, kind: str = "v6e-16", **more: str) -> dict[str, str]:
    """Return the variables of worker 0; an empty one is left out."""
    env = {
        "TPU_WORKER_HOSTNAMES": ",".join(f"train-0-{host}.train" for host in range(hosts)),
        "TPU_WORKER_ID": "0",
        "TPU_ACCELERATOR_TYPE": kind,
        "TPU_SKIP_MDS_QUERY": "true",
        **more,
    }
    return {name: value for name, value in env.items() if value}


@pytest.mark.parametrize(
    ("env", "slice"),
    [
        (container(TPU_TOPOLOGY="4x4"), "v6e-16"),
        (container(8, "v4-64", TPU_TOPOLOGY="2x4x4"), "v4-64"),
        (container(16, "v5p-128", TPU_TOPOLOGY="4x4x4"), "v5p-128"),
        (container(4, "v5litepod-16", TPU_WORKER_ID=""), "v5litepod-16"),
        (container(1, "v5lite-8", TPU_WORKER_HOSTNAMES="localhost"), "v5litepod-8"),
        (container(2, "tpu7x-16", TPU_TOPOLOGY="2x2x2", MEGASCALE_NUM_SLICES="1"), "tpu7x-16"),
        (container(1, "v6e-16", TPU_TOPOLOGY="2x2"), "v6e-4"),  # one host of a node pool on its own, as users set it
        (container(4, "v6e-16", TPU_TOPOLOGY="1x16"), "v6e-16"),
        (container(2, "v4-16", TPU_WORKER_HOSTNAMES="10.0.0.2, 10.0.0.3"), "v4-16"),
        (container(2, "v4-16", TPU_WORKER_HOSTNAMES="2001:db8::2,2001:db8::3", TPU_WORKER_ID="1"), "v4-16"),
    ],
)
def test_the_pod_is_what_the_variables_say(monkeypatch: pytest.MonkeyPatch, env: dict[str, str], slice: str) -> None:
    for name in (
        "TPU_WORKER_HOSTNAMES",
        "TPU_WORKER_ID",
        "TPU_ACCELERATOR_TYPE",
        "TPU_TOPOLOGY",
        "MEGASCALE_NUM_SLICES",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    pod = find_pod(PodRequest(inventories={"hosts_from": "gke"}))
    assert (pod.slice, pod.transport, pod.platform) == (parse_slice(slice), "ssh", "tpu")
    names = [name.strip() for name in env["TPU_WORKER_HOSTNAMES"].split(",")]
    assert pod.hosts == tuple(Host(name, name, name) for name in names)


@pytest.mark.parametrize(
    ("addresses", "hosts"),
    [
        ("10.0.0.1:8476,10.0.0.2:8476", ["10.0.0.1", "10.0.0.2"]),
        ("train-0-0.train:8471, train-0-1.train:8471", ["train-0-0.train", "train-0-1.train"]),
        ("[2001:db8::2]:8476,[2001:db8::3]:8476", ["2001:db8::2", "2001:db8::3"]),
        ("2001:db8::2,2001:db8::3", ["2001:db8::2", "2001:db8::3"]),
        ("a,b", ["a", "b"]),
        (" ", ["train-0-0.train", "train-0-1.train"]),
    ],
)
def test_addresses_of_processes_come_first(addresses: str, hosts: list[str]) -> None:
    """As for JAX."""
    listed = read_environment(container(2, "tpu7x-16", TPU_TOPOLOGY="2x2x2", TPU_PROCESS_ADDRESSES=addresses))
    assert [host.address for host in listed.hosts] == hosts


@pytest.mark.parametrize("kind", ["v5litepod-8", "v6e-8"])
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_slice_of_8_has_one_machine_or_two(kind: str, hosts: int) -> None:
    slice = read_environment(container(hosts, kind, TPU_TOPOLOGY="2x4")).slice
    assert slice is not None
    assert (slice.name, slice.hosts, slice.devices_per_host, slice.devices) == (kind, hosts, 8 // hosts, 8)


def test_without_a_type_a_slice_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "a,b")
    monkeypatch.delenv("TPU_ACCELERATOR_TYPE", raising=False)
    monkeypatch.delenv("TPU_WORKER_ID", raising=False)
    assert find_pod(PodRequest("v4-16", inventories={"hosts_from": "gke"})).slice.hosts == 2
    with pytest.raises(UserError, match="no slice: looked for --slice"):
        find_pod(PodRequest(inventories={"hosts_from": "gke"}))


@pytest.mark.parametrize(
    ("env", "what"),
    [
        ({}, r"TPU_WORKER_HOSTNAMES is not set: this is no container .* name the hosts with --hosts$"),
        (container(TPU_WORKER_HOSTNAMES=" "), "is not set"),
        (container(TPU_WORKER_HOSTNAMES="a,,b,c"), "has '', which is not the name or address of a host"),
        (container(TPU_WORKER_HOSTNAMES="a:8471"), "has 'a:8471', which is not the name"),
        (container(TPU_WORKER_HOSTNAMES="-oProxyCommand=x"), "has '-oProxyCommand=x', which is not"),
        (container(TPU_WORKER_HOSTNAMES="fe80::1%-oProxyCommand=x"), "which is not the name"),
        (container(TPU_WORKER_HOSTNAMES="\x1b[2J" * 500), r"has '\\x1b\[2J"),
        (container(TPU_WORKER_HOSTNAMES="a," * 20_000), "which is not the name"),
        (container(3), "names 3, but a v6e-16 has 4 hosts; let the job have a pod for each"),
        (container(3, "v6e-8", TPU_TOPOLOGY="2x4"), "names 3, but a v6e-8 has 1 host; .*and give each all the chips"),
        (
            container(TPU_PROCESS_ADDRESSES="a:8476,b c:8476"),
            "TPU_PROCESS_ADDRESSES has 'b c', which is not the name",
        ),
        (container(TPU_PROCESS_ADDRESSES="a:1,b:1,c:1"), "TPU_PROCESS_ADDRESSES names 3, but a v6e-16 has 4 hosts"),
        (
            container(2, "tpu7x-16", TPU_TOPOLOGY="2x2x2", TPU_PROCESS_ADDRESSES="a:8476,a:8477,b:8476,b:8477"),
            "TPU_PROCESS_ADDRESSES has 'a' more than once: .* one container that asks for all of them",
        ),
        (container(kind="v99-8"), "TPU_ACCELERATOR_TYPE is 'v99-8', which podrun does not know .* --slice and --hosts"),
        (container(kind="tpu-v6e-slice"), "TPU_ACCELERATOR_TYPE is 'tpu-v6e-slice', which podrun does not know"),
        (container(kind="-"), "TPU_ACCELERATOR_TYPE is '-'"),
        (container(TPU_WORKER_ID="4"), "TPU_WORKER_ID is '4', but 4 hosts are listed, which count from 0"),
        (container(TPU_WORKER_ID="one"), "TPU_WORKER_ID is 'one'"),
        (container(TPU_WORKER_ID="9" * 5000), "TPU_WORKER_ID is '999"),
        (
            container(MEGASCALE_NUM_SLICES="2"),
            "one of several slices .MEGASCALE_NUM_SLICES is '?2'?., and each knows its own",
        ),
    ],
)
def test_variables_that_cannot_be_used(env: dict[str, str], what: str) -> None:
    with pytest.raises(UserError, match=f"^--hosts-from gke: .*{what}") as raised:
        read_environment(env)
    assert len(str(raised.value)) < 500

"""`--tpu NAME --zone ZONE`: what gcloud's answers mean, in the form of gcloud 528."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.inventory.find import find_pod
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.pod.pod import Host, Ssh
from podrun.launcher.pod.slices import parse_slice
from podrun.runtime.config import Launch
from podrun.runtime.contract import UnavailableError, UserError

from ....gcloud import ZONE, make_gcloud, node
from .find_tpu import find

# --- what it is and where its hosts are -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "slice", "hosts"),
    [
        (node(1, "v2-8"), "v2-8", 1),
        (node(4, "v3-32"), "v3-32", 4),
        (node(2, "v4-16", acceleratorConfig={"type": "V4", "topology": "2x2x2"}), "v4-16", 2),
        (node(16, None, acceleratorConfig={"type": "V4", "topology": "4x4x4"}), "v4-128", 16),
        (node(32, None, acceleratorConfig={"type": "V4", "topology": "4x4x8_untwisted"}), "v4-256", 32),
        (node(1, "v5litepod-8"), "v5litepod-8", 1),
        (node(4, None, acceleratorConfig={"type": "V5LITE_POD", "topology": "4x4"}), "v5litepod-16", 4),
        (node(16, "v5p-128"), "v5p-128", 16),
        (node(1, "v6e-8"), "v6e-8", 1),
        (node(4, "v6e-16", multisliceNode=True), "v6e-16", 4),
        (node(4, None, acceleratorConfig={"type": "V6E", "topology": "4x4"}), "v6e-16", 4),
    ],
    ids=lambda value: None if isinstance(value, dict) else str(value),
)
def test_the_slice_is_what_gcloud_says(bin: Path, answer: Any, slice: str, hosts: int) -> None:
    """Neither --slice nor a pod file is needed."""
    make_gcloud(bin, answer)
    pod = find()
    assert (pod.slice, pod.transport, pod.platform) == (parse_slice(slice), "ssh", "tpu")
    assert [host.name for host in pod.hosts] == [f"my-tpu-w-{worker}" for worker in range(hosts)]


@pytest.mark.parametrize(
    ("answer", "first", "last"),
    [
        (node(), Host("my-tpu-w-0", "34.1.2.2", "10.128.0.2"), Host("my-tpu-w-3", "34.1.2.5", "10.128.0.5")),
        (
            node(external=False),
            Host("my-tpu-w-0", "10.128.0.2", "10.128.0.2"),
            Host("my-tpu-w-3", "10.128.0.5", "10.128.0.5"),
        ),
        (
            node(ipv6=True),
            Host("my-tpu-w-0", "2600:1900::2", "2001:db8::1:2"),
            Host("my-tpu-w-3", "2600:1900::5", "2001:db8::1:5"),
        ),
    ],
    ids=["external", "internal only", "IPv6"],
)
def test_hosts_are_in_the_order_of_the_endpoints(bin: Path, answer: Any, first: Host, last: Host) -> None:
    """Their order is the number of the worker; the launcher takes the external address, the hosts the internal one."""
    make_gcloud(bin, answer)
    assert find().hosts[::3] == (first, last)
    answer["networkEndpoints"].reverse()
    make_gcloud(bin, answer)
    assert (find().hosts[0].address, find().hosts[3].address) == (last.address, first.address)


def test_gcloud_is_asked_once_with_what_was_typed(bin: Path) -> None:
    make_gcloud(bin, node())
    request = PodRequest(inventories={"tpu": "my-tpu"}, refinements={"zone": ZONE, "project": "example.com:my-project"})
    assert find_pod(request) == find_pod(request)
    argv = f"compute tpus tpu-vm describe my-tpu --zone={ZONE} --project=example.com:my-project --format=json\n"
    assert (bin / "asked").read_text() == argv  # and nothing came from stdin


def test_another_slice_is_a_mistake(bin: Path, tmp_path: Path) -> None:
    """Both are named, wherever the other one was asked for."""
    make_gcloud(bin, node())
    what = "--tpu: my-tpu is a v3-32, but the slice asked for is v3-8; leave that out, or ask for v3-32"
    with pytest.raises(UserError, match=what):
        find("v3-8")
    with pytest.raises(UserError, match=what):
        find(launch=Launch(slice="v3-8"))
    (tmp_path / "pod.yaml").write_text("slice: v3-8\n")
    with pytest.raises(UserError, match=what):
        find(pod=tmp_path / "pod.yaml")
    assert find("v3-32").slice.name == "v3-32"


def test_login(bin: Path, tmp_path: Path) -> None:
    """gcloud's key is taken if there is one; known keys are this TPU VM's own; the pod file goes first."""
    make_gcloud(bin, node())
    known = tmp_path / "home" / "known_hosts" / "tpu-4815162342108"
    assert find().ssh == Ssh(known_hosts=known, host_keys="accept-new")
    key = tmp_path / ".ssh" / "google_compute_engine"
    key.parent.mkdir()
    key.touch()
    assert find().ssh == Ssh(key=Path("~/.ssh/google_compute_engine"), known_hosts=known, host_keys="accept-new")
    pod = tmp_path / "pod.yaml"
    pod.write_text("ssh: {user: me, key: bin/gcloud}\nworkdir: /mnt/runs\n")
    assert find(pod=pod).ssh == Ssh("me", key=bin / "gcloud", known_hosts=known, host_keys="accept-new")
    assert find(pod=pod).workdir == "/mnt/runs"
    pod.write_text("ssh: {host_keys: strict}\n")
    assert find(pod=pod).ssh == Ssh(key=Path("~/.ssh/google_compute_engine"))
    make_gcloud(bin, node(id=None))
    assert find(pod=None).ssh == Ssh(key=Path("~/.ssh/google_compute_engine"))


# --- what keeps it from being used ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "what"),
    [
        (
            "CREATING",
            "still being created; wait until `gcloud compute tpus tpu-vm list --zone=us-central1-a` says READY",
        ),
        ("STARTING", "is starting; wait"),
        ("RESTARTING", "is restarting; wait"),
        ("REIMAGING", "gets a new system; wait"),
        ("REPAIRING", "repaired by Google, and may be unusable; wait"),
        ("STOPPING", "being stopped; start it again"),
        ("STOPPED", "stopped; start it with `gcloud compute tpus tpu-vm start my-tpu --zone=us-central1-a`"),
        ("DELETING", "being deleted; name another one"),
        (
            "PREEMPTED",
            "preempted: .*; delete it with `gcloud .* delete my-tpu --zone=us-central1-a` and create it again",
        ),
        ("TERMINATED", "has ended, .*; delete it"),
        ("HIDING", "being hidden"),
        ("HIDDEN", "is hidden"),
        ("UNHIDING", "coming back .*; wait"),
        ("UNKNOWN", "could not be repaired .*; delete it"),
        ("DREAMING", "a state that podrun does not know; wait"),
    ],
)
def test_a_tpu_that_is_not_ready(bin: Path, state: str, what: str) -> None:
    """It often has no endpoints, or some without an address."""
    for endpoints in (None, [{"port": 8470}, {}]):
        make_gcloud(bin, node(state=state, networkEndpoints=endpoints))
        with pytest.raises(UnavailableError, match=rf"^--tpu my-tpu: it .*{what}.* \[state '?{state}'?\]$"):
            find()


@pytest.mark.parametrize("health", ["TIMEOUT", "UNHEALTHY_TENSORFLOW", "UNHEALTHY_MAINTENANCE"])
def test_a_tpu_that_is_not_healthy(bin: Path, health: str) -> None:
    make_gcloud(bin, node(health=health, healthDescription="worker 2 does not answer"))
    with pytest.raises(UnavailableError, match=f"not healthy: '?{health}'? .*worker 2.*; wait .* with --hosts"):
        find()
    make_gcloud(bin, node(health=None))
    assert len(find().hosts) == 4


@pytest.mark.parametrize(
    ("out", "what"),
    [
        ("", "answer is not JSON but ''; look at what `gcloud .*--format=json` prints"),
        ("name: my-tpu\nstate: READY\n", "answer is not JSON but 'name: my-tpu"),
        ("[" * 100_000, "answer is not JSON but "),
        ("[]", r"answer is .*\[\]"),
        ("null", "answer is .*None"),
    ],
)
def test_an_answer_that_is_no_answer(bin: Path, out: str, what: str) -> None:
    make_gcloud(bin, out=out)
    with pytest.raises(UnavailableError, match=f"^--tpu my-tpu: gcloud's {what}"):
        find()


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (node(state=None), "answer has no state, which podrun cannot use; look at `gcloud .*`, update gcloud"),
        (node(state=["READY"]), "answer has state: "),
        (node(health={"a": 1}), "answer has health: "),
        (node(networkEndpoints=None), "a v3-32 has 4 hosts, but gcloud lists none under networkEndpoints"),
        (node(networkEndpoints=[]), "but gcloud lists none"),
        (node(3), "a v3-32 has 4 hosts, but gcloud lists 3 under .*`gcloud .* delete my-tpu --zone=us-central1-a`"),
        (node(2, "v6e-8"), "a v6e-8 has 1 host, but gcloud lists 2"),
        (node(networkEndpoints="10.0.0.1"), "answer has networkEndpoints: '10.0.0.1'"),
        (node(networkEndpoints=[None]), "answer has networkEndpoints.0: 'None'"),
        (node(networkEndpoints=[{"port": 8470}]), "answer has no networkEndpoints.0.ipAddress"),
        (
            node(networkEndpoints=[{"ipAddress": "-oProxyCommand=x"}]),
            "networkEndpoints.0.ipAddress: '-oProxyCommand=x'",
        ),
        (node(networkEndpoints=[{"ipAddress": "fe80::1%-oProxyCommand=x"}]), "networkEndpoints.0.ipAddress: 'fe80"),
        (node(networkEndpoints=[{"ipAddress": 167772161}]), "networkEndpoints.0.ipAddress: "),
        (node(networkEndpoints=[{"ipAddress": "10.0.0.1\n"}]), "networkEndpoints.0.ipAddress: "),
        (
            node(networkEndpoints=[{"ipAddress": "10.0.0.1", "accessConfig": {"externalIp": "a.example"}}]),
            "networkEndpoints.0.accessConfig.externalIp: 'a.example'",
        ),
        (node(networkEndpoints=[{"ipAddress": "10.0.0.1"}] * 10_001), "answer has networkEndpoints: "),
        (node(id="../../x"), "answer has id: '../../x'"),
        (
            node(name="projects/p/locations/z/nodes/other"),
            "is about '?projects/p/locations/z/nodes/other'?; try again",
        ),
        (node(kind=None), "neither acceleratorType nor acceleratorConfig"),
        (node(acceleratorConfig="v3"), "answer has acceleratorConfig: 'v3'"),
    ],
)
def test_an_answer_with_something_wrong(bin: Path, answer: Any, what: str) -> None:
    make_gcloud(bin, answer)
    with pytest.raises(UnavailableError, match=f"^--tpu my-tpu: .*{what}"):
        find()


def test_two_hosts_with_one_address(bin: Path) -> None:
    make_gcloud(bin, node(2, "v4-16", networkEndpoints=[{"ipAddress": "10.0.0.1"}] * 2))
    with pytest.raises(UserError, match=r"--tpu: my-tpu-w-0 and my-tpu-w-1 have the address 10\.0\.0\.1; each host"):
        find()


@pytest.mark.parametrize(
    "answer",
    [
        node(kind="v99-8"),
        node(kind="cpu-4x8"),
        node(kind="v3-32\x1b[2J" * 50),
        node(kind=None, acceleratorConfig={"type": "V4", "topology": "1x2x3"}),
    ],
)
def test_a_type_that_podrun_does_not_know(bin: Path, answer: Any) -> None:
    make_gcloud(bin, answer)
    with pytest.raises(UserError, match=r"^--tpu my-tpu: it is a .*, which podrun does not know .* and --hosts$"):
        find()

"""`--hosts-from metadata`: the pod of the TPU VM that podrun is called on, from values as its metadata server gives them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from podrun.launcher.agent.host import google
from podrun.launcher.agent.host.google import ENV_SERVER
from podrun.launcher.engines.tpu import metadata
from podrun.launcher.inventory.find import find_pod
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.pod.pod import Host, Pod, Ssh
from podrun.launcher.pod.slices import parse_slice
from podrun.runtime.contract import UnavailableError, UserError

from ....metadata_server import TPU_ENV, Metadata, serving, tpu_worker

ENDPOINTS = "attributes/worker-network-endpoints"


@pytest.fixture(scope="module")
def module_server() -> Iterator[tuple[str, type[Metadata]]]:
    with serving(tpu_worker()) as started:
        yield started


@pytest.fixture
def server(
    module_server: tuple[str, type[Metadata]], bin: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[type[Metadata]]:
    """The server of a v3-32, asked from a home without keys."""
    address, handler = module_server
    monkeypatch.setenv(ENV_SERVER, address)
    yield handler
    handler.values = tpu_worker()


def find(slice: str | None = None) -> Pod:
    return find_pod(PodRequest(slice, inventories={"hosts_from": "metadata"}))


# --- what it is and where its hosts are -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "slice"),
    [
        (tpu_worker(1, "v2-8"), "v2-8"),
        (tpu_worker(4, "v3-32"), "v3-32"),
        (tpu_worker(16, "v4-128"), "v4-128"),
        (tpu_worker(4, "v5litepod-16"), "v5litepod-16"),
        (tpu_worker(16, "v5p-128"), "v5p-128"),
        (tpu_worker(4, "v6e-16"), "v6e-16"),
        (tpu_worker(2, "v7x-16"), "tpu7x-16"),
        (tpu_worker(4, None, tpu_env="ACCELERATOR_TYPE: 'v6e-16'\n"), "v6e-16"),
        (tpu_worker(4, None, tpu_env="TYPE: 'V5LITE_POD'\nTOPOLOGY: '4x4'\n"), "v5litepod-16"),
        (tpu_worker(32, None, tpu_env="TYPE: 'V4'\nTOPOLOGY: '4x4x8'\nMEGASCALE_NUM_SLICES: '1'\n"), "v4-256"),
        (tpu_worker(agent_worker_number=None, tpu_env=None), "v3-32"),
    ],
)
def test_the_slice_is_what_the_server_says(server: type[Metadata], values: dict[str, str], slice: str) -> None:
    server.values = values
    pod = find()
    assert (pod.slice, pod.transport, pod.platform) == (parse_slice(slice), "ssh", "tpu")
    assert len(pod.hosts) == pod.slice.hosts


@pytest.mark.parametrize(
    ("values", "hosts"),
    [
        (tpu_worker(2, "v4-16"), (Host("my-tpu-w-0", *["10.128.0.2"] * 2), Host("my-tpu-w-1", *["10.128.0.3"] * 2))),
        (
            tpu_worker(2, "v4-16", ipv6=True),
            (Host("my-tpu-w-0", *["2001:db8::1:2"] * 2), Host("my-tpu-w-1", *["2001:db8::1:3"] * 2)),
        ),
        (
            tpu_worker(2, "v4-16", worker_network_endpoints="2001:db8::2, 2001:db8::1\n", tpu_env=None),
            (Host("worker-0", *["2001:db8::2"] * 2), Host("worker-1", *["2001:db8::1"] * 2)),
        ),
        (
            tpu_worker(2, "v4-16", worker_network_endpoints="t1v-n-1-w-0,t1v-n-1-w-1", env="NODE_ID: '-x y'\n"),
            (Host("worker-0", *["t1v-n-1-w-0"] * 2), Host("worker-1", *["t1v-n-1-w-1"] * 2)),
        ),
    ],
    ids=["IPv4", "IPv6", "addresses alone", "names"],
)
def test_the_hosts_are_in_the_order_of_the_workers(
    server: type[Metadata], values: dict[str, str], hosts: tuple[Host, ...]
) -> None:
    server.values = values
    assert find().hosts == hosts


def test_a_server_that_does_not_say_what_it_is(server: type[Metadata]) -> None:
    """Then the slice has to be given; it still must have as many hosts."""
    server.values = tpu_worker(4, None, tpu_env=None)
    assert find("v3-32").slice.name == "v3-32"
    with pytest.raises(UserError, match="no slice: looked for --slice"):
        find()
    with pytest.raises(UserError, match="--hosts-from: 4 hosts, but v3-8 has 1 host"):
        find("v3-8")


def test_another_slice_is_a_mistake(server: type[Metadata]) -> None:
    with pytest.raises(UserError, match="--hosts-from: metadata is a v3-32, but the slice asked for is v4-32"):
        find("v4-32")


def test_login(server: type[Metadata], tmp_path: Path) -> None:
    """By gcloud's key, if it is there; known keys are kept for as long as this machine lives."""
    known = tmp_path / "home" / "known_hosts" / "worker-4815162342108"
    assert find().ssh == Ssh(known_hosts=known, host_keys="accept-new")
    key = tmp_path / ".ssh" / "google_compute_engine"
    key.parent.mkdir()
    key.touch()
    server.values = {**tpu_worker(), "id": "../../x"}
    assert find().ssh == Ssh(key=Path("~/.ssh/google_compute_engine"))


def test_the_command(server: type[Metadata], tmp_path: Path) -> None:
    """The plan has these hosts; a mistake ends with code 2 and no traceback."""
    command = [sys.executable, "-m", "podrun", "--hosts-from", "metadata", "--dry-run", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "my-tpu-w-3" in done.stdout and "10.128.0.5" in done.stdout
    server.values = tpu_worker(3)
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done.stderr


# --- values that cannot be used -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "what"),
    [
        (
            tpu_worker(worker_network_endpoints=None),
            "has no instance/.*endpoints: this machine is no worker of a TPU VM",
        ),
        (tpu_worker(worker_network_endpoints=""), "this machine is no worker of a TPU VM"),
        (tpu_worker(worker_network_endpoints="10.0.0.1,"), "has '', which names no host; it is like unknown:unknown:"),
        (
            tpu_worker(worker_network_endpoints="a:b:-oProxyCommand=x"),
            "has 'a:b:-oProxyCommand=x', which names no host",
        ),
        (tpu_worker(worker_network_endpoints="fe80::1%-oProxyCommand=x"), "which names no host"),
        (tpu_worker(worker_network_endpoints="a:b"), "has 'a:b', which names no host"),
        (tpu_worker(worker_network_endpoints="\x1b[2J" * 500), r"has '\\x1b\[2J.*which names no host"),
        (tpu_worker(worker_network_endpoints="tpu-[0-3]"), "which names no host"),
        (tpu_worker(worker_network_endpoints="a:b:10.0.0.1," * 10_001), "which names no host"),
        (tpu_worker(2, "v4-16", worker_network_endpoints="x:y:10.0.0.1,x:y:10.0.0.1"), "have the address 10.0.0.1"),
        (tpu_worker(3), "lists 3, but a v3-32 has 4 hosts; is the TPU VM being repaired"),
        (tpu_worker(2, "v6e-8"), "lists 2, but a v6e-8 has 1 host;"),
        (tpu_worker(kind="v99-8"), "this is a 'v99-8', which podrun does not know .* --slice and --hosts"),
        (tpu_worker(kind="2xv3-16"), "this is a '2xv3-16', which podrun does not know"),
        (tpu_worker(kind="cpu-4x8"), "this is a 'cpu-4x8', which podrun does not know"),
        (tpu_worker(kind="\x1b[2J" * 50), r"this is a '\\x1b.*which podrun does not know"),
        (tpu_worker(kind=None, tpu_env="TYPE: 'V4'\nTOPOLOGY: '1x2x3'"), "this is a 'V4 1x2x3', which podrun does not"),
        (tpu_worker(agent_worker_number="4"), "agent-worker-number is '4', but 4 hosts are listed"),
        (tpu_worker(agent_worker_number="-1"), "agent-worker-number is '-1'"),
        (tpu_worker(agent_worker_number="\u0663"), "agent-worker-number is '\u0663'"),
        (
            tpu_worker(env=TPU_ENV + "MEGASCALE_NUM_SLICES: '2'\n"),
            "one of several slices .*2.*, and each knows its own",
        ),
    ],
)
def test_values_that_cannot_be_used(server: type[Metadata], values: dict[str, str], what: str) -> None:
    server.values = values
    with pytest.raises(UserError, match=f"^--hosts-from(?: metadata)?: .*{what}") as raised:
        find()
    assert len(str(raised.value)) < 500


# --- servers that do not answer as Google's -------------------------------------------------------------------------------


def test_elsewhere_nothing_is_asked(bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENV_SERVER, raising=False)
    monkeypatch.setattr(google, "_PRODUCT", "/no such file")
    monkeypatch.setattr(metadata, "ask_metadata", None)  # what is called is not None
    with pytest.raises(UserError, match=r"no machine of Google Compute Engine; call podrun on a worker .* --tpu NAME"):
        find()


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("127.0.0.1:1", "cannot be asked: '?Connection refused"),
        ("127.0.0.1:x", "cannot be asked: .*nonnumeric port"),
        ("[::1", "cannot be asked: "),
    ],
)
def test_no_server(bin: Path, monkeypatch: pytest.MonkeyPatch, address: str, what: str) -> None:
    monkeypatch.setenv(ENV_SERVER, address)
    with pytest.raises(
        UnavailableError, match=f"^--hosts-from metadata: the metadata server {what}.*look at what `curl "
    ):
        find()


@pytest.mark.parametrize("address", ["127.0.0.1 x", "a/b", "\x1b[31m", "a@b", "x" * 300, "\u0663"])
def test_what_can_be_no_server_is_not_asked(bin: Path, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv(ENV_SERVER, address)
    with pytest.raises(
        UserError, match=r"GCE_METADATA_HOST is '.*, which is not a name or an address of a metadata server; unset it"
    ) as raised:
        find()
    assert str(raised.value).isprintable()


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Listen, and answer one connection; yields the address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                answer(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


GOOGLE = b"HTTP/1.0 200 OK\r\nMetadata-Flavor: Google\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "what"),
    [
        (b"HTTP/1.0 503 Service Unavailable\r\n\r\n", "answers with HTTP status 503"),
        (b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps({"a": 1}).encode(), "is not Google's: its answer has no header"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "cannot be asked: "),
        (b"", "cannot be asked: "),
        (
            b"HTTP/1.0 200 OK\r\nMetadata-Flavor: Google\r\nContent-Length: 99\r\n\r\nab",
            "cannot be asked: 'the answer is cut off'",
        ),
        (GOOGLE + b"\xff\xfe", "has no text under instance/attributes/worker-network-endpoints"),
        (
            GOOGLE + b"a" * (metadata._LIMIT_BYTES + 1),
            "has more than 1 MiB under instance/attributes/worker-network-endpoints",
        ),
    ],
    ids=["busy", "another server", "another protocol", "closed", "cut off", "no text", "too much"],
)
def test_a_server_with_another_answer(bin: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, what: str) -> None:
    with answering(lambda connection: connection.sendall(answer)) as address:
        monkeypatch.setenv(ENV_SERVER, address)
        with pytest.raises(UnavailableError, match=f"^--hosts-from metadata: the metadata server {what}"):
            find()


def test_a_server_that_never_answers(bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "_LIMIT", 0.1)
    over = threading.Event()
    with answering(lambda connection: over.wait(60) and None) as address:
        monkeypatch.setenv(ENV_SERVER, address)
        with pytest.raises(
            UnavailableError, match=r"metadata server has not answered within .* s; look at what `curl "
        ):
            find()
        over.set()

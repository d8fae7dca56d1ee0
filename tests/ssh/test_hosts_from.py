"""`--hosts-from`: a run on hosts that the metadata server, GKE's variables or a plug-in name."""

from __future__ import annotations

import pytest

from podrun.launcher.agent.host.google import ENV_SERVER

from ..launcher.inventory.plugin import install
from ..metadata_server import serving, tpu_worker
from .pod import PodSandbox

NAMES = ["h0", "h1", "h2", "h3"]
LISTING = """
from podrun.launcher.inventory.base import Listing
from podrun.launcher.pod.pod import Host

def find(text):
    return Listing(tuple(Host(*pair.split("=")) for pair in text.split(",")), slots=1)
"""


def test_metadata(pod: PodSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hosts of a TPU VM are reached, and known again by their keys; processes are numbered as its workers are.

    podrun's folder here is that of the first host, as on that worker itself.
    """
    home = pod.hosts.home_of("h0") / ".podrun"
    home.mkdir(mode=0o700, exist_ok=True)
    (pod.path / "home").symlink_to(home)
    trusting = {"user": "root", "key": str(pod.hosts.key)}
    settings = pod.write_pod([], "cpu-4x1", hosts=None, ssh=trusting)
    endpoints = ",".join(f"unknown:unknown:{pod.hosts.address(name)}" for name in NAMES)
    values = tpu_worker(kind=None, worker_network_endpoints=endpoints, tpu_env="NODE_ID: 'my-tpu'\n")
    with pod.hosts.inside(), serving(values) as (address, server):
        monkeypatch.setenv(ENV_SERVER, address)
        script = 'echo "$PODRUN_PROCESS_ID is on $(hostname)"'
        done = pod.podrun("--hosts-from", "metadata", settings, "--", "sh", "-c", script)
        assert done.returncode == 0, done.stderr
        logs = [path.read_text() for path in (home / "runs").glob("*/logs/*")]
        assert {f"{number} is on {name}\n" for number, name in enumerate(NAMES)} <= set(logs)
        [known] = (home / "known_hosts").iterdir()
        assert known.name == "worker-4815162342108" and len(known.read_text().splitlines()) == 4
        server.values = {**values, "attributes/accelerator-type": "v3-32"}
        settings = pod.write_pod([], "v3-32", hosts=None, ssh=trusting)
        done = pod.podrun("exec", "--hosts-from", "metadata", settings, "--", "hostname")
        assert done.stdout.count("--- my-tpu-w-") == 4, (done.stdout, done.stderr)


def test_gke(pod: PodSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = pod.write_pod([], "cpu-4x1", hosts=None)
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", ",".join(pod.hosts.address(name) for name in NAMES))
    monkeypatch.setenv("TPU_WORKER_ID", "0")
    done = pod.podrun("exec", "--hosts-from", "gke", settings, "--", "hostname")
    assert sorted(line for line in done.stdout.splitlines() if line[0] == "h") == NAMES, (done.stdout, done.stderr)


def test_a_plugin(pod: PodSandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = pod.write_pod([], "cpu-4x1", hosts=None)
    (pod.path / "site").mkdir()
    install(pod.path / "site", LISTING)
    monkeypatch.setenv("PYTHONPATH", str(pod.path / "site"))
    hosts = ",".join(f"{name}={pod.hosts.address(name)}" for name in NAMES[1:3])
    done = pod.podrun("exec", "--hosts-from", f"mine:{hosts}", settings, "--", "hostname")
    assert done.stdout == "--- h1\nh1\n--- h2\nh2\n", (done.stdout, done.stderr)

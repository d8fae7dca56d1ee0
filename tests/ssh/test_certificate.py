"""Whoever can connect to the coordinator's port of a pod, but has no certificate of the run, can do nothing there.

JAX has mutual TLS since 0.12: `make newest` runs these tests.
"""

from __future__ import annotations

import base64
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path

import jax
import pytest

from podrun.launcher.run.certificate import make_certificate
from podrun.runtime.contract import ENV_CERTIFICATE

from ..hosts import wait_until
from ..pod.conftest import Run
from .pod import PodSandbox
from .results import newest

pytestmark = pytest.mark.skipif(
    "mtls_cert_file" not in inspect.signature(jax.distributed.initialize).parameters,
    reason="JAX before 0.12 has no mutual TLS; `make newest` runs this",
)
PORTS = (45111, 45112)  # a port each, because the one of a run that was stopped is not free at once
STRANGER = """
import sys
from jax._src.lib import _jax
from podrun.runtime.contract import CERTIFICATE_URI
address, files = sys.argv[1], sys.argv[2:]
names = ("mtls_cert_file", "mtls_key_file", "mtls_ca_file")
tls = dict(dict.fromkeys(names, *files), mtls_peer_uri_prefix=CERTIFICATE_URI) if files else {}
client = _jax.get_distributed_runtime_client(address, 1, init_timeout=4, use_compression=True, **tls)
client.connect()
print("joined")
print(client.key_value_dir_get(""))
"""
WAITING = """
import os, pathlib, sys, time
import jax, jax.numpy as jnp
jax.distributed.initialize()
sums = []
while True:
    sums.append(int(jax.pmap(lambda x: jax.lax.psum(x, "d"), "d")(jnp.ones(jax.local_device_count()))[0]))
    print("sums", len(sums), flush=True)
    if len(sums) > 2 and pathlib.Path(sys.argv[1]).exists():  # made before the last sum, or seen at the next
        break
    time.sleep(0.1)
"""


def stranger(pod: PodSandbox, address: str, *files: str) -> str:
    """Join with JAX's own client as process 1, from a machine of the same network. Return what it says before it ends."""
    command = [sys.executable, "-c", STRANGER, address, *files]
    done = pod.hosts.run(command, 90, env={**pod.env, "JAX_PLATFORMS": "cpu"}, check=False)
    assert done.returncode != 0, done.stdout
    return done.stdout + done.stderr


def attack(pod: PodSandbox, port: int, goes_on: Callable[[], None]) -> None:
    """Try to join without a certificate, and with one of another run."""
    address = f"{pod.hosts.address('h0')}:{port}"
    other = pod.path / "other.pem"
    other.write_bytes(make_certificate("other"))
    for files in ((), (str(other),)):
        said = stranger(pod, address, *files)
        assert "joined" not in said, said
        assert re.search("DEADLINE_EXCEEDED|UNAVAILABLE|handshake", said), said
        goes_on()


def secret_of(run: Run, pod: PodSandbox) -> bytes:
    """Return the certificate and key that a worker of the run got."""
    pid = next(process.pid for process in pod.hosts.processes("h1") if "podrun.runtime" in process.args)
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(line for line in variables if line.startswith(ENV_CERTIFICATE.encode())).partition(b"=")[2]


def test_a_stranger_neither_joins_nor_stops_a_job(pod: PodSandbox) -> None:
    option = pod.write_pod(["h0", "h1"], ports=[PORTS[0]] * 2)
    run = pod.run(option, "--json", "small.yaml", "steps=1000000", "log.every=5")
    seen = [run.wait_for_step(1)["step"]]

    def goes_on() -> None:
        seen.append(run.wait_for_step(seen[-1] + 5)["step"])

    attack(pod, PORTS[0], goes_on)
    secret = secret_of(run, pod)
    assert pod.podrun("stop", "--now").returncode == 0
    run.process.wait(60)
    key = base64.b64decode(secret).split(b"-----BEGIN PRIVATE KEY-----\n")[1][:40]
    for path in pod.path.rglob("*"):
        if path.is_file() and path.name != "other.pem":
            content = path.read_bytes()
            assert secret[:100] not in content and key not in content, path


def test_a_stranger_does_not_join_a_program(pod: PodSandbox) -> None:
    """A program that knows nothing of podrun, and joins by a bare `jax.distributed.initialize()`."""
    (pod.path / "waiting.py").write_text(WAITING)
    option = pod.write_pod(["h0", "h1"], ports=[PORTS[1]] * 2)
    run = pod.run(option, "--json", "--", "python", "waiting.py", str(pod.enough))

    def sums() -> int:
        log = newest(pod) / "logs" / "h0.log"
        return log.read_text().count("sums") if log.exists() else 0

    def goes_on() -> None:
        before = sums()
        wait_until(lambda: sums() > before + 3, "the program computes")

    run.wait_for(lambda e: e["event"] == "host" and e["phase"] == "started")
    goes_on()
    attack(pod, PORTS[1], goes_on)
    assert pod.podrun("stop", "--now").returncode == 0
    run.process.wait(60)

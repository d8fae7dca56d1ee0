"""Nobody outside this machine can reach a simulated pod. JAX's coordinator does not ask who connects to it."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ..conftest import Sandbox
from ..hosts import wait_until
from .conftest import Run, processes_of

PROGRAM = """
import os, time, jax
jax.distributed.initialize(os.environ["PODRUN_COORDINATOR"], 2, int(os.environ["PODRUN_PROCESS_ID"]))
print("joined", flush=True)
time.sleep(600)
"""


def listeners(pids: set[int]) -> set[str]:
    """Addresses at which these processes accept TCP connections, as Linux says."""
    sockets = set()
    for pid in pids:
        try:
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    sockets.add(os.readlink(fd))
        except FileNotFoundError:  # it has ended
            continue
    addresses = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                words = bytes.fromhex(fields[1].partition(":")[0])
                addresses.add(b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4)))
    mapped = b"\0" * 10 + b"\xff" * 2  # an IPv4 address on an IPv6 socket
    return {str(ipaddress.ip_address(address.removeprefix(mapped))) for address in addresses}


def own_address() -> str:
    """An address of this machine that others know, or loopback where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return "127.0.0.1"
        return str(sock.getsockname()[0])


@pytest.fixture(autouse=True)
def in_an_ssh_login(monkeypatch: pytest.MonkeyPatch) -> None:
    """The address at which the user's login arrived is none for the hosts of a simulated pod."""
    monkeypatch.setenv("SSH_CONNECTION", f"192.0.2.1 50000 {own_address()} 22")


@pytest.mark.long
def test_a_training_listens_at_loopback_only(sandbox: Sandbox, start: Callable[..., Run]) -> None:
    """The coordinator and gloo, of two processes that train."""
    run = start("--slice", "cpu-2x1", "--simulate", "small.yaml", "steps=10000000")
    run.wait_for_step(1)
    addresses = listeners(set(processes_of(sandbox)))
    assert addresses and all(ipaddress.ip_address(address).is_loopback for address in addresses), addresses


def test_the_coordinator_of_a_user_program(sandbox: Sandbox, start: Callable[..., Run]) -> None:
    """It need not know of podrun: JAX takes the address at which to listen from the environment."""
    run = start("--slice", "cpu-2x1", "--simulate", "--", sys.executable, "-c", PROGRAM)
    run.wait_for(lambda e: e["event"] == "host" and e["phase"] == "started" and e["process"] == 1)
    (folder,) = (sandbox.path / "home" / "runs").iterdir()
    logs = [folder / "logs" / f"host-{number}.log" for number in range(2)]
    joined = lambda: all(log.exists() and "joined" in log.read_text() for log in logs)  # noqa: E731
    wait_until(lambda: joined() or run.process.poll() is not None, "both to join", 120)
    assert joined()
    assert listeners(set(processes_of(sandbox))) == {"127.0.0.1"}

"""`podrun ssh`: OpenSSH, with what the pod says of the host."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.commands.ssh import find_host, ssh_command
from podrun.launcher.pod.pod import Host, Pod, Ssh
from podrun.launcher.pod.slices import parse_slice
from podrun.runtime.contract import UserError

from ...conftest import Sandbox
from .conftest import Make


def test_ssh_goes_the_way_that_podrun_goes() -> None:
    """User, port, key, jump host and known_hosts of the pod; what an address says goes first."""
    host = Host("tpu-0", "10.0.0.5")
    pod = Pod(parse_slice("cpu-1x1"), (host,), "ssh", "cpu")
    assert ssh_command(pod, host, [], terminal=True) == ["ssh", "--", "10.0.0.5"]
    ssh = Ssh("me", 2222, Path("/k"), "jump.example", Path("/kh"), "accept-new", Path("/cfg"))
    command = " ".join(ssh_command(replace(pod, ssh=ssh), host, [], terminal=True))
    assert command == (
        "ssh -F /cfg -l me -p 2222 -i /k -J jump.example "
        "-o UserKnownHostsFile=/kh -o StrictHostKeyChecking=accept-new -- 10.0.0.5"
    )
    other = Host("tpu-0", "you@[fe80::1]:22")
    assert ssh_command(replace(pod, ssh=ssh), other, [], terminal=True)[3:7] == ["-l", "you", "-p", "22"]
    assert ssh_command(pod, other, [], terminal=True)[-1] == "fe80::1"
    assert ssh_command(pod, host, ["echo", "a  b"], terminal=False) == ["ssh", "--", "10.0.0.5", "exec 'echo' 'a  b'"]
    assert "-t" in ssh_command(pod, host, ["htop"], terminal=True)


def test_the_host_of_ssh(make: Make) -> None:
    """By name, address, a beginning that only one has, or the id of a process; a name goes first."""
    hosts = (Host("tpu-1", "10.0.0.1"), Host("tpu-10", "10.0.0.2"), Host("head", "10.0.0.3"), Host("0", "10.0.0.4"))
    pod = Pod(parse_slice("cpu-4x1"), hosts, "ssh", "cpu")
    found = {text: find_host(pod, text, None).name for text in ("tpu-1", "tpu-10", "h", "10.0.0.3", "0", "1")}
    assert list(found.values()) == ["tpu-1", "tpu-10", "head", "head", "0", "tpu-10"]
    with pytest.raises(UserError, match=r"'tpu' is the beginning of 2 hosts: tpu-\[1,10\]"):
        find_host(pod, "tpu", None)
    with pytest.raises(UserError, match="there is no host '7'"):
        find_host(pod, "7", None)
    run = make("20260101-000001-aaaa", hosts={"tpu-1": [0, 1], "tpu-10": [2, 3], "head": [4, 5], "0": [6, 7]})
    assert find_host(pod, "5", run.directory).name == "head"


def test_ssh_is_openssh(sandbox: Sandbox) -> None:
    """podrun becomes ssh: its terminal, its exit code."""
    fake = sandbox.path / "bin" / "ssh"
    fake.parent.mkdir()
    fake.write_text('#!/bin/sh\necho "$@"\nexit 42\n')
    fake.chmod(0o755)
    env = {**sandbox.env, "PATH": f"{fake.parent}:{os.environ['PATH']}"}
    command = [*sandbox.command, "ssh", "--hosts", "tpu-[0-3]", "2", "--", "ls", "-l"]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (42, "-- tpu-2 exec 'ls' '-l'\n")

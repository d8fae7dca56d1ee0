"""`podrun check` of real hosts: every trouble has a message of its own that names the host."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.agent.host import port
from podrun.launcher.pod.pod import Host, Pod, Ssh
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.preflight.run_preflight import Report, run_preflight

from ..findings import explain
from ..hosts import Hosts, wait_until
from .conftest import Client
from .pod import PodSandbox, fake_package

PORT = 8476
HEAD = "10.77.0.1"
Check = Callable[..., Report]


def silent(doing: str, done: int, total: int, waiting: list[str]) -> None:
    pass


def pod_of(hosts: Hosts) -> Pod:
    return Pod(
        parse_slice("cpu-4x1"),
        tuple(Host(name, hosts.address(name)) for name in hosts.names),
        transport="ssh",
        platform="cpu",
        ssh=Ssh(user="root", key=hosts.key, known_hosts=hosts.known_hosts),
        python=sys.executable,
        ports=(PORT, PORT),
    )


@pytest.fixture
def check(client: Client) -> Check:
    """Examines the four hosts; `changes` are to the pod."""

    def run(workdir: str | None = None, program: bool = False, **changes: object) -> Report:
        pod = replace(pod_of(client.hosts), **changes)  # type: ignore[arg-type]
        return run_preflight(client.transport(), pod, workdir, silent, program=program)

    return run


def agents(hosts: Hosts, name: str) -> list[str]:
    return [p.args for p in hosts.processes(name) if ".podrun/agents/" in p.args]


def on_host(hosts: Hosts, name: str, *command: str) -> None:
    hosts.run_on(name, *command)


def test_hosts_that_are_fine(check: Check, client: Client) -> None:
    """They are told apart by their names, and the coordinator is found at the address of the connection."""
    report = check()
    assert explain(report.findings) == ""
    assert {name: facts["system"]["host"] for name, facts in report.facts.items()} == {n: n for n in client.hosts.names}
    assert report.coordinator == f"{client.hosts.address('h0')}:{PORT}"
    assert report.open_to_here is True  # what this machine can connect to is open to strangers, too
    client.hosts.block("h0", PORT, source=HEAD, how="REJECT")
    again = check()
    assert again.coordinator == report.coordinator  # the one port is free again at once
    assert again.open_to_here is False and explain(again.findings) == ""
    for name in client.hosts.names:
        wait_until(lambda name=name: not agents(client.hosts, name), f"agents on {name} to end")


@pytest.mark.long
def test_a_firewall_before_the_coordinator(check: Check, client: Client) -> None:
    client.hosts.block("h0", PORT, source=client.hosts.address("h2"))
    client.hosts.block("h0", PORT, source=client.hosts.address("h3"), how="REJECT")
    report = check()
    lines = explain(report.findings).splitlines()
    address = f"{client.hosts.address('h0')}:{PORT}"
    assert f"h2: cannot reach the coordinator, h0 at {address} (no answer within {port.PROBE_TIMEOUT:g} s)" in lines
    assert f"h3: cannot reach the coordinator, h0 at {address} (Connection refused)" in lines
    assert f"  is there a firewall in between? allow TCP ports {PORT}-{PORT} between the hosts" in lines
    assert len(lines) == 4
    assert (report.code, report.coordinator) == (2, None)


def test_a_taken_port_of_the_coordinator(check: Check, client: Client) -> None:
    code = f"import socket, sys; s = socket.create_server(('', {PORT})); print(1, flush=True); sys.stdin.read()"
    command = client.hosts.command_on("h0", [sys.executable, "-c", code])
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as taker:
        assert taker.stdin is not None and taker.stdout is not None
        assert taker.stdout.readline() == b"1\n"
        text = explain(check().findings)
        taker.stdin.close()
    assert f"h0: no port of [{PORT}, {PORT}] is free for the coordinator" in text


def test_another_jax_on_one_host(check: Check, client: Client) -> None:
    """The hosts' PYTHONPATH has a folder in which each has packages of its own."""
    for name in client.hosts.names:
        fake_package(client.hosts.home_of(name) / "site", "jax", "0.10.9" if name == "h2" else "0.10.2")
    text = explain(check(env={"PYTHONPATH": f"{client.hosts.home_inside()}/site"}).findings)
    assert "h2: jax 0.10.9, but jax 0.10.2 on h0, h1, h3\n" in text


def test_no_jax(check: Check, client: Client) -> None:
    """One of the hosts has a link to another interpreter."""
    for name in client.hosts.names:
        target = "/usr/bin/python3" if name == "h1" else sys.executable
        (client.hosts.home_of(name) / "python").write_text(f'#!/bin/sh\nexec {target} "$@"\n')
        (client.hosts.home_of(name) / "python").chmod(0o755)
    text = explain(check(python=f"{client.hosts.home_inside()}/python").findings)
    assert any(line.startswith("h1: no jax, jaxlib, ") for line in text.splitlines())  # its Python may be another, too
    assert "for /usr/bin/python3" in text
    assert "`requirements:`" in text


@pytest.fixture
def debian(hosts: Hosts) -> Iterator[None]:
    """All hosts but h0 have Debian's line `127.0.1.1 NAME` in /etc/hosts; the name of h0 does not resolve."""
    for name in hosts.names:
        file = hosts.home_of(name) / "etc_hosts"
        file.write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n" if name != "h0" else "127.0.0.1 localhost\n")
        hosts.run_on(name, "mount", "--bind", str(hosts.home_inside() / "etc_hosts"), "/etc/hosts")
    yield
    for name in hosts.names:
        hosts.run_on(name, "umount", "/etc/hosts")


@pytest.mark.usefixtures("debian")
def test_hosts_that_take_themselves_for_loopback(check: Check) -> None:
    """podrun gives JAX the address; a program that does without podrun's helper is told, all hosts in one finding."""
    assert explain(check().findings) == ""
    assert not [finding for finding in check().findings if finding.about == "host name"]
    warnings = [finding for finding in check(program=True).findings if finding.about == "host name"]
    assert [finding.hosts for finding in warnings] == [("h1", "h2", "h3"), ("h0",)]
    assert not any(finding.fatal for finding in warnings)
    assert all("/etc/hosts" in finding.remedy for finding in warnings)


@pytest.mark.long
@pytest.mark.usefixtures("debian")
def test_cpu_collectives_of_hosts_that_take_themselves_for_loopback(pod: PodSandbox) -> None:
    done = pod.podrun(pod.write_pod(["h0", "h1"]), "small.yaml", "steps=1")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_host_that_is_down(check: Check, client: Client) -> None:
    client.hosts.kill("h1")
    report = check()
    assert set(report.unreached) == {"h1"}
    assert (report.code, set(report.facts)) == (69, {"h0", "h2", "h3"})
    assert explain(report.findings).startswith("h1: ")


def test_a_workdir_that_is_not_shared(check: Check, client: Client) -> None:
    """Each host has a home of its own, and /tmp in common."""
    report = check(workdir=f"{client.hosts.home_inside()}/runs")
    (finding,) = [finding for finding in report.findings if finding.about == "workdir"]
    assert (finding.hosts, finding.fatal, report.code) == (("h1", "h2", "h3"), False, 0)
    assert finding.what.startswith("cannot see what h0 writes to the workdir")
    assert "keeps checkpoints and metrics on h0 alone" in f"{finding.what} {finding.remedy}"
    assert "--workdir" in finding.remedy
    assert not list(client.hosts.home_of("h0").glob(".podrun-check*"))
    assert check(workdir="/tmp").shared == "/tmp"


def test_the_command(client: Client, tmp_path: Path) -> None:
    """From a pod file to the table, with one host that is another."""
    hosts = client.hosts
    fake_package(hosts.home_of("h0") / "site-of-h0", "jax", "0.10.7")
    pod = {
        "slice": "cpu-3x1",
        "hosts": [{"name": name, "address": hosts.address(name)} for name in hosts.names[:-1]],
        "spares": [{"name": hosts.names[-1], "address": hosts.address(hosts.names[-1])}],
        "ssh": {"user": "root", "key": str(hosts.key), "known_hosts": str(hosts.known_hosts)},
        "python": sys.executable,
        "env": {"PYTHONPATH": f"{hosts.home_inside()}/site-of-h0"},
        "workdir": str(tmp_path),  # which all hosts see
    }
    (tmp_path / "pod.yaml").write_text(json.dumps(pod))
    done = hosts.run([sys.executable, "-m", "podrun.launcher.cli", "check", "--pod", str(tmp_path / "pod.yaml")])
    assert done.returncode == 2, done.stderr
    assert done.stdout.startswith("cpu-3x1: 4 hosts of 1 device, 1 spare among them")
    assert "error: h0: jax 0.10.7, but jax" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("not ready: 1 error")
    assert done.stderr == ""


def test_bandwidth_between_hosts(client: Client, tmp_path: Path) -> None:
    """The hosts get podrun, and no file of the folder that it is called in."""
    hosts = client.hosts
    pod = {
        "slice": "cpu-2x1",
        "hosts": [{"name": name, "address": hosts.address(name)} for name in hosts.names[:2]],
        "ssh": {"user": "root", "key": str(hosts.key), "known_hosts": str(hosts.known_hosts)},
        "python": sys.executable,
    }
    (tmp_path / "pod.yaml").write_text(json.dumps(pod))
    done = hosts.run(
        [sys.executable, "-m", "podrun.launcher.cli", "check", "--bandwidth", "--pod", str(tmp_path / "pod.yaml")]
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all-reduce of 16 MB (float32) on each of 2 devices" in done.stdout
    assert "podrun: done" in done.stdout

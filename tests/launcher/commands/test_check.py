"""`podrun check`: its output, its JSON, and what it shows while it waits."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest

from ...conftest import Sandbox
from ..preflight.pods import VERSION


def test_podrun_check_of_a_simulated_pod(sandbox: Sandbox) -> None:
    done = sandbox.podrun("check", "--simulate", "--slice", "cpu-2x2", "--workdir", "runs/x")
    assert (done.returncode, done.stderr) == (0, "")
    assert "coordinator  reached at 127.0.0.1:" in done.stdout
    assert f"{sandbox.path}/runs/x is shared" in done.stdout.replace("\n             ", " ")
    assert done.stdout.splitlines()[-1].startswith("both hosts are ready")
    assert "\x1b" not in done.stdout
    assert not (sandbox.path / "runs").exists()


def test_podrun_check_as_json(sandbox: Sandbox) -> None:
    done = sandbox.podrun("check", "--json", "--simulate", "--slice", "cpu-2x1", "--workdir", "/proc/x")
    found = json.loads(done.stdout)
    assert (done.returncode, found["code"]) == (2, 2)
    assert set(found["hosts"]) == {"host-0", "host-1"}
    assert found["hosts"]["host-1"]["interpreter"]["version"] == VERSION
    (finding,) = [f for f in found["findings"] if f["fatal"]]
    assert finding["about"] == "workdir"
    assert finding["hosts"] == ["host-0"]


def test_on_a_terminal_it_shows_what_it_waits_for_and_clears_that(sandbox: Sandbox) -> None:
    ours, theirs = os.openpty()
    command = [*sandbox.command, "check", "--simulate", "--slice", "cpu-2x1"]
    done = subprocess.run(command, cwd=sandbox.path, env=sandbox.env, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert "asking the hosts: 0 of 2" in shown
    assert re.search(r"asking the hosts: 1 of 2, waiting for host-[01]", shown)
    assert shown.endswith("\r\x1b[K")
    assert "asking" not in done.stdout


def test_podrun_check_without_hosts_says_where_it_looked(sandbox: Sandbox) -> None:
    done = sandbox.podrun("check", "--slice", "cpu-2x2")
    assert done.returncode == 2
    assert "no hosts: looked for --simulate, --pod FILE" in done.stderr


@pytest.mark.long
def test_an_all_reduce_of_all_devices_has_a_bandwidth(sandbox: Sandbox) -> None:
    done = sandbox.podrun("check", "--simulate", "--slice", "cpu-2x2", "--bandwidth")
    assert (done.returncode, done.stderr) == (0, "")
    assert "both hosts are ready" in done.stdout
    assert "all-reduce of 16 MB (float32) on each of 4 devices" in done.stdout
    assert re.search(r"algorithm bandwidth \d[\d.e-]* GB/s .* bus bandwidth \d[\d.e-]* GB/s", done.stdout)


def test_one_device_has_no_all_reduce(sandbox: Sandbox) -> None:
    done = sandbox.podrun("check", "--simulate", "--slice", "cpu-1x1", "--bandwidth")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "the pod has one device, so there is no all-reduce to measure"


def test_a_pod_that_is_not_ready_measures_nothing(sandbox: Sandbox) -> None:
    pod = ("--simulate", "--slice", "cpu-2x1")
    done = sandbox.podrun("check", *pod, "--bandwidth", "--workdir", "/proc/x")
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1] == "no all-reduce was tried"
    done = sandbox.podrun("check", *pod, "--bandwidth", "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert "leave --json out" in done.stderr


def test_a_workdir_that_a_container_would_not_see(sandbox: Sandbox) -> None:
    """It is refused as for a run, before any host is asked: there, results would end with the container."""
    (sandbox.path / "pod.yaml").write_text(
        "slice: cpu-1x1\nhosts: [host.invalid]\ncontainer: {engine: podman, image: a}\n"
    )
    done = sandbox.podrun("check", "--pod", "pod.yaml", "--workdir", "/elsewhere")
    assert done.returncode == 2
    assert "the image does not see it" in done.stderr

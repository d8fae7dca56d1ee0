"""`podrun check`: what a host is like, what is wrong with a pod, and how that is told."""

from __future__ import annotations

import configparser
import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from podrun.launcher.agent import devices, facts, port, shared
from podrun.launcher.agent.packages import PACKAGES
from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.pod.errors import HostError
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.preflight.base import Facts
from podrun.launcher.preflight.check import compare, fatal_findings
from podrun.launcher.preflight.devices import age
from podrun.launcher.preflight.examine import Report, examine
from podrun.launcher.preflight.table import render, summary
from podrun.launcher.remote.ask import ask, asking
from podrun.launcher.remote.clock import with_skew
from podrun.launcher.staging.runtime_packages import BELOW, NEEDED
from podrun.launcher.transport.local import LocalTransport

if TYPE_CHECKING:
    from tests.conftest import Sandbox

ROOT = Path(__file__).parents[3]
GB = 10**9
VERSION = sys.version.split()[0]
VERSIONS = {
    "jax": "0.10.2",
    "jaxlib": "0.10.2",
    "flax": "0.12.8",
    "optax": "0.2.8",
    "orbax-checkpoint": "0.12.8",
    "numpy": "2.4.6",
    "pydantic": "2.14.3",
    "pyyaml": "6.0.3",
    "tensorboardX": "2.6.4",
}
NODES = {
    "cpu": {},
    "v3": {"accel": [f"/dev/accel{i}" for i in range(4)]},
    "v5litepod": {"vfio": [f"/dev/vfio/{i}" for i in range(4)]},
    "gpu": {"nvidia": [f"/dev/nvidia{i}" for i in range(8)]},
}
EXTRA = {"gpu": {"jax-cuda12-plugin": "0.10.2"}, "v3": {"libtpu": "0.0.40"}, "v5litepod": {"libtpu": "0.0.40"}}


def healthy(kind: str = "cpu") -> Facts:
    """A host with which nothing is wrong."""
    disk = {"path": "/d", "folder": "/d", "free": 90 * GB, "total": 100 * GB, "files": 10**6, "writable": True}
    packages = {**dict.fromkeys(PACKAGES, "missing"), **VERSIONS, **EXTRA.get(kind, {})}
    return {
        "system": {"host": "m", "kernel": "6.1", "machine": "x86_64", "cores": 8},
        "interpreter": {"version": "3.11.7", "executable": "/usr/bin/python3", "packages": packages},
        "driver": "570.86.15" if kind == "gpu" else None,
        "machine": uuid.uuid4().hex,
        "claim": None,
        "disk_home": disk,
        "disk_tmp": disk,
        "disk_workdir": None,
        "memory": {"total": 64 * GB, "available": 60 * GB},
        "devices": {"accel": [], "vfio": [], "nvidia": [], **NODES[kind]},
        "holders": {"processes": [], "partial": False},
        "lock_file": None,
        "run": None,
        "host_name": {"name": "m", "addresses": ["10.0.0.5"], "used": "10.0.0.5"},
        "proxies": {"set": [], "no_proxy": None},
        "huge_pages": "always",
        "limits": {"nofile": 65536, "memlock": None},
        "clock": {"received": 1000.0, "answered": 1000.1, "skew": 0.01, "uncertain": 0.02},
    }


def pod_of(slice: str) -> Pod:
    """Hosts a, b, c, ... that are other machines."""
    what = parse_slice(slice)
    hosts = tuple(Host(chr(ord("a") + i), f"10.0.0.{i + 5}") for i in range(what.hosts))
    return Pod(what, hosts, "ssh", {"cpu": "cpu", "gpu": "cuda", "tpu": "tpu"}[what.kind])


def changed(slice: str, changes: dict[str, dict[str, Any]]) -> tuple[Pod, dict[str, Facts]]:
    """A healthy pod, and its facts with some of them changed: host (`*`: all) to `fact.key` to value."""
    pod = pod_of(slice)
    by_host = {host.name: healthy(slice.rpartition("-")[0]) for host in pod.hosts}
    for names, values in changes.items():
        for name in by_host if names == "*" else names:
            for path, value in values.items():
                *way, last = path.split("/")
                place = by_host[name]
                for step in way:
                    place[step] = deepcopy(place[step])
                    place = place[step]
                place[last] = value
    return pod, by_host


def held(command: str, file: str, since: float = 400.0) -> dict[str, Any]:
    process = {"pid": 4123, "user": "alice", "command": command, "since": since, "files": [file]}
    return {"holders": {"processes": [process], "partial": False}}


def lock(**values: Any) -> dict[str, Any]:
    free = {"path": "/tmp/libtpu_lockfile", "owner": "alice", "writable": True, "held": False, "partial": False}
    return {"lock_file": {**free, **values}}


FATAL, WARNING = True, False
NAME = "host_name"
PKG = "interpreter/packages/"

# slice, changed facts, hosts that are named, what is said of them, what is to be done, how bad it is
CASES: dict[str, tuple[str, dict[str, dict[str, Any]], str, str, str, bool]] = {
    "another jax": (
        "cpu-4x2",
        {"c": {PKG + "jax": "0.10.1"}},
        "c",
        r"jax 0\.10\.1, but jax 0\.10\.2 on a, b, d$",
        "same versions",
        FATAL,
    ),
    "another jaxlib, two hosts": (
        "cpu-2x2",
        {"b": {PKG + "jaxlib": "0.10.1"}},
        "b",
        r"jaxlib 0\.10\.1, but jaxlib 0\.10\.2 on a$",
        "same versions",
        FATAL,
    ),
    "another flax": ("cpu-3x2", {"b": {PKG + "flax": "0.12.1"}}, "b", r"flax 0\.12\.1, but", "same", WARNING),
    "another libtpu": ("v3-32", {"d": {PKG + "libtpu": "0.0.39"}}, "d", r"libtpu 0\.0\.39, but", "same", FATAL),
    "another Python": (
        "cpu-3x2",
        {"a": {"interpreter/version": "3.12.1"}},
        "a",
        r"^Python 3\.12, but 3\.11 on the other 2 hosts$",
        "python:",
        FATAL,
    ),
    "an old Python": (
        "cpu-2x2",
        {"*": {"interpreter/version": "3.9.2"}},
        "ab",
        r"/usr/bin/python3 is Python 3\.9\.2, .* needs 3\.11",
        "python:",
        FATAL,
    ),
    "no Python": (
        "cpu-2x2",
        {"b": {"interpreter": {"error": "/opt/py does not exist"}}},
        "b",
        "/opt/py does not exist",
        "python:",
        FATAL,
    ),
    "no jax": (
        "cpu-2x2",
        {"b": {PKG + "jax": "missing", PKG + "jaxlib": "missing"}},
        "b",
        r"^no jax, jaxlib for /usr/bin/python3 \(Python 3\.11\.7\)$",
        "requirements:",
        FATAL,
    ),
    "an old jax": ("cpu-2x2", {"*": {PKG + "jax": "0.9.3"}}, "ab", r"jax 0\.9\.3 \(needs 0\.10\)", "python:", FATAL),
    "a jax that nobody tried": (
        "cpu-2x2",
        {"*": {PKG + "jax": "0.13.0", PKG + "jaxlib": "0.13"}},
        "ab",
        r"newer than .* tried with: jax 0\.13\.0 \(below 0\.13\), jaxlib 0\.13 \(below",
        "below the limit",
        WARNING,
    ),
    "no libtpu": ("v3-8", {"a": {PKG + "libtpu": "missing"}}, "a", "no libtpu for", "requirements:", FATAL),
    "no CUDA plugin": (
        "gpu-1x8",
        {"a": {PKG + "jax-cuda12-plugin": "missing"}},
        "a",
        r"no jax\[cuda12\] or jax\[cuda13\]",
        "requirements:",
        FATAL,
    ),
    "a plugin for another CUDA": (
        "gpu-3x8",
        {"b": {PKG + "jax-cuda12-plugin": "missing", PKG + "jax-cuda13-plugin": "0.10.2"}},
        "b",
        r"^jax-cuda12-plugin missing, jax-cuda13-plugin 0\.10\.2, but",
        "same versions",
        FATAL,
    ),
    "no TensorBoard": ("cpu-1x2", {"a": {PKG + "tensorboardX": "missing"}}, "a", "no tensorboardX", "log:", WARNING),
    "no driver": ("gpu-1x8", {"a": {"driver": None}}, "a", "no NVIDIA driver", "nvidia-smi", FATAL),
    "another driver": ("gpu-3x8", {"b": {"driver": "535.1"}}, "b", r"NVIDIA driver 535\.1, but 570", "same", FATAL),
    "no chips": ("v3-32", {"b": {"devices/accel": []}}, "b", "^no TPU chip .* v3-32 has 4 on every", "slice", FATAL),
    "3 of 4 chips": ("v5litepod-16", {"b": {"devices/vfio": ["/dev/vfio/0"] * 3}}, "b", "^3 TPU chips", "slice", FATAL),
    "GPUs to spare": ("gpu-2x4", {}, "ab", "^8 GPUs .* gpu-2x4 has 4 on every host", "--slice", WARNING),
    "a held TPU": (
        "v3-32",
        {"c": held("python train.py", "/dev/accel0")},
        "c",
        r"in use: python train\.py \(pid 4123, user alice, for 10 min\)",
        "kill 4123",
        FATAL,
    ),
    "held TPUs": ("v3-32", {"abcd": held("python x", "/dev/accel0")}, "abcd", "pid 4123 on a", "podrun stop", FATAL),
    "a held GPU": ("gpu-2x8", {"b": held("python x", "/dev/nvidia3")}, "b", "in use: python x", "kill", WARNING),
    "a lock file left over": (
        "v3-8",
        {"a": lock()},
        "a",
        "libtpu_lockfile of user alice is left over$",
        "`rm",
        WARNING,
    ),
    "another user's lock file": ("v3-8", {"a": lock(writable=False)}, "a", "keeps you from the TPU", "sudo rm", FATAL),
    "a lock file in use": ("v3-8", {"a": lock(held=True)}, "a", "the TPU is in use", "lsof", FATAL),
    "another run": (
        "cpu-2x2",
        {"b": {"run": "run r-1 of alice (agent pid 7)"}},
        "b",
        "run r-1 of alice",
        "stop",
        WARNING,
    ),
    "another user's claim": (
        "cpu-2x2",
        {"b": {"claim": "run r-1 of mallory (uid 1002, agent pid 7)"}},
        "b",
        r"run r-1 of mallory \(uid 1002, agent pid 7\) says that it has",
        "a run of yours starts all the same",
        WARNING,
    ),
    "little disk": ("cpu-2x2", {"b": {"disk_tmp/free": GB // 2}}, "b", "^500 MB of disk left at /d", "room", WARNING),
    "no disk": ("cpu-2x2", {"b": {"disk_home/free": 10**7}}, "b", "^10 MB of disk left", "`home:`", FATAL),
    "no inodes": ("cpu-2x2", {"a": {"disk_home/files": 0}}, "a", "no inodes", "remove files", FATAL),
    "a workdir that cannot be made": (
        "cpu-2x2",
        {"a": {"disk_workdir": {**healthy()["disk_home"], "path": "/nonexist", "folder": "/", "writable": False}}},
        "a",
        "cannot make /nonexist: no permission to write in /",
        "--workdir",
        FATAL,
    ),
    "may not write": ("cpu-2x2", {"a": {"disk_home/writable": False}}, "a", "cannot write to /d", "right", FATAL),
    "a dead file system": (
        "cpu-2x2",
        {"b": {"disk_workdir": {"error": "no answer within 15 s"}}},
        "b",
        "disk workdir: no answer",
        "file system",
        FATAL,
    ),
    "a fact that is not known": (
        "cpu-1x2",
        {"a": {"memory": {"error": "no MemTotal"}}},
        "a",
        "memory: no MemTotal",
        "goes on",
        WARNING,
    ),
    "little memory": ("cpu-1x2", {"a": {"memory/available": GB // 5}}, "a", "^200 MB of memory", "ps aux", WARNING),
    "a clock that is off": ("cpu-3x2", {"b": {"clock/skew": -4.2}}, "b", r"clock is 4\.2 s behind$", "ntp", WARNING),
    "a clock that is far off": (
        "cpu-3x2",
        {"c": {"clock/skew": 3700}},
        "c",
        "62 min ahead .far too",
        "before",
        WARNING,
    ),
    "our clock": ("cpu-3x2", {"*": {"clock/skew": 5.0}}, "abc", "5.0 s ahead of this machine's", "ntp", WARNING),
    "a loopback name": (
        "cpu-2x2",
        {"b": {NAME: {"name": "m", "addresses": ["127.0.1.1"], "used": "127.0.1.1"}}},
        "b",
        r"its own name resolves to 127\.0\.1\.1",
        "/etc/hosts",
        FATAL,
    ),
    "a loopback name, with accelerators": (
        "gpu-2x8",
        {"b": {NAME: {"name": "m", "addresses": ["::1"], "used": "::1"}}},
        "b",
        "resolves to ::1",
        "/etc/hosts",
        WARNING,
    ),
    "a name that does not resolve": (
        "cpu-2x2",
        {"a": {NAME: {"name": "m", "addresses": [], "used": None, "why": "Name or service not known"}}},
        "a",
        "does not resolve .Name or service not known",
        "/etc/hosts",
        FATAL,
    ),
    "somebody else's address": (
        "cpu-2x2",
        {"a": {NAME: {"name": "m", "addresses": ["10.9.9.9"], "used": None}}},
        "a",
        r"10\.9\.9\.9, which is not an address of this host",
        "/etc/hosts",
        FATAL,
    ),
    "one machine under two names": (
        "gpu-2x8",
        {"*": {"machine": "m"}},
        "ab",
        "one and the same machine",
        "`hosts`",
        FATAL,
    ),
    "a proxy": ("cpu-2x2", {"a": {"proxies/set": ["http_proxy"]}}, "a", "http_proxy set", "no_proxy", WARNING),
    "few open files": ("cpu-2x2", {"a": {"limits/nofile": 256}}, "a", "only 256 files", "ulimit", WARNING),
    "locked memory": ("v5litepod-16", {"a": {"limits/memlock": 65536}}, "a", "may be locked", "unlimited", WARNING),
    "no huge pages": ("v5litepod-16", {"a": {"huge_pages": "never"}}, "a", "huge pages", "echo always", WARNING),
}


@pytest.mark.parametrize("case", CASES)
def test_one_thing_that_is_wrong_is_one_finding_that_names_the_host(case: str) -> None:
    slice, changes, hosts, what, remedy, fatal = CASES[case]
    findings = compare(*changed(slice, changes), program=False)
    assert len(findings) == 1, findings
    assert findings[0].hosts == tuple(hosts)
    assert re.search(what, findings[0].what), findings[0].what
    assert remedy in findings[0].remedy
    assert findings[0].fatal == fatal
    assert findings[0].about


@pytest.mark.parametrize("slice", ["cpu-1x2", "cpu-3x2", "v3-8", "v3-32", "v5litepod-16", "gpu-1x8", "gpu-3x8"])
def test_nothing_is_wrong_with_a_healthy_pod(slice: str) -> None:
    assert compare(*changed(slice, {}), program=False) == []


@pytest.mark.parametrize(
    ("slice", "changes"),
    [
        ("cpu-1x2", {"a": {NAME: {"name": "m", "addresses": [], "used": None}}}),  # it has nobody to talk to
        ("cpu-2x2", {"a": {"driver": "570.1", PKG + "libtpu": "0.0.1"}}),  # not what it computes on
        ("cpu-2x2", {"a": held("python", "/dev/nvidia0")}),
        ("gpu-2x8", {"a": held("/usr/bin/nvidia-persistenced --user x", "/dev/nvidia0")}),
        ("cpu-2x2", {"a": {"proxies": {"set": ["http_proxy"], "no_proxy": "10.0.0.0/8"}}}),
        ("cpu-3x2", {"b": {"clock/skew": 3.0, "clock/uncertain": 2.5}}),  # a slow connection, maybe
        ("cpu-2x2", {"a": {"interpreter/version": "3.11.2"}}),  # the same minor version
        ("cpu-2x2", {"a": {"disk_home/free": 0, "disk_home/total": 0}}),  # a file system without a size
        ("cpu-2x2", {"*": {"interpreter/packages": None}}),  # a run will install them
    ],
)
def test_what_does_not_matter_is_not_reported(slice: str, changes: dict[str, dict[str, Any]]) -> None:
    assert compare(*changed(slice, changes), program=False) == []


@pytest.mark.parametrize("slice", ["cpu-2x2", "v3-32", "v5litepod-16", "gpu-2x8"])
def test_facts_that_are_not_there_are_no_findings(slice: str) -> None:
    pod = pod_of(slice)
    assert compare(pod, {}, program=False) == []
    assert compare(pod, {host.name: {} for host in pod.hosts}, program=False) == []


def test_a_program_of_the_users_own_may_do_without_what_the_runtime_imports() -> None:
    pod, by_host = changed("cpu-2x2", {"*": {PKG + "jax": "missing", "interpreter/version": "3.9.1"}})
    assert fatal_findings(compare(pod, by_host, program=False))
    assert not fatal_findings(compare(pod, by_host, program=True))


def test_hosts_with_the_same_trouble_are_one_finding() -> None:
    pod, by_host = changed("v3-64", {"bdf": {PKG + "jax": "missing"}, "h": {PKG + "flax": "missing"}})
    found = compare(pod, by_host, program=False)
    assert [(f.hosts, f.what.split(" for ")[0]) for f in found] == [(("b", "d", "f"), "no jax"), (("h",), "no flax")]


def test_with_requirements_the_remedy_is_there() -> None:
    pod, by_host = changed("cpu-2x2", {"b": {PKG + "optax": "missing"}})
    found = compare(replace(pod, requirements=Path("needs.txt")), by_host, program=False)
    assert "needs.txt" in found[0].remedy


def test_what_the_runtime_needs_is_what_setup_cfg_says() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["options"]["install_requires"].splitlines()
    bounds = re.findall(r"^([A-Za-z-]+) >=([\d.]+), <([\d.]+)", "\n".join(lines), re.MULTILINE)
    assert {name: least for name, least, _ in bounds if name in NEEDED} == NEEDED
    assert {name: below for name, _, below in bounds if name in NEEDED} == BELOW
    assert set(NEEDED) <= set(PACKAGES)


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (40, "40 s"), (700, "11 min"), (9e3, "2 h"), (9e5, "10 days")]
)
def test_age(seconds: float, text: str) -> None:
    assert age(seconds) == text


def test_the_way_there_and_back_does_not_count_as_skew() -> None:
    """The host is 100 s ahead; the question takes 2 s to get there and the answer 2 s to come back."""
    clock = with_skew({"clock": {"received": 1102.0, "answered": 1105.0}}, 1000.0, 1007.0)["clock"]
    assert clock["skew"] == pytest.approx(100.0)
    assert clock["uncertain"] == pytest.approx(2.0)


# --- what one host is like --------------------------------------------------------------------------------------------


def test_facts_of_this_machine(tmp_path: Path) -> None:
    request = {"python": sys.executable, "workdir": f"{tmp_path}/not/yet", "home": str(tmp_path), "env": {}}
    start = time.monotonic()
    found = facts.gather(request)
    assert time.monotonic() - start < 5
    assert set(found) == set(healthy())
    assert not [name for name, value in found.items() if isinstance(value, dict) and "error" in value]
    assert json.loads(json.dumps(found)) == found
    assert found["interpreter"]["version"] == VERSION
    assert found["interpreter"]["packages"]["jax"].startswith("0.")
    assert found["interpreter"]["packages"]["libtpu"] == "missing"
    assert found["disk_workdir"]["folder"] == str(tmp_path)
    assert 0 < found["disk_home"]["free"] < found["disk_home"]["total"]
    assert 0 < found["memory"]["available"] < found["memory"]["total"]
    assert abs(found["clock"]["answered"] - time.time()) < 5


def test_the_workers_environment_counts(tmp_path: Path) -> None:
    """Packages are those that the workers will see, with PYTHONPATH and all."""
    fake_package(tmp_path, "jax", "9.9.9")
    found = facts.gather(
        {"python": sys.executable, "env": {"PYTHONPATH": str(tmp_path), "HTTPS_PROXY": "http://u:hidden-word@x"}}
    )
    assert found["interpreter"]["packages"]["jax"] == "9.9.9"
    assert "HTTPS_PROXY" in found["proxies"]["set"]
    assert "hidden-word" not in json.dumps(found)


def fake_package(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("x"), "may not be executed"),
        (lambda path: path.mkdir(), "is a folder"),
        (lambda path: path.symlink_to("/nowhere/python"), "is a link to /nowhere/python, which does not exist"),
        (lambda path: script(path, "echo broken >&2; exit 3"), "does not work: broken"),
        (lambda path: script(path, "exit 3"), "ended with exit code 3"),
        (lambda path: script(path, "echo '[]'"), "does not work"),
    ],
)
def test_an_interpreter_that_cannot_be_used_is_a_fact(make: Callable[[Path], Any], why: str, tmp_path: Path) -> None:
    path = tmp_path / "python"
    make(path)
    found = facts.gather({"python": str(path)})
    assert why in found["interpreter"]["error"]
    assert str(path) in found["interpreter"]["error"]
    assert found["memory"]["total"] > 0


def test_a_python_that_is_not_in_path() -> None:
    assert facts.gather({"python": "python9"})["interpreter"] == {"error": "there is no 'python9' in PATH"}


def test_an_interpreter_that_a_run_will_make(tmp_path: Path) -> None:
    found = facts.gather({"python": str(tmp_path / "env/bin/python"), "python_before": sys.executable})
    assert found["interpreter"]["packages"] is None
    assert found["interpreter"]["version"] == VERSION


def script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_fact_that_hangs_costs_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "LIMIT", 1.0)
    monkeypatch.setattr(facts, "_memory", lambda: time.sleep(20))
    monkeypatch.setattr(facts, "_huge_pages", lambda: 1 / 0)
    start = time.monotonic()
    found = facts.gather({"python": sys.executable})
    assert time.monotonic() - start < 5
    assert found["memory"] == {"error": "no answer within 1 s"}
    assert found["huge_pages"] == {"error": "division by zero"}
    assert found["limits"]["nofile"] > 0


@pytest.fixture
def fake_devices(tmp_path: Path) -> Path:
    """A folder like /dev, with what is no accelerator besides."""
    (tmp_path / "vfio").mkdir()
    for name in ("accel0", "accel1", "accel10", "vfio/7", "vfio/vfio", "nvidia0", "nvidiactl", "nvidia-uvm", "tty0"):
        (tmp_path / name).write_bytes(b"x" * 4096)
    return tmp_path


def test_device_files_are_counted(fake_devices: Path) -> None:
    found = devices.device_nodes(str(fake_devices))
    names = {kind: [os.path.relpath(path, fake_devices) for path in paths] for kind, paths in found.items()}
    assert names == {"accel": ["accel0", "accel1", "accel10"], "vfio": ["vfio/7"], "nvidia": ["nvidia0"]}


@contextmanager
def process(code: str, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs code that writes a byte when it is so far; ended after the block."""
    child = subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        assert child.stdout.read(1) == b"1"
        yield child
    finally:
        child.kill()
        child.wait()


OPEN = "import sys, time; f = open(sys.argv[1]); print(1, end='', flush=True); time.sleep(60)"
MAP = (
    "import sys, time, mmap, os; fd = os.open(sys.argv[1], os.O_RDWR); m = mmap.mmap(fd, 4096); os.close(fd);"
    "[os.close(n) for n in range(3, 20) if os.path.exists(f'/proc/self/fd/{n}')];"
    "print(1, end='', flush=True); time.sleep(60)"
)


@pytest.mark.parametrize("code", [OPEN, MAP], ids=["open", "mapped"])
def test_who_has_a_device_is_named(code: str, fake_devices: Path) -> None:
    before = time.time()
    with process(code, str(fake_devices / "accel1")) as child:
        found = facts.gather({"python": sys.executable}, devices=str(fake_devices))
        (holder,) = found["holders"]["processes"]
        assert holder["pid"] == child.pid
        assert holder["files"] == [str(fake_devices / "accel1")]
        assert holder["command"].startswith(f"{sys.executable} -c import sys")
        assert abs(holder["since"] - before) < 5
    assert devices.holders([str(fake_devices / "accel1")])["processes"] == []


def test_a_run_that_has_the_host_is_named(tmp_path: Path) -> None:
    """In a network namespace of its own, where no other run can be."""
    code = (
        "from podrun.launcher.agent.lock import HostLock, current_holder; import sys; home = sys.argv[1];"
        "a = current_holder(home); l = HostLock(home); l.take('r-7'); print(a, current_holder(home))"
    )
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
    )
    if "unshare" in done.stderr:
        pytest.skip(done.stderr)
    assert re.fullmatch(r"None run r-7 of \S+ \(uid 0, agent pid \d+\)\n", done.stdout), done.stderr


def test_a_lock_file_is_held_or_left_over(tmp_path: Path) -> None:
    path = tmp_path / "libtpu_lockfile"
    assert devices.lock_file(str(path)) is None
    path.touch()
    left = devices.lock_file(str(path))
    assert left is not None and (left["held"], left["writable"]) == (False, True)
    with process(OPEN, str(path)):
        there = devices.lock_file(str(path))
        assert there is not None and there["held"] is True


# --- questions to hosts -----------------------------------------------------------------------------------------------


@pytest.fixture
def local(tmp_path: Path) -> tuple[LocalTransport, Pod]:
    pod = replace(simulated_pod(parse_slice("cpu-3x2")), home=str(tmp_path / "home"), python=sys.executable)
    return LocalTransport(pod), pod


def silent(doing: str, done: int, total: int, waiting: list[str]) -> None:
    pass


def test_a_listening_host_is_reached_until_it_is_told_to_end(local: tuple[LocalTransport, Pod]) -> None:
    transport, pod = local
    low = 20000 + os.getpid() % 10000
    with asking(transport, pod, pod.hosts[0], "listen", str(low), str(low + 20)) as reply:
        number = reply.answer["port"]
        assert low <= number <= low + 20
        for _ in range(3):
            assert ask(transport, pod, pod.hosts[1], "reach", f"127.0.0.1:{number}").answer == {"error": None}
    refused = ask(transport, pod, pod.hosts[1], "reach", f"127.0.0.1:{number}").answer["error"]
    assert refused == "Connection refused"
    port.reserve_port([number, number]).close()  # it is free for the coordinator at once


def test_no_free_port_is_an_answer(local: tuple[LocalTransport, Pod]) -> None:
    transport, pod = local
    taken = port.reserve_port(None)
    number = str(taken.getsockname()[1])
    answer = ask(transport, pod, pod.hosts[0], "listen", number, number).answer
    assert "is free for the coordinator" in answer["error"]
    taken.close()


def test_an_agent_that_does_not_answer_is_a_host_error(local: tuple[LocalTransport, Pod]) -> None:
    transport, pod = local
    with pytest.raises(HostError, match="host-2: its agent ended before it answered: agent: unknown command"):
        ask(transport, pod, pod.hosts[2], "nonsense")


def test_the_clock_of_this_machine_is_right(local: tuple[LocalTransport, Pod]) -> None:
    report = examine(*local, None, silent)
    assert set(report.facts) == {"host-0", "host-1", "host-2"}
    for host_facts in report.facts.values():
        assert abs(host_facts["clock"]["skew"]) <= host_facts["clock"]["uncertain"] + 0.01


def test_a_shared_workdir_is_seen_and_left_as_it_was(local: tuple[LocalTransport, Pod], tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    report = examine(*local, f"{folder}/runs/r1", silent)
    assert report.shared == f"{folder}/runs/r1"
    assert not fatal_findings(report.findings)
    assert list(folder.iterdir()) == []


def test_a_file_of_another_host_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "_PATIENCE", 0.0)
    path = shared.offer(str(tmp_path))
    assert shared.look(path) is None
    Path(path).write_text("of another host")
    assert shared.look(path) == "the file has other content"
    shared.withdraw(path)
    assert shared.look(path) == "the file is not there"
    assert shared.look(str(tmp_path / "no" / "file")) == f"there is no folder {tmp_path}/no"


def test_a_file_that_comes_late_is_seen(tmp_path: Path) -> None:
    with process(
        "import sys, time, pathlib; print(1, end='', flush=True); time.sleep(.5);"
        "pathlib.Path(sys.argv[1]).write_text('late')",
        str(tmp_path / "late"),
    ):
        assert shared.look(str(tmp_path / "late")) is None


class OneHostDown(LocalTransport):
    """host-1 cannot be reached."""

    def open(self, host: Host, argv: Any) -> Any:
        if host.name == "host-1":
            raise HostError(host.name, "no route to host; is it up?")
        return super().open(host, argv)


def test_a_host_that_is_down_is_named_and_the_others_are_checked(local: tuple[LocalTransport, Pod]) -> None:
    _, pod = local
    waited_for: set[str] = set()

    def say(doing: str, done: int, total: int, waiting: list[str]) -> None:
        waited_for.update(waiting)

    report = examine(OneHostDown(pod), pod, None, say)
    assert report.unreached == {"host-1": "no route to host; is it up?"}
    assert (report.code, set(report.facts)) == (69, {"host-0", "host-2"})
    assert report.coordinator is not None
    assert waited_for == {"host-0", "host-1", "host-2"}
    text = render(report, 100, colour=False)
    assert "error: host-1: no route to host; is it up?" in text
    assert text.splitlines()[-1] == "not ready: 1 of 3 hosts cannot be used: host-1"


# --- the table --------------------------------------------------------------------------------------------------------


def report_on(slice: str, changes: dict[str, dict[str, Any]]) -> Report:
    pod, by_host = changed(slice, changes)
    return Report(pod, by_host, findings=compare(pod, by_host, program=False), coordinator="10.0.0.5:8476")


def test_a_row_has_the_usual_answer_and_under_it_the_odd_host_with_its_remedy() -> None:
    lines = render(report_on("cpu-4x2", {"c": {"interpreter/version": "3.12.1"}}), 100, colour=False).splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith("python"))
    assert re.fullmatch(r"python       3\.11\.7  /usr/bin/python3 +a, b, d", lines[row])
    assert lines[row + 1] == "  error: c: Python 3.12, but 3.11 on the other 3 hosts"
    assert lines[row + 2].startswith("    -> give the path of the same version")
    assert lines[-1] == "not ready: 1 error"


def test_the_least_disk_is_that_of_the_hosts_that_are_named_beside_it() -> None:
    """Not that of a host that is named below, because it has too little."""
    lines = render(report_on("cpu-3x2", {"b": {"disk_home/free": 21 * 10**6}}), 100, colour=False).splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith("disk"))
    assert re.fullmatch(r"disk         at least 90 GB free +a, c", lines[row])
    assert lines[row + 1].startswith("  error: b: 21 MB of disk left at /d")


@pytest.mark.parametrize("width", [20, 40, 80, 200])
@pytest.mark.parametrize("slice", ["cpu-1x2", "v3-32", "v3-2048"])
def test_the_table_fits_the_terminal(slice: str, width: int) -> None:
    pod, by_host = changed("v3-32", {})
    if slice == "v3-2048":
        pod = replace(pod_of("v3-32"), slice=parse_slice(slice), hosts=tuple(Host(f"tpu-{i}", "") for i in range(256)))
        by_host = {host.name: healthy("v3") for host in pod.hosts}
        for name in list(by_host)[::2][:100]:
            by_host[name]["interpreter"] = {"error": f"/opt/python of {name} does not exist"}
    elif slice == "cpu-1x2":
        pod, by_host = changed(slice, {"a": {PKG + "jax": "missing"}})
    text = render(Report(pod, by_host, findings=compare(pod, by_host, program=False)), width, colour=False)
    assert max(map(len, text.splitlines())) <= max(width, 30)
    assert len(text.splitlines()) < 150
    assert text.isascii()


def test_colour_only_when_asked_for() -> None:
    report = report_on("cpu-2x2", {"b": {PKG + "jax": "missing"}})
    assert "\x1b[31merror\x1b[0m: b: no jax" in render(report, 100, colour=True)
    assert "\x1b" not in render(report, 100, colour=False)


@pytest.mark.parametrize(
    ("slice", "changes", "text"),
    [
        ("cpu-1x2", {}, "the host is ready"),
        ("cpu-2x2", {}, "both hosts are ready"),
        ("cpu-3x2", {"a": {"limits/nofile": 5}}, "all 3 hosts are ready, with 1 warning"),
        ("cpu-3x2", {"a": {"limits/nofile": 5, "driver": {"error": "x"}}}, "all 3 hosts are ready, with 2 warnings"),
        ("cpu-3x2", {"a": {"limits/nofile": 5, "interpreter/version": "3.12.0"}}, "not ready: 1 error and 1 warning"),
    ],
)
def test_summary(slice: str, changes: dict[str, dict[str, Any]], text: str) -> None:
    assert summary(report_on(slice, changes)) == text


# --- the command ------------------------------------------------------------------------------------------------------


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

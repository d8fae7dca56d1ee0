"""Findings about a pod, by the facts of its hosts: which hosts, what it is, and what is to be done."""

from __future__ import annotations

import configparser
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.prepare.packages import PACKAGES
from podrun.launcher.pod.container import Container
from podrun.launcher.preflight.devices import format_age
from podrun.launcher.preflight.rules import apply_rules, fatal_findings
from podrun.launcher.staging.runtime_packages import BELOW, NEEDED, NEW_FLAX, NEW_JAX

from .pods import FATAL, GB, PKG, WARNING, Case, changed, check_finding, check_remedy_here, healthy, pod_of

ROOT = Path(__file__).parents[3]


def held(command: str, file: str, since: float = 400.0) -> dict[str, Any]:
    process = {"pid": 4123, "user": "alice", "command": command, "since": since, "files": [file]}
    return {"holders": {"processes": [process], "partial": False}}


def lock(**values: Any) -> dict[str, Any]:
    free = {"path": "/tmp/libtpu_lockfile", "owner": "alice", "writable": True, "held": False, "partial": False}
    return {"lock_file": {**free, **values}}


NAME = "host_name"
CASES: dict[str, Case] = {
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
    "a flax too old for its jax": (
        "cpu-3x2",
        {"abc": {PKG + "jax": "0.12.0.1", PKG + "jaxlib": "0.12.0.1"}, "b": {PKG + "flax": "0.12.8"}},
        "abc",
        r"flax 0\.12\.8 cannot be imported with jax 0\.12\.0\.1: it needs jax below 0\.11\.1$",
        "install flax 0.12.9 or newer",
        FATAL,
    ),
    "a jax too old for its flax": (
        "cpu-1x2",
        {"a": {PKG + "flax": "0.12.12"}},
        "a",
        r"flax 0\.12\.12 cannot be imported with jax 0\.10\.2: it needs jax 0\.11\.1$",
        "install jax 0.11.1 or newer",
        FATAL,
    ),
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
        {"*": {PKG + "jax": "0.13.0", PKG + "jaxlib": "0.13", PKG + "flax": "0.12.12"}},
        "ab",
        r"newer than .* tested: jax 0\.13\.0 \(below 0\.13\), jaxlib 0\.13 \(below",
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
        {
            "*": {"driver": "580.65.06"},
            "b": {PKG + "jax-cuda12-plugin": "missing", PKG + "jax-cuda13-plugin": "0.10.2"},
        },
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
    "another user's lock file": ("v3-8", {"a": lock(writable=False)}, "a", "blocks the TPU for you", "sudo rm", FATAL),
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
        r"run r-1 of mallory \(uid 1002, agent pid 7\) claims this host",
        "your run starts nevertheless",
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
        "disk workdir could not be determined: no answer",
        "file system",
        FATAL,
    ),
    "a fact that is not known": (
        "cpu-1x2",
        {"a": {"memory": {"error": "no MemTotal"}}},
        "a",
        "memory could not be determined: no MemTotal",
        "continues",
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
        "these names are one machine",
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
    check_finding(CASES[case])


@pytest.mark.parametrize("case", [name for name in CASES if "x" in CASES[name][0] and CASES[name][1]])
def test_remedies_for_a_run_on_this_machine_need_no_pod_file(case: str) -> None:
    check_remedy_here(CASES[case])


@pytest.mark.parametrize("slice", ["cpu-1x2", "cpu-3x2", "v3-8", "v3-32", "v5litepod-16", "gpu-1x8", "gpu-3x8"])
def test_nothing_is_wrong_with_a_healthy_pod(slice: str) -> None:
    assert apply_rules(*changed(slice, {}), program=False) == []


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
    assert apply_rules(*changed(slice, changes), program=False) == []


@pytest.mark.parametrize("slice", ["cpu-2x2", "v3-32", "v5litepod-16", "gpu-2x8"])
def test_facts_that_are_not_there_are_no_findings(slice: str) -> None:
    pod = pod_of(slice)
    assert apply_rules(pod, {}, program=False) == []
    assert apply_rules(pod, {host.name: {} for host in pod.hosts}, program=False) == []


def test_a_program_of_the_users_own_may_do_without_what_the_runtime_imports() -> None:
    pod, by_host = changed("cpu-2x2", {"*": {PKG + "jax": "missing", "interpreter/version": "3.9.1"}})
    assert fatal_findings(apply_rules(pod, by_host, program=False))
    assert not fatal_findings(apply_rules(pod, by_host, program=True))


def test_hosts_with_the_same_trouble_are_one_finding() -> None:
    pod, by_host = changed("v3-64", {"bdf": {PKG + "jax": "missing"}, "h": {PKG + "flax": "missing"}})
    found = apply_rules(pod, by_host, program=False)
    assert [(f.hosts, f.what.split(" for ")[0]) for f in found] == [(("b", "d", "f"), "no jax"), (("h",), "no flax")]


def test_with_requirements_the_remedy_is_there() -> None:
    pod, by_host = changed("cpu-2x2", {"b": {PKG + "optax": "missing"}})
    found = apply_rules(replace(pod, requirements=Path("needs.txt")), by_host, program=False)
    assert "needs.txt" in found[0].remedy


def test_what_the_runtime_needs_is_what_setup_cfg_says() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["options"]["install_requires"].splitlines()
    bounds = re.findall(r"^([A-Za-z-]+) >=([\d.]+), <([\d.]+)", "\n".join(lines), re.MULTILINE)
    # jax, jaxlib and flax have a line for the oldest Python first, and one for all others.
    assert {name: least for name, least, _ in reversed(bounds) if name in NEEDED} == NEEDED
    assert {name: below for name, _, below in bounds if name in NEEDED} == BELOW
    newer = {name: least for name, least, _ in bounds}
    assert (newer["jax"], newer["jaxlib"], newer["flax"]) == (NEW_JAX, NEW_JAX, NEW_FLAX)
    assert set(NEEDED) <= set(PACKAGES)


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0 s"), (40, "40 s"), (700, "11 min"), (9e3, "2 h"), (9e5, "10 days")]
)
def test_age(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


@pytest.mark.parametrize(("image", "waits"), [("/shared/jax.sif", False), ("docker://python:3.12", True)])
def test_an_image_that_cannot_be_started(image: str, waits: bool) -> None:
    """The advice is to change the image, not the host."""
    pod = replace(pod_of("cpu-1x1"), container=Container("apptainer", image))
    (host,) = (h.name for h in pod.hosts)
    (finding,) = fatal_findings(
        apply_rules(pod, {host: {**healthy(), "interpreter": {"error": "no answer"}}}, program=False)
    )
    assert "`container.python:` in a pod file for --pod" in finding.remedy
    assert ("a run waits until the image is pulled" in finding.remedy) is waits


def test_packages_that_an_image_lacks() -> None:
    pod, facts = changed("cpu-1x1", {"a": {PKG + "flax": "missing"}})
    pod = replace(pod, container=Container("apptainer", "/shared/jax.sif"))
    (finding,) = fatal_findings(apply_rules(pod, facts, program=False))
    assert finding.remedy == "install them in the image /shared/jax.sif"

"""Pods of healthy hosts, and the same with something wrong."""

from __future__ import annotations

import re
import sys
import uuid
from copy import deepcopy
from dataclasses import replace
from typing import Any

from podrun.launcher.agent.prepare.packages import PACKAGES
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.preflight.base import Facts
from podrun.launcher.preflight.rules import apply_rules

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
H100S = [
    {
        "index": i,
        "uuid": f"GPU-{i}",
        "name": "NVIDIA H100 80GB HBM3",
        "memory": 80 << 30,
        "free": 79 << 30,
        "ecc": "Enabled",
        "errors": 0,
    }
    for i in range(8)
]
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
        "gpus": {"rows": H100S, "users": [], "why": None, "late": False} if kind == "gpu" else None,
        "links": None,
        "lock_file": None,
        "run": None,
        "host_name": {"name": "m", "addresses": ["10.0.0.5"], "used": "10.0.0.5"},
        "proxies": {"set": [], "no_proxy": None},
        "huge_pages": "always",
        "lacks": [],
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
    kind = "gpu" if pod.slice.kind == "gpu" else slice.rpartition("-")[0]
    by_host = {host.name: healthy(kind) for host in pod.hosts}
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


PKG = "interpreter/packages/"
FATAL, WARNING = True, False
Case = tuple[str, dict[str, dict[str, Any]], str, str, str, bool]
"""Slice, changed facts, hosts that are named, what is said of them, what is to be done, how bad it is."""


def check_finding(case: Case) -> None:
    """Check that there is one finding, which names the hosts."""
    slice, changes, hosts, what, remedy, fatal = case
    findings = apply_rules(*changed(slice, changes), program=False)
    assert len(findings) == 1, findings
    assert findings[0].hosts == tuple(hosts)
    assert re.search(what, findings[0].what), findings[0].what
    assert remedy in findings[0].remedy
    assert findings[0].fatal == fatal
    assert findings[0].about


def check_remedy_here(case: Case) -> None:
    """Check that the remedy on this machine, for which no pod file is needed, names none."""
    slice, changes, *_ = case
    pod, facts = changed(re.sub(r"-\dx", "-1x", slice), {"*": next(iter(changes.values()))})
    findings = apply_rules(replace(pod, transport="this_machine"), facts, program=False)
    assert not [f for f in findings if "pod file" in f.remedy and "PODRUN_HOME" not in f.remedy]

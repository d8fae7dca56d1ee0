"""Read what carries data between GPUs, in recorded files of the kernel and answers of nvidia-smi; say what is wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.base.from_agent import Links
from podrun.launcher.agent.base.message import check_of
from podrun.launcher.agent.host.links import parse_nvlink, read_links
from podrun.launcher.agent.prepare import facts
from podrun.launcher.preflight.links import links_text, selected
from podrun.launcher.preflight.rules import apply_rules

from ..preflight.pods import changed

NVLINK = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-5c2b1f6e-0000-4f0e-9d5c-000000000000)
\t Link 0: 26.562 GB/s
\t Link 1: 26.562 GB/s
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-5c2b1f6e-0000-4f0e-9d5c-000000000001)
\t Link 0: 26.562 GB/s
\t Link 1: <inactive>
GPU 2: NVIDIA L4 (UUID: GPU-5c2b1f6e-0000-4f0e-9d5c-000000000002)
NVML: Unable to retrieve NVLink information as all links are inActive
"""
GOOD: dict[str, Any] = {
    "interfaces": [
        {"name": "eth0", "speed": 100_000},
        {"name": "ib0", "speed": 400_000},
        {"name": "lo", "speed": None},
    ],
    "used": "eth0",
    "chosen": None,
    "infiniband": [{"port": f"mlx5_{i}/1", "state": "ACTIVE", "rate": "400 Gb/sec (4X NDR)"} for i in range(2)],
    "nvlink": [{"gpu": i, "links": 18, "active": 18} for i in range(8)],
}
DOWN = {**GOOD["infiniband"][1], "state": "DOWN"}


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A /sys/class with two interfaces and an InfiniBand card of two ports."""
    files = {
        "net/eth0/speed": "100000\n",
        "net/tun0/speed": "-1\n",
        "infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)\n",
        "infiniband/mlx5_0/ports/2/state": "1: DOWN\n",
    }
    for name, text in files.items():
        path = tmp_path / "class" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "class"


def test_the_links_of_a_host(kernel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n[ \"$*\" = 'nvlink --status' ] && cat <<'END'\n{NVLINK}END\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = read_links(None, {"NCCL_SOCKET_IFNAME": "eth"}, str(kernel))
    check_of(Links)(found)
    assert found == {
        "interfaces": [{"name": "eth0", "speed": 100_000}, {"name": "tun0", "speed": None}],
        "used": None,
        "chosen": "eth",
        "infiniband": [
            {"port": "mlx5_0/1", "state": "ACTIVE", "rate": "400 Gb/sec (4X NDR)"},
            {"port": "mlx5_0/2", "state": "DOWN", "rate": None},
        ],
        "nvlink": [{"gpu": 0, "links": 2, "active": 2}, {"gpu": 1, "links": 2, "active": 1}],
    }


def test_the_interface_of_an_address() -> None:
    assert [read_links(address, {})["used"] for address in ("127.0.0.1", "192.0.2.1", None)] == ["lo", None, None]


def test_only_hosts_of_gpus_are_asked() -> None:
    assert facts.gather({"platform": "cpu"})["links"] is None
    assert "interfaces" in facts.gather({"platform": "cuda"})["links"]


def test_nothing_of_nvlink() -> None:
    assert parse_nvlink("") == parse_nvlink("No devices were found\n") == parse_nvlink("\t Link 0: 1 GB/s") == []


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ("eth", ["eth0", "eth1"]),
        ("eth1,ib", ["eth1", "ib0"]),
        ("=eth", []),
        ("=eth0,ib0", ["eth0", "ib0"]),
        ("^eth", ["ib0", "lo"]),
        ("^=eth0,lo", ["eth1", "ib0"]),
        ("ens", []),
    ],
)
def test_what_nccl_takes(chosen: str, names: list[str]) -> None:
    assert selected(["eth0", "eth1", "ib0", "lo"], chosen) == names


@pytest.mark.parametrize(
    ("links", "what", "fatal"),
    [
        ({"chosen": "ens"}, "^NCCL_SOCKET_IFNAME=ens matches no network interface: there are eth0, ib0, lo$", True),
        (
            {"interfaces": [{"name": "eth0", "speed": 1000}]},
            "^network of 1 Gb/s, but of 100 Gb/s on the other 2 hosts$",
            False,
        ),
        (
            {"infiniband": [GOOD["infiniband"][0], DOWN]},
            "^InfiniBand active ports: 1 of 400 .*, but active ports: 2 of 400 ",
            False,
        ),
        (
            {"nvlink": [{"gpu": 0, "links": 18, "active": 17}, *GOOD["nvlink"][1:]]},
            "^NVLink: other GPUs of the pod have 18 active links, GPU 0 has 17$",
            False,
        ),
    ],
)
def test_a_host_that_is_linked_worse_is_named(links: dict[str, Any], what: str, fatal: bool) -> None:
    pod, by_host = changed("gpu-3x8", {"*": {"links": GOOD}, "b": {"links": {**GOOD, **links}}})
    findings = apply_rules(pod, by_host, program=False)
    assert [(finding.hosts, finding.fatal) for finding in findings] == [(("b",), fatal)], findings
    assert re.search(what, findings[0].what), findings[0].what
    assert findings[0].remedy


def test_equal_hosts_are_told_on_a_line() -> None:
    pod, by_host = changed("gpu-2x8", {"*": {"links": GOOD}})
    assert apply_rules(pod, by_host, program=False) == []
    text = "eth0 of 100 Gb/s; InfiniBand active ports: 2 of 400 Gb/sec (4X NDR); NVLink 18 links per GPU"
    assert links_text(by_host["a"]) == text
    unknown = {"interfaces": [], "used": None, "chosen": "eth0", "infiniband": [], "nvlink": []}
    pod, by_host = changed("gpu-2x8", {"a": {"links": unknown}, "b": {"links": None}})
    assert (apply_rules(pod, by_host, program=False), links_text(by_host["a"])) == ([], "")


@pytest.mark.parametrize(("slice", "chosen"), [("gpu-1x1", "ens"), ("gpu-2x8", "ens{local_rank}")])
def test_what_nccl_may_not_read_is_not_judged(slice: str, chosen: str) -> None:
    pod, by_host = changed(slice, {"*": {"links": {**GOOD, "chosen": chosen}}})
    assert [f for f in apply_rules(pod, by_host, program=False) if f.about == "network"] == []

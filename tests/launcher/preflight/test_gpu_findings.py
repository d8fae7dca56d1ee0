"""Findings about GPUs, by what nvidia-smi says of them: which hosts, what it is, and what is to be done."""

from __future__ import annotations

from typing import Any

import pytest

from podrun.launcher.preflight.rules import apply_rules

from .pods import FATAL, H100S, PKG, WARNING, Case, changed, check_finding, check_remedy_here

CASES: dict[str, Case] = {
    "a GPU that another user computes on": (
        "gpu-2x8",
        {"b": {"gpus/users": [{"gpu": 3, "pid": 77, "user": "bob", "command": "python y"}]}},
        "b",
        r"^the GPUs are in use: python y \(pid 77, user bob, GPU 3\)$",
        "ask that user",
        WARNING,
    ),
    "a process of another PID namespace": (
        "gpu-1x8",
        {"a": {"gpus/users": [{"gpu": 3, "pid": 77, "user": None, "command": "python"}] * 5}},
        "a",
        r"python \(pid 77, GPU 3\) and 2 more$",
        "wait",
        WARNING,
    ),
    "a lost GPU": (
        "gpu-2x8",
        {"b": {"gpus/rows": H100S[:7], "gpus/why": "Unable to determine the device handle: GPU is lost"}},
        "b",
        "^7 of 8 GPUs can be used; nvidia-smi: Unable .* lost$",
        "xid",
        FATAL,
    ),
    "no GPU by nvidia-smi": (
        "gpu-1x8",
        {"a": {"gpus/rows": [], "gpus/why": "No devices were found"}},
        "a",
        "^no GPU can be used; nvidia-smi: No devices were found$",
        "restart the host",
        FATAL,
    ),
    "an nvidia-smi that hangs": (
        "gpu-1x8",
        {"a": {"gpus/rows": [], "gpus/why": "no answer within 10 s", "gpus/late": True}},
        "a",
        "^nvidia-smi: no answer within 10 s$",
        "GPU that hangs",
        WARNING,
    ),
    "another model": (
        "gpu-3x8",
        {"b": {"gpus/rows": [{**row, "name": "NVIDIA A100-SXM4-40GB"} for row in H100S]}},
        "b",
        "^GPU model NVIDIA A100-SXM4-40GB, but NVIDIA H100 80GB HBM3 on the other 2 hosts$",
        "exclude the others",
        FATAL,
    ),
    "not the model of the slice's name": (
        "h100-16",
        {"*": {"gpus/rows": [{**row, "name": "NVIDIA GH100 80GB"} for row in H100S]}},
        "ab",
        "^h100-16 has H100 GPUs, but this host has NVIDIA GH100 80GB$",
        "gpu-2x8",
        FATAL,
    ),
    "two models in a host": (
        "gpu-2x8",
        {"a": {"gpus/rows": [*H100S[:7], {**H100S[7], "name": "NVIDIA L4"}]}},
        "a",
        "^GPUs of several models: NVIDIA H100 80GB HBM3, NVIDIA L4$",
        "CUDA_VISIBLE_DEVICES",
        FATAL,
    ),
    "ECC errors": (
        "gpu-2x8",
        {"b": {"gpus/rows": [*H100S[:7], {**H100S[7], "errors": 12}]}},
        "b",
        "^uncorrected ECC errors since the driver was loaded: GPU 7: 12$",
        "ROW_REMAPPER",
        WARNING,
    ),
    "ECC off": (
        "gpu-3x8",
        {"c": {"gpus/rows": [{**row, "ecc": "Disabled"} for row in H100S]}},
        "c",
        "^ECC off, but on on the other 2 hosts$",
        "nvidia-smi -e 1",
        WARNING,
    ),
    "little GPU memory": (
        "gpu-2x8",
        {"b": {"gpus/rows": [{**H100S[0], "free": 1 << 30}, *H100S[1:]]}},
        "b",
        r"^GPU 0: 1\.0 GiB of 80\.0 GiB free$",
        "XLA_PYTHON_CLIENT_MEM_FRACTION",
        WARNING,
    ),
    "an old driver for CUDA 13": (
        "gpu-2x8",
        {"*": {PKG + "jax-cuda13-plugin": "0.10.2"}},
        "ab",
        r"^NVIDIA driver 570\.86\.15 is too old for jax-cuda13-plugin, which needs 580$",
        "newer driver",
        FATAL,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_one_thing_that_is_wrong_is_one_finding_that_names_the_host(case: str) -> None:
    check_finding(CASES[case])


@pytest.mark.parametrize("case", [name for name in CASES if "x" in CASES[name][0] and CASES[name][1]])
def test_remedies_for_a_run_on_this_machine_need_no_pod_file(case: str) -> None:
    check_remedy_here(CASES[case])


@pytest.mark.parametrize(
    ("slice", "changes"),
    [
        ("h100-16", {}),
        ("h100-16", {"*": {"gpus": None}}),
        ("gpu-2x8", {"*": {"gpus": None}}),  # no nvidia-smi, as in many containers
        ("gpu-2x8", {"*": {"gpus/rows": [{**row, "ecc": None, "errors": None, "free": None} for row in H100S]}}),
    ],
)
def test_what_is_not_told_is_no_finding(slice: str, changes: dict[str, dict[str, Any]]) -> None:
    assert apply_rules(*changed(slice, changes), program=False) == []


@pytest.mark.parametrize("case", CASES)
def test_only_broken_hardware_speaks_against_a_host(case: str) -> None:
    """A process, a model, a driver or a late answer does not."""
    slice, changes, *_ = CASES[case]
    (finding,) = apply_rules(*changed(slice, changes), program=False)
    broken = {"a lost GPU": "hardware", "no GPU by nvidia-smi": "hardware", "ECC errors": "ecc"}
    assert finding.speaks_against == broken.get(case, "")

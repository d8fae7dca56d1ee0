"""Findings as text: a table that fits the terminal, and a last line that says whether the pod is ready."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from podrun.launcher.pod.pod import Host
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.preflight.rules import apply_rules
from podrun.launcher.preflight.run_preflight import Report
from podrun.launcher.preflight.table import render, summary

from .pods import PKG, changed, healthy, pod_of


def report_on(slice: str, changes: dict[str, dict[str, Any]]) -> Report:
    pod, by_host = changed(slice, changes)
    return Report(pod, by_host, findings=apply_rules(pod, by_host, program=False), coordinator="10.0.0.5:8476")


def test_a_row_has_the_usual_answer_and_under_it_the_odd_host_with_its_remedy() -> None:
    lines = render(report_on("cpu-4x2", {"c": {"interpreter/version": "3.12.1"}}), 100, colour=False).splitlines()
    row = next(i for i, line in enumerate(lines) if line.startswith("python"))
    assert re.fullmatch(r"python       3\.11\.7  /usr/bin/python3 +a, b, d", lines[row])
    assert lines[row + 1] == "  error: c: Python 3.12, but 3.11 on the other 3 hosts"
    assert lines[row + 2].startswith("    -> set `python:` in a pod file for --pod to a path")
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
    text = render(Report(pod, by_host, findings=apply_rules(pod, by_host, program=False)), width, colour=False)
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


@pytest.mark.parametrize(
    ("is_open", "jax", "said"),
    [
        (True, "0.10.2", "open to this machine: ports of gloo and JAX's coordinator"),
        (True, "0.12.0", "open to this machine: ports of gloo; JAX's coordinator asks for a certificate"),
        (False, "0.10.2", "this machine cannot connect to ports of a"),
        (None, "0.10.2", None),
    ],
)
def test_ports_that_strangers_can_connect_to(is_open: bool | None, jax: str, said: str | None) -> None:
    pod, by_host = changed("cpu-2x2", {host: {PKG + "jax": jax} for host in "ab"})
    lines = render(Report(pod, by_host, open_to_here=is_open), 200, colour=False).splitlines()
    rows = [line for line in lines if line.startswith("strangers")]
    assert [" ".join(row.split()) for row in rows] == ([f"strangers {said} (both hosts)"] if said else [])

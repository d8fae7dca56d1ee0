"""GPUs by nvidia-smi: recorded answers, told by an executable in its place."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.base.from_agent import Gpus
from podrun.launcher.agent.base.message import check_of
from podrun.launcher.agent.base.private import user_name
from podrun.launcher.agent.host.gpus import read_gpus
from podrun.launcher.agent.prepare import facts
from podrun.launcher.preflight.base import Finding
from podrun.launcher.preflight.rules import apply_rules
from podrun.launcher.preflight.run_preflight import Report
from podrun.launcher.preflight.table import render

from ..preflight.pods import changed, pod_of

H100 = "GPU-5c2b1f6e-0000-4f0e-9d5c-{0:012d}, 81559, 81008, Enabled, 0, NVIDIA H100 80GB HBM3"
A100 = "GPU-8a3f9d10-0000-4c51-b1a2-{0:012d}, 40960, 40325, Enabled, {1}, NVIDIA A100-SXM4-40GB"
RTX = "GPU-11f00e55-0000-4be1-a0c9-{0:012d}, 24564, 24043, [N/A], [N/A], NVIDIA GeForce RTX 4090"
LOST = "Unable to determine the device handle for GPU0000:41:00.0: GPU is lost.  Reboot the system to recover this GPU"
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver "
    "is installed and running."
)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 570.133"


def listing(*rows: str) -> str:
    return "".join(f"{i}, {row.format(i, 0)}\n" for i, row in enumerate(rows))


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what makes an nvidia-smi that prints these answers to the questions for GPUs and for processes."""

    def make(gpus: str, users: str = "", code: int = 0, before: str = "") -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(
            f"#!/bin/sh\n{before}\ncase $1 in --query-gpu=*) printf %s {shlex.quote(gpus)}; exit {code};;\n"
            f"--query-compute-apps=*) printf %s {shlex.quote(users)};;\n*) exit 9;; esac\n"
        )
        program.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return make


def gpus_of(env: dict[str, str] | None = None) -> dict[str, Any]:
    """Return what is read, as the launcher has checked it."""
    found = read_gpus(env or {}, limit=60)
    assert found is not None
    check_of(Gpus)(found)
    return found


def findings(slice: str) -> list[Finding]:
    return apply_rules(*changed(slice, {"a": {"gpus": gpus_of()}}), program=False)


def test_the_gpus_of_a_host(smi: Any) -> None:
    smi(listing(*[H100] * 8))
    found = gpus_of()
    assert (len(found["rows"]), found["users"], found["why"]) == (8, [], None)
    assert found["rows"][3] == {
        "index": 3,
        "uuid": "GPU-5c2b1f6e-0000-4f0e-9d5c-000000000003",
        "name": "NVIDIA H100 80GB HBM3",
        "memory": 81559 << 20,
        "free": 81008 << 20,
        "ecc": "Enabled",
        "errors": 0,
    }
    assert findings("gpu-2x8") == []


def test_errors_and_another_model_are_found(smi: Any) -> None:
    smi("".join(f"{i}, {A100.format(i, 2 * (i == 5))}\n" for i in range(8)))
    model, errors = findings("gpu-3x8")
    assert "NVIDIA A100-SXM4-40GB, but NVIDIA H100" in model.what and model.hosts == ("a",) and model.fatal
    assert errors.what.endswith("GPU 5: 2") and errors.hosts == ("a",)


def test_what_a_gpu_does_not_tell_is_not_known(smi: Any) -> None:
    smi(listing(RTX))
    assert {gpus_of()["rows"][0][key] for key in ("ecc", "errors")} == {None}
    assert findings("gpu-1x1")[1:] == []  # the first: of the healthy host's eight device files seven are to spare


@pytest.mark.parametrize(
    ("answer", "code", "what"),
    [
        ("No devices were found\n", 6, "no GPU can be used; nvidia-smi: No devices were found"),
        (NO_DRIVER, 9, "no GPU can be used; nvidia-smi: NVIDIA-SMI has failed because"),
        (MISMATCH, 18, "no GPU can be used; nvidia-smi: Failed to initialize NVML: Driver/library version mismatch"),
        (listing(*[H100] * 7) + LOST, 15, "7 of 8 GPUs can be used; nvidia-smi: Unable to determine the device handle"),
        ("", 0, "no GPU can be used; nvidia-smi: it lists no GPU"),
        ("\x1b[31m,,,,,,,\n" * 9999, 0, "no GPU can be used"),
    ],
)
def test_what_it_complains_of_is_a_finding(smi: Any, answer: str, code: int, what: str) -> None:
    smi(answer, code=code)
    (finding,) = findings("gpu-1x8")
    assert finding.what.startswith(what) and finding.fatal


def test_one_that_hangs_is_not_waited_for(smi: Any) -> None:
    smi("", before="exec sleep 100")
    found = read_gpus({}, limit=0.2)
    assert found is not None and found["late"]
    pod, by_host = changed("gpu-1x8", {"a": {"gpus": found}})
    assert "no answer within 0.2 s" in render(
        Report(pod, by_host, findings=apply_rules(pod, by_host, program=False)), 100, False
    )


def test_one_that_is_missing_or_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_gpus({}) is None
    (tmp_path / "nvidia-smi").write_text("#!/no/such/interpreter\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    found = read_gpus({})
    assert found is not None and found["why"].startswith("it cannot be started: No such file")


def test_processes_have_a_user_and_a_command(smi: Any) -> None:
    """Take a number that belongs to another process here for one of another PID namespace, whose user is not known."""
    command = Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode()
    uuid = H100.split(",")[0].format(1)
    mine, other = f"{uuid}, {os.getpid()}, {command}\n", f"{uuid}, {os.getpid()}, /opt/other, with commas\n"
    smi(listing(H100, H100), f"{mine}{other}GPU-of-another, 7, x\n[N/A]\n")
    first, second = gpus_of()["users"]
    assert (first["gpu"], first["user"], first["pid"]) == (1, user_name(os.getuid()), os.getpid())
    assert first["command"].startswith(command)
    assert (second["user"], second["command"]) == (None, "/opt/other, with commas")


@pytest.mark.parametrize(
    ("chosen", "indices"),
    [("2,0", [2, 0]), ("GPU-5c2b1f6e-0000-4f0e-9d5c-000000000001", [1]), ("MIG-x", [0, 1, 2, 3]), ("", [0, 1, 2, 3])],
)
def test_only_gpus_that_workers_may_use_count(smi: Any, chosen: str, indices: list[int]) -> None:
    smi(listing(*[H100] * 4))
    assert [row["index"] for row in gpus_of({"CUDA_VISIBLE_DEVICES": chosen})["rows"]] == indices


def test_only_hosts_with_gpus_are_asked(smi: Any) -> None:
    smi(listing(H100))
    request = {"python": "no-such-python", "env": {}}
    assert facts.gather({**request, "platform": "cpu"})["gpus"] is None
    assert len(facts.gather({**request, "platform": "cuda"})["gpus"]["rows"]) == 1


def test_the_table_says_what_they_are(smi: Any) -> None:
    smi(listing(*[H100] * 8))
    pod, by_host = changed("gpu-2x8", {"*": {"gpus": gpus_of()}})
    text = render(Report(pod, by_host), 120, False)
    assert "8 GPUs of 8: NVIDIA H100 80GB HBM3" in text
    assert "at least 79.1 GiB free on each GPU" in text
    assert pod_of("gpu-2x8").platform == "cuda"

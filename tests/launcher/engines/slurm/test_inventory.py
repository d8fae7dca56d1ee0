"""The nodes of a SLURM job, from what its programs answer; scripts with fixed answers stand for them here."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.engines.slurm.inventory import gpus
from podrun.launcher.engines.slurm.options import BatchOptions
from podrun.launcher.inventory.find import PodRequest, find_pod
from podrun.launcher.pod.pod import Host
from podrun.runtime.contract import UserError

JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
ADDRESSES = "n1|10.0.0.1\nn2|n2.example.org\nn2|n2.example.org\n"


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job of two nodes; the files `scontrol` and `sinfo` are what these programs print."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("scontrol", "n1\nn2\n"), ("sinfo", ADDRESSES)):
        (tmp_path / name).write_text(text)
        (programs / name).write_text(
            f"#!/bin/sh\n[ -s {tmp_path / name} ] || {{ echo {name}: error: down >&2; exit 1; }}\n"
        )
        with (programs / name).open("a") as script:
            script.write(f"cat {tmp_path / name}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_JOB_GPUS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def refused(slice: str | None = "cpu-2x1", pod: Path | None = None) -> str:
    with pytest.raises(UserError) as caught:
        find_pod(PodRequest(slice, pod, {"slurm": ""}))
    return str(caught.value)


def test_the_nodes_of_the_job(answers: Path) -> None:
    """In SLURM's order, with the addresses that its daemons use."""
    pod = find_pod(PodRequest("cpu-2x1", inventories={"slurm": ""}))
    assert pod.hosts == (Host("n1", "n1", "10.0.0.1"), Host("n2", "n2", "n2.example.org"))
    assert (pod.transport, pod.queue_job, pod.platform) == ("slurm", "7", "cpu")
    assert pod.python and Path(pod.python).is_absolute()


def test_a_pod_file_adds_settings(answers: Path) -> None:
    """Its hosts are not asked for; its interpreter goes first."""
    file = answers / "pod.yaml"
    file.write_text("python: /opt/python\nworkdir: /shared\nhosts: others\nsetup: 'true'\n")
    pod = find_pod(PodRequest("cpu-2x1", file, {"slurm": ""}))
    assert [host.name for host in pod.hosts] == ["n1", "n2"]
    assert (pod.python, pod.workdir, pod.setup) == ("/opt/python", "/shared", ("true",))
    file.write_text("transport: ssh\nhosts: n1, n2\n")
    assert "pod.yaml says `transport: ssh`, but its hosts are reached by srun; remove one" in refused(pod=file)


def test_the_gpus_of_the_job_are_the_slice(answers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    assert find_pod(PodRequest(inventories={"slurm": ""})).slice.name == "gpu-2x4"
    for slice in ("gpu-2x4", "gpu-2x1", "cpu-2x8"):
        assert find_pod(PodRequest(slice, inventories={"slurm": ""})).slice.name == slice
    assert "4 devices on each host, but gpu-2x8 has 8; give a slice with at most that many" in refused("gpu-2x8")
    assert "2 hosts, but gpu-4x4 has 4 hosts; give 4 hosts, or the slice gpu-2x4" in refused("gpu-4x4")


def test_without_gpus_a_slice_is_needed(answers: Path) -> None:
    assert "no slice" in refused(None)


@pytest.mark.parametrize(
    ("env", "number"),
    [
        ({}, None),
        ({"SLURM_GPUS_ON_NODE": "8"}, 8),
        ({"SLURM_GPUS_ON_NODE": "0"}, None),
        ({"SLURM_GPUS_PER_NODE": "4"}, 4),
        ({"SLURM_GPUS_PER_NODE": "a100:4"}, 4),
        ({"SLURM_GPUS_PER_NODE": "gpu:a100_80g:2(S:0-1)"}, 2),
        ({"SLURM_JOB_GPUS": "0,1,3"}, 3),
        ({"SLURM_JOB_GPUS": "GPU-x"}, None),
        ({"SLURM_GPUS_PER_NODE": "a100:2,v100:2"}, None),
        ({"SLURM_GPUS_ON_NODE": "1e3", "SLURM_JOB_GPUS": "5"}, 1),
    ],
)
def test_numbers_of_gpus(env: dict[str, str], number: int | None) -> None:
    assert gpus(env) == number


@pytest.mark.parametrize("name", JOB)
def test_outside_of_a_job(answers: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(name)
    assert "this is no SLURM job" in refused()
    assert "sbatch" in refused()


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("SLURM_JOB_ID", "7; rm", "is not the id of a job"),
        ("SLURM_JOB_ID", "--all", "is not the id of a job"),
        ("SLURM_JOB_NODELIST", "--help", "is no list of nodes"),
        ("SLURM_JOB_NODELIST", "n1 $(x)", "is no list of nodes"),
    ],
)
def test_variables_that_slurm_has_not_set(
    answers: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, what: str
) -> None:
    monkeypatch.setenv(name, value)
    assert what in refused()


@pytest.mark.parametrize(
    ("program", "answer", "what"),
    [
        ("scontrol", "", "--slurm: down"),
        ("sinfo", "", "--slurm: down"),
        ("scontrol", "n1\nn1\n", "names a node twice"),
        ("scontrol", "n1\n-oProxy\n", "not the name of a host"),
        ("scontrol", "n[1-2]\n", "not the name of a host"),
        ("scontrol", "\n", "names 0 nodes"),
        ("scontrol", "n\n" * 10001, "names 10001 nodes"),
    ],
)
def test_answers_that_cannot_be(answers: Path, program: str, answer: str, what: str) -> None:
    (answers / program).write_text(answer)
    assert what in refused()


def test_addresses_that_cannot_be_are_names(answers: Path) -> None:
    (answers / "sinfo").write_text("n1|-x\nn2|(null)\nn3\n|\n\n")
    pod = find_pod(PodRequest("cpu-2x1", inventories={"slurm": ""}))
    assert [host.internal for host in pod.hosts] == ["n1", "n2"]


def test_several_podruns_of_one_srun_are_refused(answers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`srun podrun --slurm` would run everything as often as it has tasks; one task, as of `srun --pty bash`, is fine."""
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    assert len(find_pod(PodRequest("cpu-2x1", inventories={"slurm": ""})).hosts) == 2
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert "started podrun 2 times (this is task 1)" in refused() and "call podrun without srun" in refused()
    with pytest.raises(UserError, match="call podrun without srun"):
        find_pod(PodRequest("cpu-2x1", inventories={"slurm": BatchOptions(())}))


def test_a_job_of_several_parts_is_refused(answers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """podrun would take the nodes of the first, without a word of the others."""
    monkeypatch.setenv("SLURM_HET_SIZE", "2")
    assert "this job has 2 parts (a heterogeneous job)" in refused()


def test_a_machine_without_slurm(answers: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(answers))
    (answers / "scontrol").unlink()
    assert "there is no `scontrol` in the PATH of this machine; is SLURM installed here?" in refused()

"""Find at its submission what would keep a job from starting on its nodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.engines.slurm import checks as queue_checks
from podrun.launcher.engines.slurm.checks import queue_mistakes
from podrun.launcher.engines.slurm.options import BatchOptions, parse_options
from podrun.launcher.inventory.find import find_pod
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.pod.pod import Pod


@pytest.fixture
def sinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that `sinfo` prints when it is asked for partitions; its nodes are n1 and n2."""
    programs = tmp_path / "bin"
    programs.mkdir()
    answer = tmp_path / "partitions"
    answer.write_text("cpu*|1:00:00|infinite\ngpu|1:00|2-00:00:00\nlong|n/a|infinite\nshort|n/a|2:00\n")
    (programs / "sinfo").write_text(f'#!/bin/sh\ncase "$*" in *%n*) echo n1; echo n2;; *) cat {answer};; esac\n')
    (programs / "sbatch").write_text("#!/bin/sh\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setattr(queue_checks, "_OWN_FOLDERS", ())
    return answer


def pod(*secrets: str, file: Path | None = None) -> Pod:
    found = find_pod(PodRequest("cpu-2x1", inventories={"slurm": BatchOptions(())}))
    return replace(found, secrets=secrets, secrets_file=file)


def mistakes(typed: str, pod: Pod | None = None, **env: str) -> str:
    return "\n".join(queue_mistakes(parse_options(typed), pod, env))


@pytest.mark.parametrize(
    ("typed", "env", "missing"),
    [
        ("time=10", {}, None),
        ("time=10,export=ALL", {}, None),
        ("time=10,export=ALL,A=1", {}, None),
        ("time=10,export=KEY,TOKEN", {}, None),
        ("time=10,export=NONE", {}, "KEY, TOKEN"),
        ("time=10,export=NIL", {}, "KEY, TOKEN"),
        ("time=10,export=TOKEN", {}, "KEY"),
        ("time=10", {"SBATCH_EXPORT": "NONE"}, "KEY, TOKEN"),
    ],
)
def test_secrets_that_do_not_reach_the_job(sinfo: Path, typed: str, env: dict[str, str], missing: str | None) -> None:
    told = mistakes(typed, pod("KEY", "TOKEN"), **env)
    assert (f"keeps the secret {missing} from the job" in told) if missing else told == ""
    assert mistakes("time=10,export=NONE", pod()) == ""


def test_secrets_in_a_file_need_no_environment(sinfo: Path, tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text("KEY=1\n")
    file.chmod(0o600)
    assert mistakes("time=10,export=NONE", pod("KEY", file=file)) == ""


@pytest.mark.parametrize(
    ("typed", "env", "limit"),
    [
        ("qos=high", {}, None),
        ("partition=gpu", {}, "1:00 (the default of the partition gpu)"),
        ("partition=cpu,gpu", {}, "1:00 (the default of the partition gpu)"),
        ("partition=gpu,time=10", {}, None),
        ("partition=gpu,signal=30", {}, None),
        ("partition=long", {}, None),
        ("partition=short", {}, "2:00 (the default of the partition short)"),
        ("partition=none", {}, None),
        ("qos=high", {"SBATCH_PARTITION": "gpu"}, "1:00 (the default"),
        ("partition=gpu", {"SBATCH_TIMELIMIT": "10"}, None),
        ("qos=high", {"SBATCH_TIMELIMIT": "1"}, "1 (SBATCH_TIMELIMIT)"),
    ],
)
def test_a_default_time_that_is_too_short_to_save(
    sinfo: Path, typed: str, env: dict[str, str], limit: str | None
) -> None:
    told = mistakes(typed, **env)
    assert (f"the job's time limit would be {limit}" in told and "time=1:00:00" in told) if limit else told == ""


def test_folders_that_the_nodes_do_not_see(sinfo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are named; a file system of a network makes them the nodes' own, wherever it is mounted."""
    monkeypatch.setattr(queue_checks, "_OWN_FOLDERS", (str(tmp_path / "tmp"),))
    monkeypatch.setattr(queue_checks, "_file_system_type", lambda path: "ext4")
    (tmp_path / "tmp" / "project").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "tmp" / "project")
    monkeypatch.setenv("PODRUN_HOME", str(tmp_path / "tmp" / "home"))
    told = mistakes("time=10")
    assert f"PODRUN_HOME is {tmp_path}/tmp/home, a folder that is local to each machine; set it to a folder" in told
    assert f"the folder in which podrun was called is {tmp_path}/tmp/project" in told
    monkeypatch.setattr(queue_checks, "_file_system_type", lambda path: "nfs4")
    assert mistakes("time=10") == ""


def test_types_of_file_systems() -> None:
    assert queue_checks._file_system_type(Path("/proc/self")) == "proc"
    assert queue_checks._file_system_type(Path("/dev/shm/none")) == "tmpfs"


def test_a_machine_without_slurm_says_nothing_of_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    assert mistakes("partition=gpu,export=NONE", pod("KEY")) == ""

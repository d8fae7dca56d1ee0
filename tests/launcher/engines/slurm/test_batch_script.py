"""Write the batch script of a submitted run, and the arguments of sbatch."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from podrun.launcher.engines.slurm.batch_script import array_option, batch_options, batch_script, output_pattern
from podrun.launcher.engines.slurm.options import parse_options
from podrun.launcher.inventory.find import find_pod
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.pod.run_id import Task, task_of, task_run_id

OUTPUT = "/home/me/.podrun/runs/r/job.out"


def words(typed: str, slice: str = "gpu-2x8", output: str = OUTPUT) -> list[str]:
    options = parse_options(typed)
    return batch_options(options, find_pod(PodRequest(slice, inventories={"slurm": options})), "podrun-train", output)


def test_spares_are_nodes_without_which_the_job_goes_on() -> None:
    given = words("spares=2")
    assert given[1] == "--nodes=4" and "--no-kill" in given
    assert not any("spares" in word for word in given)


def test_what_the_slice_needs() -> None:
    assert words("partition=gpu") == [
        "--job-name=podrun-train",
        "--nodes=2",
        "--signal=B:USR1@120",
        "--requeue",
        "--open-mode=append",
        f"--output={OUTPUT}",
        "--ntasks-per-node=1",
        "--gpus-per-node=8",
        "--partition=gpu",
    ]


def test_the_user_says_it_otherwise() -> None:
    """Put what the user gives last, which sbatch follows; ask for GPUs and tasks once."""
    given = words("gres=gpu:h100:8,ntasks-per-node=8,no-requeue,job-name=mine")
    assert "--gpus-per-node=8" not in given and "--ntasks-per-node=1" not in given
    assert given[-4:] == ["--gres=gpu:h100:8", "--ntasks-per-node=8", "--no-requeue", "--job-name=mine"]


def test_a_slice_of_processors_asks_for_no_gpus() -> None:
    assert not any("gpu" in word for word in words("time=10", "cpu-4x1"))


def test_a_percent_sign_in_the_path_is_no_pattern() -> None:
    assert output_pattern(Path("/home/100%j"), "r") == "/home/100%%j/runs/r/job.out"


def test_tasks_of_an_array_share_script_and_options(tmp_path: Path) -> None:
    """Each task finds its run directory by its number, written with the digits of the run ids."""
    group = "20261123-151707-c47a9f"
    ids = [task_run_id(group, number, 12) for number in range(12)]
    assert (ids[0], ids[11]) == (f"{group}_00", f"{group}_11") and ids == sorted(ids)
    assert task_of(ids[7]) == Task(group, 7, 2) and task_of(group) is None
    assert output_pattern(Path("/home/100%j"), ids[0]) == f"/home/100%%j/runs/{group}_%2a/job.out"
    assert [array_option(0, 11, 4), array_option(0, 0, 4), array_option(3, 3)] == [
        "--array=0-11%4",
        "--array=0",
        "--array=3",
    ]
    script = batch_script(ids[0], ["--array", "a=1"], tmp_path, Path("/my home"), ["echo"])
    done = subprocess.run(
        ["sh"], input=script, env={**os.environ, "SLURM_ARRAY_TASK_ID": "7"}, capture_output=True, text=True, timeout=20
    )
    assert done.stdout == f"/my home/runs/{ids[7]}\n", done.stderr


def test_the_script_runs_what_it_says_whatever_was_typed(tmp_path: Path) -> None:
    """Names with quotes, dollars and newlines neither end the comment nor reach a shell."""
    folder = tmp_path / "it's $HOME"
    folder.mkdir()
    typed = ["--slurm=time=10", "a\ntouch INJECTED\n", "$(touch INJECTED)"]
    script = batch_script(
        "r", typed, folder, Path("/h'x"), ["sh", "-c", 'pwd; echo "$PODRUN_HOME"; echo "$@"', "sh", "$x 'y'"]
    )
    done = subprocess.run(["sh"], input=script, cwd=tmp_path, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [str(folder), "/h'x", "$x 'y' /h'x/runs/r"]
    assert not list(tmp_path.rglob("INJECTED"))

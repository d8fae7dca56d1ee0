"""Parse what a job is asked for with: `--slurm=partition=gpu,time=2:00:00`."""

from __future__ import annotations

import pytest

from podrun.launcher.engines.slurm.options import BatchOptions, parse_options, seconds
from podrun.launcher.inventory.find import find_pod
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.runtime.contract import UserError


@pytest.mark.parametrize(
    ("typed", "given"),
    [
        ("partition=gpu,time=2:00:00", (("partition", "gpu"), ("time", "2:00:00"))),
        ("exclude=n1,n2,exclusive,qos=high", (("exclude", "n1,n2"), ("exclusive", None), ("qos", "high"))),
        ("gres=gpu:a100:8,license=x", (("gres", "gpu:a100:8"), ("license", "x"))),
        ("nodelist=n[1,3-4]", (("nodelist", "n[1,3-4]"),)),
        ("some-new-option=1", (("some-new-option", "1"),)),
        ("constraint=a&b,comment=$(id); x", (("constraint", "a&b"), ("comment", "$(id); x"))),
    ],
)
def test_options_are_passed_through(typed: str, given: tuple[tuple[str, str | None], ...]) -> None:
    assert parse_options(typed).given == given


def test_the_signal_is_podruns_own() -> None:
    assert parse_options("time=10").lead == 120
    assert parse_options("signal=30,time=10") == BatchOptions((("time", "10"),), 30)


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("gpu", ["'gpu' is not an option of sbatch", "partition=gpu"]),
        ("", ["is not an option of sbatch"]),
        ("Time=2", ["'Time=2' is not an option"]),
        ("nodes=4,array=1-3", ["nodes: the slice says how many", "`podrun --array KEY=A,B` submits an array of runs"]),
        ("spares=one", ["spares is 'one'; give the number of nodes beyond"]),
        (
            "container-image=a.sqsh",
            ["container-image: podrun itself would run in the image", "`container:` in a pod file"],
        ),
        ("partition=", ["partition has no value"]),
        ("comment=a\nb", ["cannot be printed"]),
        ("signal=B:USR1@60", ["give the seconds before the time limit"]),
        ("time=1", ["time is 1, and podrun would save 120 s before its end"]),
        ("time=0:50,signal=60", ["time is 0:50"]),
    ],
)
def test_mistakes_are_told(typed: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        parse_options(typed)
    for word in words:
        assert word in str(caught.value)
    assert all(line.startswith("--slurm: ") for line in str(caught.value).splitlines())


@pytest.mark.parametrize(
    ("limit", "whole"),
    [
        ("90", 5400),
        ("1:30", 90),
        ("2:00:00", 7200),
        ("1-0", 86400),
        ("1-2:30", 95400),
        ("1-2:30:15", 95415),
        ("x", None),
    ],
)
def test_times_as_sbatch_takes_them(limit: str, whole: int | None) -> None:
    assert seconds(limit) == whole


def test_the_pod_of_a_job_that_does_not_exist_yet() -> None:
    """Give it as many nodes as the slice has hosts, whatever names they will have."""
    pod = find_pod(PodRequest("gpu-2x8", inventories={"slurm": BatchOptions(())}))
    assert [host.name for host in pod.hosts] == ["node-0", "node-1"]
    assert (pod.transport, pod.queue_job, pod.platform) == ("slurm", None, "cuda")


def test_spares_are_the_last_nodes() -> None:
    pod = find_pod(PodRequest("gpu-2x8", inventories={"slurm": parse_options("spares=1")}))
    assert [host.name for host in pod.hosts] == ["node-0", "node-1"]
    assert [host.name for host in pod.spares] == ["node-2"]


def test_other_commands_need_a_job() -> None:
    with pytest.raises(UserError, match="other commands take `--slurm` inside of a job"):
        find_pod(PodRequest("cpu-2x1", inventories={"slurm": "partition=gpu"}))

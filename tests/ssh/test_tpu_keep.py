"""`podrun tpu keep` on hosts that a service takes away and gives back: one run, whatever happens to its machines."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ..conftest import SMALL, Sandbox, make_sandbox
from ..gcloud import ZONE, Service
from ..hosts import Hosts, wait_until
from ..pod.programs import FAULTY
from .pod import PROGRAMS, PodSandbox

NAMES = ["h0", "h1"]
JOB = SMALL.replace("steps: 6", "steps: 40").replace("checkpoint: {every: 0}", "checkpoint: {every: 2}")


class KeptPod(PodSandbox):
    """podrun where `gcloud` is a service whose TPU VM `my-tpu` has the hosts h0 and h1."""

    def __init__(self, path: Path, hosts: Hosts) -> None:
        super().__init__(path, hosts)
        (path / "bin").mkdir()
        self.service = Service(path / "bin", [hosts.address(name) for name in NAMES])

    @property
    def command(self) -> list[str]:
        return [*self.hosts.prefix, sys.executable, str(PROGRAMS / "podrun_on_cpus.py")]

    @property
    def env(self) -> dict[str, str]:
        return {**super().env, "PATH": f"{self.path / 'bin'}:{os.environ['PATH']}"}

    def keep(self, *words: str, where: Sequence[str] = ("--zone", ZONE, "--slice", "v4-16")) -> subprocess.Popen[str]:
        """Start `podrun tpu keep`, with its output in the file `out`."""
        where = ["my-tpu", *where, "--spot", "--pod", "pod.yaml", "--yes"]
        with (self.path / "out").open("w") as out:
            return subprocess.Popen(
                [*self.command, "tpu", "keep", *where, *words],
                cwd=self.path,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
            )

    @property
    def out(self) -> str:
        return (self.path / "out").read_text()

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """Return the events of these kinds so far."""
        found = []
        for path in (self.path / "home" / "runs").glob("*/events.jsonl"):
            lines = path.read_text().splitlines(keepends=True)
            found += [json.loads(line) for line in lines if line.endswith("\n")]
        return [event for event in found if event["event"] in kinds]


@pytest.fixture
def kept(hosts: Hosts, tmp_path: Path) -> Iterator[KeptPod]:
    """Write a pod file without hosts, and a job that stands still after some steps unless `permitted` allows more."""
    pod = KeptPod(make_sandbox(tmp_path).path, hosts)
    pod.write_pod([], slice="v4-16", hosts=None, ssh={"user": "root", "key": str(hosts.key)})
    shutil.copy(FAULTY, pod.path)
    (pod.path / "job.yaml").write_text(JOB)
    permit(pod, 6)
    yield pod
    pod.close()


def permit(pod: KeptPod, steps: int) -> None:
    """Let each attempt make so many steps from its start."""
    (pod.path / "permitted.new").write_text(str(steps))
    (pod.path / "permitted.new").replace(pod.path / "permitted")


def data(pod: KeptPod) -> str:
    return f"data={{name: 'faulty:held', options: {{file: '{pod.path / 'permitted'}'}}}}"


def saved(pod: KeptPod, attempt: int) -> Callable[[], bool]:
    """Return whether an attempt, the last one, has a checkpoint of its own."""

    def look() -> bool:
        *before, last = [{}, *pod.events("start", "checkpoint")]
        starts = [event for event in before if event.get("event") == "start"]
        return last.get("event") == "checkpoint" and len(starts) == attempt + 1

    return look


def take_away(pod: KeptPod, hosts: Hosts, **now: Any) -> None:
    """Take the machines: Google says so by `now`, and other ones have the addresses already."""
    queued = pod.service.state["queued"]["my-tpu"]
    for name in NAMES:
        hosts.kill(name)
    pod.service.change(queued={"my-tpu": {**queued, **now}})
    for name in NAMES:
        hosts.start(name)


def vanish(pod: KeptPod, hosts: Hosts, **now: Any) -> None:
    """Take the machines without a word: no packet arrives any more. Those that come later have the addresses."""
    queued = pod.service.state["queued"]["my-tpu"]
    taken = pod.out.count("was taken away by Google")
    for name in NAMES:
        hosts.cut(name)
    pod.service.change(queued={"my-tpu": {**queued, **now}})
    wait_until(lambda: pod.out.count("was taken away by Google") > taken, "that it is noticed", 120)
    for name in NAMES:
        hosts.kill(name)
    hosts.restore()


SUSPENDED = {"state": {"state": "SUSPENDED", "stateInitiator": "SERVICE"}}
TAKEN: tuple[dict[str, Any], ...] = (
    SUSPENDED,
    {"vm_state": "PREEMPTED"},
    {"course": ["SUSPENDING", "SUSPENDING", "SUSPENDED"]},
    {"vm_state": "TERMINATED"},
    {"course": ["ACTIVE", "ACTIVE", "SUSPENDED"]},  # Google is slow to say so
)


@pytest.mark.parametrize(
    "series",
    [pytest.param(TAKEN[1:3], marks=pytest.mark.long), pytest.param(TAKEN, marks=pytest.mark.nightly)],
    ids=len,
)
def test_preemptions_are_one_run(kept: KeptPod, hosts: Hosts, series: tuple[dict[str, Any], ...]) -> None:
    """With the losses of a run that nobody has disturbed, bit for bit."""
    process = kept.keep("job.yaml", data(kept))
    for number, now in enumerate(series):
        wait_until(saved(kept, number), f"a checkpoint of attempt {number}: {kept.out}", 60)
        (vanish if now is TAKEN[1] else take_away)(kept, hosts, **now)
    permit(kept, 1000)
    assert process.wait(120) == 0, kept.out
    assert kept.service.state["created"] == len(series) + 1
    assert [event["attempt"] for event in kept.events("start")] == list(range(len(series) + 1))
    assert len(list((kept.path / "home" / "runs").iterdir())) == 1
    assert [event["ending"] for event in kept.events("restart")] == ["taken"] * len(series)
    assert "podrun: done" in kept.out.splitlines()[-1] and "podrun tpu down my-tpu --zone" in kept.out
    lines = [json.loads(line) for line in (kept.path / "shared/job/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(1, 41))
    here = Sandbox(kept.path).podrun("--slice=v4-16", "--simulate", "--workdir=alone", "job.yaml", data(kept))
    assert here.returncode == 0, here.stderr
    assert kept.losses("shared/job") == kept.losses("alone")


def test_a_failure_of_its_own_ends_it(kept: KeptPod) -> None:
    """The machines are there, so nothing is created again."""
    process = kept.keep("--", "sh", "-c", "exit 7")
    assert process.wait(120) == 7, kept.out
    assert kept.service.state["created"] == 1 and "my-tpu" in kept.service.state["queued"]
    assert kept.out.rstrip().endswith("[exit code 7]")
    assert f"my-tpu stays: `podrun tpu down my-tpu --zone {ZONE}` deletes it; until then it costs\n" in kept.out


@pytest.mark.long
def test_ctrl_c_ends_the_run_and_leaves_the_tpu(kept: KeptPod) -> None:
    process = kept.keep("job.yaml", data(kept))
    wait_until(lambda: bool(kept.events("step")), "a step", 120)
    process.send_signal(signal.SIGINT)
    permit(kept, 1000)
    assert process.wait(120) == 130, kept.out
    assert kept.service.state["created"] == 1 and "my-tpu" in kept.service.state["queued"]
    assert "my-tpu stays" in kept.out and "podrun: interrupted" in kept.out.splitlines()[-1]


@pytest.mark.long
def test_ctrl_c_while_it_waits_for_new_machines(kept: KeptPod, hosts: Hosts) -> None:
    """The request stays in the queue."""
    kept.service.change(courses=[["ACTIVE"], ["WAITING_FOR_RESOURCES"]])
    process = kept.keep("job.yaml", data(kept))
    wait_until(lambda: bool(kept.events("step")), "a step", 120)
    take_away(kept, hosts, **SUSPENDED)
    wait_until(lambda: "WAITING_FOR_RESOURCES" in kept.out, "the queue", 120)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130, kept.out
    assert "my-tpu stays" in kept.out and "my-tpu" in kept.service.state["queued"]


def take_group_away(pod: KeptPod, hosts: Hosts, zone: str, other: str) -> None:
    """Take the machines of a group: its zone has no more, the other one has some, which have the addresses already."""
    service = pod.service
    for name in NAMES:
        hosts.kill(name)
    group = service.compute["groups"][f"{zone}/my-tpu"]
    quota = "QUOTA_EXCEEDED: Quota 'TPUS_PER_TPU_FAMILY' exceeded. Limit: 0.0"
    service.change_compute(
        groups={f"{zone}/my-tpu": {**group, "now": "TERMINATED", "course": []}},
        by_zone={zone: ["PENDING", [quota, quota]], other: ["PENDING", "STAGING", "RUNNING"]},
    )
    for name in NAMES:
        hosts.start(name)


@pytest.mark.parametrize(
    "preemptions", [pytest.param(2, marks=pytest.mark.long), pytest.param(5, marks=pytest.mark.nightly)]
)
def test_preemptions_of_a_group_in_two_zones(kept: KeptPod, hosts: Hosts, preemptions: int) -> None:
    """One run with one group at a time, and nothing of it at the end."""
    kept.service.change_compute(addresses=[hosts.address(name) for name in NAMES])
    zones = (ZONE, "us-east5-b")
    where = ("--zones", ",".join(zones), "--slice", "v5p-16", "--down")
    process = kept.keep("job.yaml", data(kept), where=where)
    for number in range(preemptions):
        wait_until(saved(kept, number), f"a checkpoint of attempt {number}: {kept.out}", 60)
        take_group_away(kept, hosts, zones[number % 2], zones[1 - number % 2])
    permit(kept, 1000)
    assert process.wait(120) == 0, kept.out
    assert [event["ending"] for event in kept.events("restart")] == ["taken"] * preemptions
    lines = [json.loads(line) for line in (kept.path / "shared/job/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "train"] == list(range(1, 41))
    assert kept.service.compute["most"] == 1 and kept.service.ledger == []
    assert kept.out.splitlines()[-1] == "podrun: my-tpu is deleted"
    assert "my-tpu had machines for 0.0" in kept.out

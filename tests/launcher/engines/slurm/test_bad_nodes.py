"""Leave the bad nodes of a cluster out of a submitted job, if SLURM has enough others."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from podrun.launcher.engines.slurm.bad_nodes import without_bad_nodes
from podrun.launcher.engines.slurm.batch_script import batch_options
from podrun.launcher.engines.slurm.options import parse_options
from podrun.launcher.inventory.find import find_pod
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.rundir.host_history import AttemptOfHosts, HostFailure
from podrun.launcher.rundir.host_record import note_attempt, record_path


@pytest.fixture(autouse=True)
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """SLURM with the nodes n1 to n4, of which a job may exclude all but those in the file that is returned."""
    programs = tmp_path / "bin"
    programs.mkdir()
    needed = tmp_path / "needed"
    needed.write_text("none")
    (programs / "sinfo").write_text("#!/bin/sh\nprintf 'n1\\nn2\\nn3\\nn4\\n'\n")
    refused = 'echo "allocation failure: Requested node configuration is not available" >&2; exit 1'
    (programs / "sbatch").write_text(
        f'#!/bin/sh\ncase "$*" in *--test-only*--exclude=*$(cat {needed})*) {refused};; *--test-only*) ;; *) exit 7;; esac\n'
    )
    for program in programs.iterdir():
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("PODRUN_HOME", str(tmp_path / "home"))
    return needed


def fail(*nodes: str, place: str = "slurm") -> None:
    for number in range(3):
        gone = {node: HostFailure("lost", "gone") for node in nodes}
        note_attempt(AttemptOfHosts(time.time(), f"r{number}", place, {node: node for node in nodes}, gone))


def submitted(typed: str, excludes_bad: bool = False) -> tuple[list[str], list[str]]:
    """Return the options `--exclude` of the job, and what the user is told."""
    told: list[str] = []
    options = parse_options(typed)
    pod = replace(find_pod(PodRequest("cpu-2x1", inventories={"slurm": options})), excludes_bad=excludes_bad)

    def words(options: object) -> list[str]:
        return batch_options(options, pod, "podrun-train", "/home/me/job.out")  # type: ignore[arg-type]

    chosen = words(without_bad_nodes(options, pod, words, told.append))
    return [word for word in chosen if "exclude" in word], told


WHY = "which failed 3 times in its last 3 runs (lost 3)"


def test_bad_nodes_are_excluded() -> None:
    assert submitted("time=10,exclude=bad") == ([], [])
    fail("n2")
    fail("n9")  # of another cluster
    fail("n3", place="ssh")
    told = [f"left out of the job: n2, {WHY}; `podrun hosts clear n2` takes it back"]
    assert submitted("time=10,exclude=bad") == (["--exclude=n2"], told)
    assert submitted("time=10", excludes_bad=True) == (["--exclude=n2"], told)
    assert submitted("exclude=n[3-4],bad,time=10") == (["--exclude=n[3-4],n2"], told)
    assert submitted("exclude=n2,bad") == (["--exclude=n2"], [])
    assert submitted("exclude=n1") == (["--exclude=n1"], [])
    assert submitted("time=10") == ([], [])


def test_too_few_other_nodes(slurm: Path) -> None:
    fail("n2")
    slurm.write_text("n2")
    told = [f"not left out, since SLURM has too few other nodes: n2, {WHY}"]
    assert submitted("exclude=n1,bad") == (["--exclude=n1"], told)


def test_a_job_that_cannot_start_anyhow(slurm: Path) -> None:
    """sbatch's own error tells the user."""
    fail("n2")
    slurm.write_text("n1")
    assert submitted("exclude=n1,bad")[0] == ["--exclude=n1,n2"]


def test_what_cannot_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    fail("n2")
    monkeypatch.setenv("PATH", "/nowhere")
    options, told = submitted("exclude=n1,bad")
    assert options == ["--exclude=n1"]
    assert told == [
        "warning: the bad nodes n2 are not left out: there is no `sinfo` in the PATH of this machine; is SLURM "
        "installed here?"
    ]
    record_path().chmod(0o666)
    assert submitted("exclude=bad")[1][0].startswith("warning: which nodes are bad is unknown: other users may write")

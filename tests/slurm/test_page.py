"""Type the commands of docs/slurm.md on a real SLURM, with what this cluster has in place of GPUs and of /shared."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ..tutorial import Command, commands, run
from .conftest import JobSandbox, LoginNode

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

PAGE = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text()


def section(title: str, folder: Path) -> list[Command]:
    """Return the commands of podrun's in a section of the page, for this cluster."""
    (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    text = re.sub(r"```\n(podrun .*)\n```", r"    \1", text)
    for theirs, ours in (("/shared", f"{folder}/shared"), ("partition=gpu,", ""), ("gpu-2x8", "cpu-1x1")):
        text = text.replace(theirs, ours)
    found = commands(text)
    assert found
    return found


def test_from_nothing_to_a_resumed_run(login: LoginNode) -> None:
    """The second job goes on where the first has ended."""
    (login.path / "train.yaml").unlink()
    typed = section("From nothing to a resumed run", login.path)
    assert [shlex.split(command.line)[1] for command in typed][-2:] == ["attach", "ps"]
    printed = [run(login, command) for command in typed]
    assert "resumed from the checkpoint of step 100" in printed[-2]
    assert sorted(login.metrics("shared/runs/first")) == [50, 100, 150, 200]
    assert printed[-1].count("done") == 2
    login.wait_until_gone()


def test_several_variants(login: LoginNode) -> None:
    (command,) = section("Several variants", login.path)
    table = run(login, Command(f"{command.line} steps=4", 0))
    assert "1e-3" in table and "1e-2" in table and "failed" not in table
    login.wait_until_gone()


def test_inside_a_job(job: JobSandbox) -> None:
    """The job is smaller, and says the slice, because its nodes have no GPUs."""
    job.salloc = ("--nodes=2", "--time=10")
    check, train = [Command(f"{command.line} --slice=cpu-2x1", 0) for command in section("Inside a job", job.path)]
    assert "2 hosts" in run(job, check)
    run(job, Command(f"{train.line} steps=4", 0))
    assert max(job.losses("shared/runs/first")) == 4
    assert not job.left()

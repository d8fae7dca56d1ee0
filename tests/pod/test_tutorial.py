"""docs/tutorial.md, followed on one machine; tests/ssh/test_tutorial.py goes on with real hosts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..conftest import Sandbox
from ..tutorial import commands, run, sections, write_files


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_tutorial_on_one_machine(sandbox: Sandbox) -> None:
    """Every command ends as it says: both loops learn, and a run that is killed ends with the losses of one that is not."""
    write_files(sandbox.path)
    here, hosts = sections()
    outputs = {command.line: run(sandbox, command) for command in commands(here)}
    assert len(outputs) >= 8
    alone = next(output for line, output in outputs.items() if line.endswith("python loop.py"))
    assert [*map(float, re.findall(r"loss (\S+)", alone))][-1] < 0.3
    assert sandbox.metrics("runs/pod_loop", "train")[300]["loss"] < 0.3
    killed = next(output for line, output in outputs.items() if "--inject" in line)
    promised = next(line.strip() for line in here.splitlines() if line.startswith("    podrun: failed:"))
    assert promised in killed
    assert sandbox.losses("runs/killed") == sandbox.losses("runs/digits")
    assert "done" in outputs["podrun status"]
    assert (sandbox.path / "killed.html").read_text().startswith("<!")
    init, dry_run, *_ = commands(hosts)
    assert "wrote pod.yaml" in run(sandbox, init)
    assert "alpha" in run(sandbox, dry_run)


@pytest.mark.long
def test_the_page_of_this_machine(sandbox: Sandbox) -> None:
    """Resume on another slice, lose a host and go on, as docs/this_machine.md says."""
    page = (Path(__file__).parents[2] / "docs" / "this_machine.md").read_text().partition("## From nothing to")[2]
    (sandbox.path / "train.yaml").unlink()
    outputs = {command.line: run(sandbox, command) for command in commands(page)}
    assert len(outputs) == 8
    printed = "\n".join(outputs.values())
    assert "resumed from the checkpoint of step 40" in printed
    assert "restart 1 of 1" in printed
    assert [max(sandbox.metrics("runs/train"))] == [120]
    assert list(sandbox.path.glob("report-*.html"))

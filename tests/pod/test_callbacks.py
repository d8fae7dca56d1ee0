"""Callbacks of a job on a pod."""

from __future__ import annotations

import re
from pathlib import Path

from ..conftest import Sandbox

DOCS = Path(__file__).parents[2] / "docs" / "plugins.md"


def test_the_callback_of_the_documentation(sandbox: Sandbox) -> None:
    """It is called on every process; its error ends the run, and the last line has the line of its code."""
    text = DOCS.read_text()
    section = text[text.index("## Callbacks") : text.index("## Models")]
    keys, code = re.findall(r"```(?:yaml|python)\n(.*?)```", section, re.DOTALL)
    job = sandbox.path / "small.yaml"
    job.write_text(f"{job.read_text().rstrip()}\n{keys}")
    (sandbox.path / "my_callbacks.py").write_text(code)
    run = ("--simulate", "small.yaml", "eval.every=2", "log.every=1", "steps=4")
    done = sandbox.podrun("--slice", "cpu-2x1", *run)
    assert done.returncode == 0, done.stderr
    for host in (0, 1):
        (log,) = (sandbox.path / "home" / "runs").glob(f"*/logs/host-{host}.log")
        printed = log.read_text()
        assert "training begins after step 0" in printed and "4 steps are done" in printed
    broken = sandbox.podrun(
        "--slice",
        "cpu-1x1",
        *run,
        "callbacks=[{name: 'my_callbacks:Watch', options: {most: 0.0}}]",
        "--workdir",
        "runs/two",
    )
    assert broken.returncode == 1
    line = code[: code.index("            raise")].count("\n") + 1
    assert re.search(
        rf"ValueError: the loss is \S+ \(my_callbacks\.py:{line}\) in step \d \[exit code 1\]$", broken.stderr.rstrip()
    )

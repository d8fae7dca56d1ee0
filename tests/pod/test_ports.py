"""Training loops in the manner of public ones, and the same with podrun: few lines changed, killed and resumed bit for bit.

Each is in the folder `ports` twice: `NAME.py` for a single process without podrun, `NAME_on_pod.py` with it.
"""

from __future__ import annotations

import difflib
import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Sandbox

PORTS = Path(__file__).with_name("ports")
STEPS = {"mnist": 48, "rnn": 60, "gan": 40, "decoder": 40, "dqn": 80}
METRICS = {
    "mnist": {"accuracy", "loss"},
    "rnn": {"loss"},
    "gan": {"critic", "generator"},
    "decoder": {"loss"},
    "dqn": {"loss", "reward"},
}


@pytest.mark.parametrize("name", STEPS)
def test_few_lines_are_changed(name: str) -> None:
    before, after = ((PORTS / file).read_text().splitlines() for file in (f"{name}.py", f"{name}_on_pod.py"))
    changes = [line[0] for line in difflib.ndiff(before, after)]
    assert 0 < changes.count("+") < 25 and changes.count("-") < 25


def metrics_of(sandbox: Sandbox, name: str, workdir: str, *options: str) -> tuple[str, list[dict[str, Any]]]:
    """Run a port on two simulated hosts; return its output, and what it reported without the times."""
    program = ("--workdir", workdir, *options, "--", sys.executable, str(PORTS / f"{name}_on_pod.py"))
    done = sandbox.podrun("--slice", "cpu-2x1", "--simulate", *program, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = map(json.loads, (sandbox.path / workdir / "metrics.jsonl").read_text().splitlines())
    return done.stdout + done.stderr, [{key: row[key] for key in row.keys() - {"time", "elapsed"}} for row in rows]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", STEPS)
def test_killed_and_resumed_bit_for_bit(sandbox: Sandbox, name: str) -> None:
    output, expected = metrics_of(sandbox, name, "whole")
    assert expected[-1]["step"] == STEPS[name] and METRICS[name] <= expected[0].keys()
    assert "on its own devices alone" not in output
    step = random.randrange(22, STEPS[name])
    inject = f"kill:host=1@step={step}"
    output, resumed = metrics_of(sandbox, name, "killed", "--inject", inject, "launch.max_restarts=1")
    assert re.search("resumed from the checkpoint of step [1-9]", output), (inject, output)
    assert resumed == expected, inject

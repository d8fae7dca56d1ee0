"""A task with a step of its own, on a pod: the GAN of docs/plugins.md, as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Sandbox

DOCS = Path(__file__).parents[2] / "docs" / "plugins.md"
STEPS = 24
RESULTS = ("critic_loss", "generator_loss")


@pytest.fixture
def gan(sandbox: Sandbox) -> Sandbox:
    """A sandbox with the job and the code of the documentation."""
    text = DOCS.read_text()
    section = text[text.index("## A step of your own") : text.index("## Callbacks")]
    job, code = re.findall(r"```(?:yaml|python)\n(.*?)```", section, re.DOTALL)
    (sandbox.path / "train.yaml").write_text(job)
    (sandbox.path / "my_gan.py").write_text(code)
    return sandbox


def results(sandbox: Sandbox, run: str, kind: str = "train") -> dict[int, dict[str, Any]]:
    names = RESULTS if kind == "train" else ("real", "fake")
    return {step: {name: each[name] for name in names} for step, each in sandbox.metrics(run, kind).items()}


@pytest.mark.long
def test_the_gan_of_the_documentation(gan: Sandbox) -> None:
    """Killed on 2x2 it resumes bit for bit; its losses are those of one process; it is evaluated afterwards."""
    for run, *options in (
        ("whole", "--slice", "cpu-2x2"),
        ("killed", "--slice", "cpu-2x2", "--inject", "kill:host=1@step=13", "launch.max_restarts=1"),
        ("alone", "--slice", "cpu-1x1"),
    ):
        done = gan.podrun("--simulate", "train.yaml", "--workdir", f"runs/{run}", *options)
        assert done.returncode == 0, done.stderr
        assert ("resumed from the checkpoint of step 8" in done.stdout) == (run == "killed")
    whole, killed, alone = (results(gan, f"runs/{run}") for run in ("whole", "killed", "alone"))
    assert killed == whole and sorted(whole) == list(range(1, STEPS + 1))
    for step, each in whole.items():
        assert each == pytest.approx(alone[step], rel=1e-4)
    assert whole[STEPS]["critic_loss"] < whole[1]["critic_loss"]
    evaluations = results(gan, "runs/whole", "eval")
    assert sorted(evaluations) == [8, 16, 24] and results(gan, "runs/killed", "eval") == evaluations
    answer = gan.podrun("evaluate", "runs/whole")
    assert answer.returncode == 0, answer.stderr
    assert f"real  {evaluations[STEPS]['real']:.4f}"[:-1] in answer.stdout


@pytest.mark.long
def test_metrics_of_gathered_arrays(gan: Sandbox) -> None:
    """The processes gather what `evaluate` returns for each example; a metric is the same as of one process."""
    code = (gan.path / "my_gan.py").read_text()
    returned = "{'median': np.median(values['real']), 'n': len(values['real'])}"
    code = f"import numpy as np\n{code}\n    def summarize(self, values):\n        return {returned}\n"
    (gan.path / "my_gan.py").write_text(code)
    metrics = []
    for slice in ("cpu-2x2", "cpu-1x1"):
        run = (
            "--slice",
            slice,
            "--simulate",
            "train.yaml",
            "--workdir",
            f"runs/{slice}",
            "steps=4",
            "checkpoint.every=0",
        )
        done = gan.podrun(*run)
        assert done.returncode == 0, done.stderr
        evaluation = gan.metrics(f"runs/{slice}", "eval")[4]
        metrics.append({name: evaluation[name] for name in ("median", "n")})
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4) and metrics[0]["n"] == 359


@pytest.mark.long
def test_a_divided_state(gan: Sandbox) -> None:
    """With fsdp over both processes, the losses are the same."""
    for run, parallel in (("whole", "jit"), ("divided", "{name: jit, mesh: {fsdp: 4}}")):
        code = (gan.path / "my_gan.py").read_text()
        (gan.path / "my_gan.py").write_text(
            code.replace("nn.Dense(64)", "nn.Dense(1024)")
        )  # large enough to be divided
        done = gan.podrun(
            "--slice", "cpu-2x2", "--simulate", "train.yaml", f"parallel={parallel}", "--workdir", f"runs/{run}"
        )
        assert done.returncode == 0, done.stderr
    whole, divided = results(gan, "runs/whole"), results(gan, "runs/divided")
    for step, each in divided.items():
        assert each == pytest.approx(whole[step], rel=1e-3)


def test_an_error_in_a_step(gan: Sandbox) -> None:
    """The last line has the line of the user's code."""
    code = (gan.path / "my_gan.py").read_text()
    (gan.path / "my_gan.py").write_text(
        code.replace("        noise =", "        raise ValueError('boom')\n        noise =")
    )
    done = gan.podrun("--slice", "cpu-1x2", "--simulate", "train.yaml")
    assert done.returncode == 1
    line = code[: code.index("        noise =")].count("\n") + 1
    assert re.search(rf"ValueError: boom \(my_gan\.py:{line}\) in step 1 \[exit code 1\]$", done.stderr.rstrip())


def test_a_step_that_is_none(gan: Sandbox) -> None:
    """It ends with exit code 2 before anything is trained; a second line says which sections podrun does not use."""
    (gan.path / "my_gan.py").write_text("def Gan(config, data): return 5")
    done = gan.podrun("--slice", "cpu-1x1", "--simulate", "train.yaml", "optimizer.learning_rate=0.5")
    assert done.returncode == 2
    last = done.stderr.rstrip().splitlines()[-1]
    assert (
        f"task my_gan:Gan ({gan.path / 'my_gan.py'}): returns int, expected podrun.runtime.tasks.base.Task, or an"
        in last
    )
    assert "Traceback" not in done.stderr

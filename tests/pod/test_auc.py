"""A metric that is no mean, on a pod: the AUC of docs/recipes.md, as it stands."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ..conftest import Sandbox
from ..tiers import nightly

DOCS = Path(__file__).parents[2] / "docs" / "recipes.md"


@pytest.mark.long
@pytest.mark.parametrize("parallel", ["pmap", "{name: jit, mesh: {fsdp: 2}}", *nightly("shard_map")])
def test_the_auc_of_the_recipe(sandbox: Sandbox, parallel: str) -> None:
    """Two processes, killed and resumed, give the value of one; `podrun evaluate` computes it again."""
    text = DOCS.read_text()
    section = text[text.index("### An AUC") : text.index("### MLflow")]
    job, code = re.findall(r"```(?:yaml|python)\n(.*?)```", section, re.DOTALL)
    (sandbox.path / "train.yaml").write_text(job)
    (sandbox.path / "my_auc.py").write_text(code)
    for run, *options in (
        ("killed", "--slice", "cpu-2x2", "--inject", "kill:host=1@step=120", "launch.max_restarts=1"),
        ("alone", "--slice", "cpu-1x1"),
    ):
        chosen = "single" if run == "alone" else parallel
        done = sandbox.podrun("--simulate", "train.yaml", "--workdir", f"runs/{run}", *options, f"parallel={chosen}")
        assert done.returncode == 0, done.stdout + done.stderr
        assert ("resumed from the checkpoint of step 100" in done.stdout) == (run == "killed")
    killed, alone = (sandbox.metrics(f"runs/{run}", "eval") for run in ("killed", "alone"))
    assert sorted(killed) == [50, 100, 150, 200] and killed[200]["auc"] > 0.9
    for step, each in killed.items():
        assert each["auc"] == pytest.approx(alone[step]["auc"], abs=2e-3)
    answer = sandbox.podrun("evaluate", "runs/killed")
    assert answer.returncode == 0, answer.stderr
    assert f"auc  {killed[200]['auc']:.4f}"[:-1] in " ".join(answer.stdout.split()).replace("auc ", "auc  ")
    on_pod = sandbox.podrun("evaluate", "runs/killed", "--slice", "cpu-2x2", "--simulate", "--metric", "auc", "--json")
    assert on_pod.returncode == 0, on_pod.stderr
    assert json.loads(on_pod.stdout)["metrics"] == {"auc": pytest.approx(killed[200]["auc"], rel=1e-6)}

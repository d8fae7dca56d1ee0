"""User code in a job, as docs/plugins.md describes it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ..conftest import Sandbox

DOCS = Path(__file__).parents[2] / "docs" / "plugins.md"


@pytest.mark.long
def test_the_data_source_of_the_documentation(sandbox: Sandbox) -> None:
    """The example in docs/plugins.md trains as it stands."""
    section, code, *_ = re.findall(r"```(?:yaml|python)\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (sandbox.path / "my_data.py").write_text(code)
    job = sandbox.path / "train.yaml"
    lines = [line for line in job.read_text().splitlines() if not line.startswith("data:")]
    job.write_text("\n".join(lines) + f"\n{section}")
    done = sandbox.podrun("--slice", "cpu-1x1", "--simulate", "train.yaml")
    assert done.returncode == 0, done.stderr
    assert len(sandbox.losses("runs/train")) == 6


def test_model_optimizer_task_and_strategy_of_the_user(sandbox: Sandbox) -> None:
    """A model, an optimizer, a task and a way of being parallel from a file beside train.yaml, together."""
    (sandbox.path / "mine.py").write_text(
        """
import flax.linen as nn
import jax
import optax
from podrun.runtime.parallel.pmap import Pmap
from podrun.runtime.tasks.language_model import LanguageModel

class Bigram(nn.Module):
    vocabulary: int

    @nn.compact
    def __call__(self, tokens, deterministic=True):
        return nn.Embed(self.vocabulary, self.vocabulary)(tokens)

def bigram(options, vocabulary, dtype):
    assert options["note"] == "a b"
    return Bigram(vocabulary)

def sgd(options, steps):
    schedule = optax.constant_schedule(options["rate"])
    return optax.sgd(schedule), schedule

class Counting(Pmap):
    steps = 0

    def step(self, state, batch):
        Counting.steps += self.config.parallel.options["by"]
        return super().step(state, batch)

class Task(LanguageModel):
    def after_training(self, params, reporter):
        return f"mine was here {Counting.steps} times"
"""
    )
    done = sandbox.podrun(
        *("--slice", "cpu-1x1", "--simulate", "train.yaml", "task=mine:Task"),
        "model={name: 'mine:bigram', options: {context: 32, note: a b}}",
        "optimizer={name: 'mine:sgd', options: {rate: 0.5}}",
        "parallel={name: 'mine:Counting', options: {by: 10}}",
    )
    assert done.returncode == 0, done.stderr
    assert (sandbox.path / "runs/train/sample.txt").read_text() == "mine was here 60 times"
    losses = sandbox.losses("runs/train")
    assert losses[6] < losses[1]


@pytest.mark.long
def test_a_data_source_of_another_length(sandbox: Sandbox) -> None:
    """7 tokens for a context of 32 end the run before anything is trained, with what, where, and what to do."""
    _, code, *_ = re.findall(r"```(?:yaml|python)\n(.*?)```", DOCS.read_text(), re.DOTALL)
    file = sandbox.path / "my_data.py"
    file.write_text(code.replace("config.model.context", "6"))
    source = "data={name: 'my_data:squares', options: {count: 1000}}"
    done = sandbox.podrun("--slice", "cpu-1x1", "--simulate", "train.yaml", "batch_size=12", source)
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert f"data.name my_data:squares ({file}): its train examples have tokens [12, 7], expected [12, 33]" in last
    assert "docs/plugins.md" in last
    assert "Traceback" not in done.stderr
    assert not (sandbox.path / "runs/train/metrics.jsonl").exists()


@pytest.mark.parametrize(
    "strategy",
    ["pmap", *(pytest.param(name, marks=pytest.mark.long) for name in ("{name: jit, mesh: {fsdp: 2}}", "single"))],
)
def test_an_init_that_differs_between_processes(sandbox: Sandbox, strategy: str) -> None:
    """It would train as many models as there are processes; that is said before the first step."""
    (sandbox.path / "mine.py").write_text(
        """
import os
import jax.numpy as jnp

class Bigram:
    def init(self, key):
        return {"same": jnp.ones(5), "table": jnp.full((256, 256), float(os.environ["PODRUN_PROCESS_ID"]))}

    def apply(self, params, tokens):
        return params["table"][tokens] * params["same"].sum()

def bigram(options, vocabulary, dtype):
    return Bigram()
"""
    )
    done = sandbox.podrun(
        *("--slice", "cpu-2x2", "--simulate", "train.yaml", f"parallel={strategy}"),
        "model={name: 'mine:bigram', options: {context: 32}}",
    )
    assert done.returncode == 2, done.stderr
    assert "the initial parameters differ between processes" in done.stderr
    assert "table of process 1 differs from that of an earlier process" in done.stderr
    assert "same of" not in done.stderr and "Traceback" not in done.stderr
    assert not (sandbox.path / "runs" / "train" / "checkpoints" / "1").exists()

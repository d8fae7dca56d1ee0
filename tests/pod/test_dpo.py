"""Preferences on a pod, from pairs to an adapter, by the commands and keys of docs/data.md: killed, resumed bit for bit."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable

import pytest
import yaml

from ..conftest import Sandbox
from ..runtime.data.pairs_folder import llama_folder, pair
from .conftest import Run, kill_everything
from .data_page import sections

STEPS = 24


@pytest.mark.long
def test_from_pairs_to_an_adapter(start: Callable[..., Run], sandbox: Sandbox) -> None:
    blocks, here = sections(), sandbox.path
    llama_folder(here / "llama")
    with (here / "preferences.jsonl").open("w") as file:
        file.writelines(json.dumps(pair(number)) + "\n" for number in range(60))
    command = blocks["Preferences"].splitlines()[0].replace("models/qwen", "llama").split()
    assert command[0] == "podrun"
    made = sandbox.podrun(*command[1:])
    assert made.returncode == 0 and "60 pairs" in made.stdout, made.stdout + made.stderr
    shown = sandbox.podrun("prepare", "--show", "pairs")
    assert "60 pairs" in shown.stdout and ", rejected: " in shown.stdout, shown.stdout

    text = blocks["Preferences"][blocks["Preferences"].index("task: dpo") :]
    job = yaml.safe_load(text[: text.index("data: 4,810")].replace("models/qwen", "llama").replace("1024", "20"))
    job |= {
        "steps": STEPS,
        "batch_size": 8,
        "optimizer": {"name": "adamw", "learning_rate": 0.02},
        "parallel": {"name": "jit", "mesh": {"fsdp": 2}},
        "eval": {"every": 0, "best": "max margin"},
        "validation": {"again": {"path": "pairs"}},
        "checkpoint": {"every": 8},
        "log": {"every": 1, "tensorboard": False},
    }
    (here / "dpo.yaml").write_text(yaml.safe_dump(job))
    launch = ("--slice", "cpu-2x2", "--simulate", "dpo.yaml", "-w")
    whole = sandbox.podrun(*launch, "runs/whole")
    assert whole.returncode == 0, whole.stderr
    assert re.search(r"data: 5[45] pairs\n", whole.stdout), whole.stdout
    run = start(*launch, "runs/dpo")
    run.wait_for(lambda event: event["event"] == "checkpoint")
    run.wait_for_step(10)
    kill_everything(sandbox)
    resumed = start(*launch, "runs/dpo")
    assert resumed.end() == 0, resumed.stderr
    losses = sandbox.losses("runs/dpo")
    assert losses == sandbox.losses("runs/whole") and len(losses) == STEPS
    assert losses[1] == pytest.approx(math.log(2), abs=1e-6) and losses[STEPS] < 0.5
    last = sandbox.metrics("runs/dpo", "train")[STEPS]
    assert last["accuracy"] > 0.7 and last["chosen_reward"] - last["rejected_reward"] == pytest.approx(last["margin"])
    expected = sandbox.metrics("runs/dpo", "eval")[STEPS]
    assert {"loss", "accuracy", "margin", "again/loss", "again/margin"} <= expected.keys()

    evaluated = sandbox.podrun("evaluate", "runs/dpo", "--json")
    metrics = json.loads(evaluated.stdout)["metrics"]
    assert metrics == {name: pytest.approx(expected[name], rel=1e-6) for name in metrics} and "again/loss" in metrics
    other = sandbox.podrun("evaluate", "runs/dpo", "--data", "preferences.jsonl")
    assert other.returncode == 2 and "is not a folder of pairs, which task dpo is evaluated on" in other.stderr
    step = sandbox.podrun("batches", "runs/dpo", "--step", "3")
    assert step.stdout.count("preferences.jsonl:") == 16 and "no " in step.stdout, step.stdout
    written = sandbox.podrun("generate", "runs/dpo", "--prompt", "aaa,", "--temperature", "0", "-n", "4")
    assert written.returncode == 0, written.stderr
    for form in ("peft", "hf"):
        exported = sandbox.podrun("export", "runs/dpo", "--format", form, "-o", form)
        assert exported.returncode == 0, exported.stderr
    assert json.loads((here / "peft/adapter_config.json").read_text())["r"] == 16
    inspected = sandbox.podrun("inspect", "--slice", "cpu-2x2", "dpo.yaml", "--json")
    assert inspected.returncode == 0, inspected.stderr

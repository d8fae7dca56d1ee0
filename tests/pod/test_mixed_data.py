"""A mixture of packed documents on a pod: killed, resumed on another slice, its spike found and left out."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml

from ..conftest import Sandbox
from ..runtime.data.prepared_folder import prepared_folder, text_documents
from .conftest import Run, kill_everything

TEXT = "".join(f"{n} green bottles hanging on the wall, and if one falls there are {n - 1}.\n" for n in range(300))
STEPS, CHANGE = 30, 15
JOB = {
    "model": {"name": "decoder", "layers": 1, "width": 16, "heads": 2, "context": 32},
    "data": {
        "name": "mixture",
        "sources": {
            "short": {"path": "short", "packing": "fit"},
            "long": {"path": "long", "packing": "fit"},
            "text": {"name": "text", "path": "text.txt"},
        },
        "weights": {"short": 2, "long": 1, "text": 1},
        "weights_from": {CHANGE: {"short": 0, "long": 1, "text": 3}},
    },
    "validation": {"held": {"path": "held", "packing": "fit"}},
    "steps": STEPS,
    "batch_size": 24,
    "optimizer": {"name": "adamw", "learning_rate": 1e-2},
    "eval": {"every": 10, "batches": 1, "best": "min held/loss"},
    "checkpoint": {"every": 6, "keep": 9},
    "sample": {"tokens": 0},
    "log": {"every": 1, "tensorboard": False},
}


def folders(path: Path) -> None:
    short, long = text_documents(TEXT, [3, 9, 20]), text_documents(TEXT, [40, 90])
    prepared_folder(path / "short", [short[:100], short[100:]], name="short.jsonl")
    prepared_folder(path / "long", [long], name="long.jsonl")
    prepared_folder(path / "held", [text_documents(TEXT[:2000], [15, 60])], name="held.jsonl")


@pytest.mark.long
def test_killed_and_resumed_on_another_slice(start: Callable[..., Run], sandbox: Sandbox) -> None:
    """Every loss is that of a run on another slice that nobody disturbed, whatever the weights are at the time."""
    folders(sandbox.path)
    (sandbox.path / "mixed.yaml").write_text(yaml.safe_dump(JOB))
    whole = sandbox.podrun("--slice", "cpu-1x4", "--simulate", "mixed.yaml", "-w", "runs/whole")
    assert whole.returncode == 0, whole.stderr
    assert "short: packing:" in whole.stdout + whole.stderr
    for slice, until in (("cpu-2x2", 8), ("cpu-3x1", 20)):
        run = start("--slice", slice, "--simulate", "mixed.yaml", "-w", "runs/mixed")
        run.wait_for_step(until)
        kill_everything(sandbox)
    last = sandbox.podrun("--slice", "cpu-2x2", "--simulate", "mixed.yaml", "-w", "runs/mixed")
    assert last.returncode == 0, last.stderr
    records, expected = sandbox.metrics("runs/mixed"), sandbox.metrics("runs/whole")
    assert sorted(records) == [*range(1, STEPS + 1)]
    for step, record in records.items():
        assert record["loss"] == pytest.approx(expected[step]["loss"], rel=1e-5)
        assert record["short/epochs"] == expected[step]["short/epochs"]
    assert expected[STEPS]["short/epochs"] == expected[CHANGE - 1]["short/epochs"] > 0
    evaluation = sandbox.metrics("runs/mixed", "eval")[STEPS]
    assert {"loss", "short/loss", "long/loss", "text/loss", "held/loss", "held/accuracy"} <= evaluation.keys()
    evaluated = sandbox.podrun("evaluate", "runs/mixed", "--json")
    metrics = json.loads(evaluated.stdout)["metrics"]
    assert metrics == {name: pytest.approx(evaluation[name], rel=1e-5) for name in metrics}
    assert len(metrics) == 15


@pytest.mark.long
def test_a_planted_document_is_found_and_left_out(sandbox: Sandbox) -> None:
    documents = text_documents(TEXT[:7600], [3, 9, 20])  # all of them, once
    number = len(documents) // 3
    documents[number - 1] = np.random.default_rng(0).integers(128, 256, 30).tolist()  # like no other
    prepared_folder(sandbox.path / "short", [documents], name="short.jsonl")
    job = {
        **JOB,
        "data": {"name": "prepared", "path": "short", "packing": "fit"},
        "validation": {},
        "batch_size": 4,
        "seed": 3,
    }
    (sandbox.path / "one.yaml").write_text(yaml.safe_dump({**job, "eval": {"every": 0, "batches": 1}, "steps": 60}))
    launch = ("--slice", "cpu-1x2", "--simulate", "one.yaml")
    run = sandbox.podrun(*launch, "-w", "runs/spiked")
    assert run.returncode == 0, run.stderr
    found = sandbox.podrun("batches", "runs/spiked", "--around-spike", "--json")
    assert found.returncode == 0, found.stderr
    report = json.loads(found.stdout)
    steps = {
        example["step"]
        for example in report["examples"]
        for origin in example["origins"]
        if f"short.jsonl:{number}" in origin["documents"]
    }
    assert len(steps) == 1, report["why"]
    (step,) = steps
    text = sandbox.podrun("batches", "runs/spiked", "--step", str(step))
    assert f"short.jsonl:{number} (data.path short" in text.stdout and text.stdout.startswith(f"step {step}\n")

    skip = f"data.skip=[[{step}, {step}]]"
    refused = sandbox.podrun(*launch, "-w", "runs/spiked", skip, "steps=70")
    assert refused.returncode == 2 and "resume from an earlier one" in refused.stdout + refused.stderr
    for saved in (sandbox.path / "runs/spiked/checkpoints").iterdir():
        if saved.name.isdecimal() and int(saved.name) >= step:
            saved.rename(sandbox.path / saved.name)
    resumed = sandbox.podrun(*launch, "-w", "runs/spiked", skip)
    assert resumed.returncode == 0, resumed.stderr
    never = sandbox.podrun(*launch, "-w", "runs/never", skip)
    assert never.returncode == 0, never.stderr
    assert sandbox.losses("runs/spiked") == sandbox.losses("runs/never")
    again = sandbox.podrun("batches", "runs/spiked", "--step", f"1:{60}", "--json")
    names = [name for e in json.loads(again.stdout)["examples"] for o in e["origins"] for name in o["documents"]]
    assert f"short.jsonl:{number}" not in names


SOURCES = {"one": 4.0, "two": 3.0, "three": 2.0, "four": 1.0}
LATER = {"one": 1.0, "two": 2.0, "three": 3.0, "four": 4.0}


@pytest.mark.nightly
def test_killed_ten_times_on_three_slices(start: Callable[..., Run], sandbox: Sandbox) -> None:
    """Four sources whose weights change at a step: the examples of all steps are those of an undisturbed run."""
    steps, change, batch = 100, 50, 24
    for number, name in enumerate(SOURCES):
        documents = text_documents(TEXT, [3, 9, 20, 40], seed=number)
        prepared_folder(sandbox.path / name, [documents], name=f"{name}.jsonl")
    data = {
        "name": "mixture",
        "sources": {name: {"path": name, "packing": "fit"} for name in SOURCES},
        "weights": SOURCES,
        "weights_from": {change: LATER},
    }
    job = {**JOB, "data": data, "validation": {}, "steps": steps, "batch_size": batch}
    job |= {"eval": {"every": 0, "batches": 1}, "checkpoint": {"every": 5, "keep": 3}}
    (sandbox.path / "four.yaml").write_text(yaml.safe_dump(job))
    whole = sandbox.podrun("--slice", "cpu-1x4", "--simulate", "four.yaml", "-w", "runs/whole")
    assert whole.returncode == 0, whole.stderr
    draw, slices = random.Random(10), ("cpu-3x2", "cpu-1x4", "cpu-2x2")
    stops = sorted(draw.sample(range(6, steps - 4), 10))
    for number, until in enumerate(stops):
        run = start("--slice", slices[number % 3], "--simulate", "four.yaml", "-w", "runs/mixed")
        run.wait_for_step(until)
        kill_everything(sandbox)
    last = sandbox.podrun("--slice", slices[10 % 3], "--simulate", "four.yaml", "-w", "runs/mixed")
    assert last.returncode == 0, last.stderr
    expected = sandbox.losses("runs/whole")
    assert sandbox.losses("runs/mixed") == {step: pytest.approx(loss, rel=2e-5) for step, loss in expected.items()}
    each = []
    for name in ("whole", "mixed"):
        shown = sandbox.podrun("batches", f"runs/{name}", "--step", f"1:{steps}", "--json")
        examples = json.loads(shown.stdout)["examples"]
        each.append([(e["step"], e["row"], e["index"], [o["documents"] for o in e["origins"]]) for e in examples])
    assert each[0] == each[1] and len(each[0]) == steps * batch
    for first, last_step, weights in ((1, change - 1, SOURCES), (change, steps, LATER)):
        names = [d[0][0].partition(".")[0] for step, _, _, d in each[0] if first <= step <= last_step]
        for name, weight in weights.items():
            assert names.count(name) / len(names) == pytest.approx(weight / 10, abs=0.01)

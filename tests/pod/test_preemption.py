"""Asked to stop by a machine, all processes save at the same step, and nothing is lost."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from ..conftest import Sandbox, make_sandbox
from ..tiers import mostly_long
from .conftest import Event, Run, kill, processes_of

Start = Callable[..., Run]
STEPS = 200
JOB = (
    *("--simulate", "--slice", "cpu-2x1", "small.yaml", f"steps={STEPS}", "log.every=1", "model.dropout=0.1"),
    *("eval.every=15", "eval.batches=4", "checkpoint.every=12"),
)
PACED = "data={name: 'faulty:paced', options: {seconds: 0.02}}"
MOMENTS = ("train", "evaluate", "save")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses by step of the job without a preemption."""
    sandbox = make_sandbox(tmp_path_factory.mktemp("undisturbed"))
    shutil.copy(Path(__file__).with_name("faulty.py"), sandbox.path / "faulty.py")
    done = sandbox.podrun(*JOB, PACED.replace("0.02", "0"))
    assert done.returncode == 0, done.stderr
    return sandbox.losses("runs/small")


def preempt(run: Run, chance: random.Random, reached: int) -> Event:
    """Send SIGTERM to a random worker or agent, at a random moment after step `reached`; return the event before it."""
    moment, process = chance.choice(MOMENTS), chance.randrange(2)
    event = run.wait_for_step(reached + chance.randint(1, 12))
    if moment != "train":
        event = run.wait_for(lambda e: e["event"] == "phase" and e["phase"] == moment)
    if chance.random() < 0.3:
        agents = [e["pid"] for e in run.of("host") if e["phase"] == "hello" and e["host"] == f"host-{process}"]
        kill(agents[-1], signal.SIGTERM)
    else:
        workers = [e["pid"] for e in run.of("host") if e["phase"] == "started" and e["process"] == process]
        kill(workers[-1], signal.SIGTERM)
    return event


@pytest.mark.parametrize("times", mostly_long((2, 5), lambda *_: False, lambda _, times: times == 2))
def test_preemptions_in_a_row(start: Start, sandbox: Sandbox, undisturbed: dict[int, float], times: int) -> None:
    """Each saves at the signal; what is trained twice is at most a step each; the losses are those of the undisturbed run."""
    seed = int(os.environ.get("PODRUN_PREEMPTION_SEED", "0"))
    chance = random.Random(seed)
    run = start(*JOB, PACED, f"launch.max_preemptions={times}", "launch.max_restarts=0")
    reached = 0
    for _ in range(times):
        preempt(run, chance, reached)
        reached = run.wait_for(lambda e: e["event"] == "resume", timeout=240)["step"]
    assert run.end(timeout=240) == 0, run.stderr
    ends = run.of("restart")
    assert [(e["ending"], e["code"]) for e in ends] == [("preempted", 75)] * times, ends
    assert all("and saved first" in e["what"] for e in ends), ends
    resumed = [e["step"] for e in run.of("resume")]
    trained = [e["step"] for e in run.of("step") if e["process"] == 0]
    repeated = [before + 1 - after for before, after in pairwise(trained) if after <= before]
    print(f"seed {seed}: {times} preemptions, resumed at {resumed}, trained twice {sum(repeated)} steps")
    assert all(steps <= 1 for steps in repeated)
    assert sandbox.losses("runs/small") == undisturbed
    assert processes_of(sandbox) == {}


@pytest.mark.parametrize(
    ("blocked", "signalled", "to_agent"),
    mostly_long([(0, 1, False), (1, 0, True)], lambda *_: False, lambda number, _: number == 0),
)
def test_a_data_source_that_is_blocked(
    start: Start, sandbox: Sandbox, undisturbed: dict[int, float], blocked: int, signalled: int, to_agent: bool
) -> None:
    """The others wait in a step that cannot end: the blocked process saves the last one that all have completed."""
    hanging = f"data={{name: 'faulty:dataset', options: {{process: {blocked}, step: 12, action: hang}}}}"
    run = start(*JOB, "checkpoint.every=0", "launch.max_preemptions=1", hanging)
    run.wait_for(lambda e: e["event"] == "step" and e["step"] == 11 - (blocked == 0) and e["process"] == 0)
    pid = run.agent(f"host-{signalled}") if to_agent else run.worker(signalled)
    kill(pid, signal.SIGTERM)
    assert run.end(timeout=240) == 0, run.stderr
    (ended,) = run.of("restart")
    assert (ended["ending"], ended["code"]) == ("preempted", 75)
    assert ended["message"].startswith(f"host-{signalled}"), ended
    assert "after step 11, and saved first" in ended["message"]
    assert [event["step"] for event in run.of("resume")] == [11]
    assert sandbox.losses("runs/small") == undisturbed
    assert processes_of(sandbox) == {}


def test_asked_to_stop_before_the_first_step(start: Start, sandbox: Sandbox) -> None:
    """There is nothing to save, so the run ends at once, with the code of a preemption; the agent's host is named."""
    run = start(*JOB, "data={name: 'faulty:dataset', options: {process: 1, step: 1, action: hang}}")
    run.wait_for(lambda e: e["event"] == "phase" and e["phase"] == "compile" and e["process"] == 1)
    kill(run.agent("host-1"), signal.SIGTERM)
    assert run.end() == 75
    assert run.last_line == (
        "failed: host-1: was asked to stop (SIGTERM to its agent), before its first step: there was nothing to save "
        "[exit code 75]"
    )
    assert processes_of(sandbox) == {}

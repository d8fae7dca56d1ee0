"""examples/own_loop.py: alone and on a pod, killed and stopped, on another slice.

Only the number of its steps is changed: a run that is to be disturbed has far more than a machine can make meanwhile, and the
run that finishes it has a few more than were made.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest

from ..conftest import Sandbox
from .conftest import Run, kill
from .programs import ENDLESS, own_loop_command

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
Starter = Callable[..., Run]


def own_loop(start: Starter, sandbox: Sandbox, workdir: str, steps: int, slice: str = "cpu-2x1") -> Run:
    return start("--slice", slice, "--simulate", "--workdir", workdir, "--", *own_loop_command(sandbox, steps))


def run_alone(sandbox: Sandbox, steps: int, folder: str) -> str:
    """Run the example without podrun in `folder`, which becomes the parent of its workdir; return its stdout."""
    cwd = sandbox.path / folder
    cwd.mkdir(exist_ok=True)
    env = {**sandbox.env, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        own_loop_command(sandbox, steps), cwd=cwd, env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(sandbox: Sandbox, workdir: str) -> list[tuple[int, float]]:
    lines = (sandbox.path / workdir / "metrics.jsonl").read_text().splitlines()
    return [(record["step"], record["loss"]) for record in map(json.loads, lines)]


def test_alone_and_on_pods(sandbox: Sandbox, start: Starter) -> None:
    """Killed at a random step, and stopped, it goes on with the same losses, on the same slice bit for bit."""
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    victim, step = chance.randrange(2), chance.randrange(120, 250)
    run = own_loop(start, sandbox, "broken", ENDLESS)
    run.wait_for_step(step)
    kill(run.worker(victim))
    assert run.end() == 137, (seed, run.last_line)
    assert f"host-{victim} (process {victim}): was ended by SIGKILL" in run.last_line, seed

    run = own_loop(start, sandbox, "broken", ENDLESS)
    run.wait_for(lambda event: event["event"] == "step")
    assert run.of("resume")[0]["step"] > 0, seed
    os.kill(run.worker(1), signal.SIGTERM)
    assert run.end() == 75, run.last_line
    assert "host-1 (process 1): was asked to stop from outside after step" in run.last_line
    stopped_at = run.of("checkpoint")[-1]["step"]
    assert (sandbox.path / "broken" / "checkpoints" / str(stopped_at)).is_dir()

    steps = max(300, stopped_at // 10 * 10 + 50)
    run = own_loop(start, sandbox, "broken", steps)
    assert run.end(300) == 0, run.stderr
    assert run.of("resume")[0]["step"] == stopped_at

    whole = own_loop(start, sandbox, "whole", steps)
    assert whole.end(300) == 0, whole.stderr
    assert {event["step"] for event in whole.of("checkpoint")} >= {50, steps}
    expected = losses(sandbox, "whole")
    assert [step for step, _ in expected] == [*range(10, steps + 1, 10)]
    assert expected[-1][1] < 0.3 < 2 < expected[0][1]
    assert losses(sandbox, "broken") == expected, seed


def test_on_a_pod_and_alone(sandbox: Sandbox, start: Starter) -> None:
    workdir = "disturbed/runs/own_loop"
    run = own_loop(start, sandbox, workdir, ENDLESS)
    run.wait_for_step(100)
    run.process.send_signal(signal.SIGINT)
    assert run.end() == 130
    assert "; the checkpoint of step " in run.last_line

    steps = run.of("checkpoint")[-1]["step"] // 10 * 10 + 50
    assert "resumed from the checkpoint of step" in run_alone(sandbox, steps, "disturbed")
    run_alone(sandbox, steps, "alone")
    resumed, alone = losses(sandbox, workdir), losses(sandbox, "alone/runs/own_loop")
    assert [step for step, _ in resumed] == [step for step, _ in alone]
    np.testing.assert_allclose([loss for _, loss in resumed], [loss for _, loss in alone], rtol=1e-3, atol=1e-3)


DIVIDED = """\
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import podrun

me = podrun.init()
mesh = Mesh(jax.devices(), ("data",))
divided, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
layout = {"w": divided, "key": whole, "step": whole}
init = lambda: {"w": jnp.zeros((8, 4)), "key": jax.random.key(0), "step": jnp.int32(0)}
batches = podrun.data.Batches(np.arange(40, dtype=np.float32).reshape(40, 1), 8)

@jax.jit
def update(state, x):
    noise = jax.random.normal(jax.random.fold_in(state["key"], state["step"]), (8, 4))
    w = jax.lax.with_sharding_constraint(0.9 * state["w"] + x + noise, divided)
    return {"w": w, "key": state["key"], "step": state["step"] + 1}, w.sum()

train = podrun.steps(12, jax.jit(init, out_shardings=layout)(), save_every=3)
for step in train:
    mine = batches[step]
    x = jax.make_array_from_process_local_data(divided, mine, (8, 1))
    train.state, total = update(train.state, x)
    podrun.report(step, total=total)
    if sys.argv[1:] == [str(step)]:
        raise SystemExit(5)
"""


def test_a_state_that_is_divided_over_processes(sandbox: Sandbox, start: Starter) -> None:
    """Each process saves its part, and reads its part on another slice."""
    (sandbox.path / "divided.py").write_text(DIVIDED)

    def totals(workdir: str, slice: str, *args: str) -> tuple[int, list[float]]:
        where = ("--slice", slice, "--simulate", "--workdir", workdir)
        run = start(*where, "--", sys.executable, "divided.py", *args)
        code = run.end(120)
        rows = (sandbox.path / workdir / "metrics.jsonl").read_text().splitlines()
        return code, [json.loads(row)["total"] for row in rows]

    code, expected = totals("whole", "cpu-2x1")
    assert (code, len(expected)) == (0, 12)
    assert totals("broken", "cpu-2x1", "8")[0] == 5
    shutil.copytree(sandbox.path / "broken", sandbox.path / "other")
    assert totals("broken", "cpu-2x1") == (0, expected)
    code, resumed = totals("other", "cpu-1x4")
    assert (code, len(resumed)) == (0, 12)
    np.testing.assert_allclose(resumed, expected, rtol=1e-5)


LEFT = """
import sys
import podrun

me = podrun.init()
train = podrun.steps(10, {"n": 0, "inner": {"best": 0.0}}, save_every=100)
for step in train:
    best = float(me.process_id) if sys.argv[1] == "differ" else 1.0
    train.state = {"n": step, "inner": {"best": best}}
    podrun.report(step, n=step)
    if step == 4:
        break
"""


def test_a_loop_that_is_left_on_every_process(sandbox: Sandbox) -> None:
    """The last step is saved and said; numbers that differ between processes are refused after the first step."""
    (sandbox.path / "left.py").write_text(LEFT)
    where = ("--slice", "cpu-2x1", "--simulate", "--workdir", "work", "--", sys.executable, "left.py")
    done = sandbox.podrun(*where, "differ")
    assert done.returncode == 2, done.stderr
    assert "the state of step 1 differs between processes" in done.stderr
    assert "inner.best of process 1 differs from that of an earlier process" in done.stderr
    done = sandbox.podrun(*where, "break")
    assert done.returncode == 0, done.stderr
    assert "the loop was left at step 4 of 10; step 4 is saved" in done.stdout
    assert [path.name for path in (sandbox.path / "work" / "checkpoints").iterdir()] == ["4"]

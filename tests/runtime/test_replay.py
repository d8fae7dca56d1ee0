"""Steps of a run are computed again from its checkpoint, in this process, and their digests reported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.rundir.events import parse_event
from podrun.launcher.rundir.replayed import Found, Record, judge, replayed_of
from podrun.runtime.checkpoint.saved_model import checkpoint_before
from podrun.runtime.config import Config
from podrun.runtime.contract import ENV_INJECT, NotFiniteError, Replay, UserError, Workdir, WorkerEnv
from podrun.runtime.evaluate.pod import choose
from podrun.runtime.replay import Replayer, replay
from podrun.runtime.worker.progress import Reporter

from .training import JOB, OTHERS, train

KEYS: dict[str, Any] = {
    "steps": 6,
    "batch_size": 8,
    "parallel": "pmap",
    "checkpoint": {"every": 2, "keep": 9},
    "launch": {"verify_every": 1},
    "model": {"name": "mlp", "layers": 1, "width": 8},
}
CONFIG = Config.model_validate({**JOB, **OTHERS, **KEYS})


START = json.dumps(
    {
        "event": "start",
        "time": 1.0,
        "run_id": "r",
        "attempt": 0,
        "slice": "cpu-1x4",
        "devices": 4,
        "transport": "local",
        "hosts": {"host-0": [0]},
        "program": None,
        "workdir": "w",
        "logs": "l",
    }
).encode()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train(folder, **KEYS)
    return folder


def env_of(path: Path, first: int, last: int, resumed: int | None = None) -> WorkerEnv:
    path.mkdir(exist_ok=True)
    wanted = json.dumps({"first": first, "last": last, "times": 2, "resumed": resumed})
    return WorkerEnv("run", 0, "host-0", 0, 1, (0, 1, 2, 3), "cpu-1x4", path, replay=wanted)


def recorded(line: bytes) -> bytes:
    """A line of a worker as the launcher records it."""
    return json.dumps({**json.loads(line), "host": "host-0", "process": 0}).encode()


def judged(
    trained: Path, path: Path, first: int, last: int, config: Config = CONFIG, resumed: int | None = None
) -> Any:
    """The verdict on a replay."""
    env = env_of(path, first, last, resumed)
    replay(config, env, Workdir(trained), None, Reporter(path / "0.events"))
    events = [parse_event(recorded(line)) for line in (START, *(path / "0.events").read_bytes().splitlines())]
    replayed, saved, _ = replayed_of(event for event in events if event is not None)
    assert len(replayed) == 2 * (last - first + 1)
    record = Record.of_lines(map(recorded, (trained / "events").read_bytes().splitlines()), first, last)
    return judge(replayed, record, saved, ["host-0"])


def test_undisturbed_steps_are_as_recorded_and_as_saved(trained: Path, tmp_path: Path) -> None:
    before = {str(path): path.stat().st_mtime_ns for path in (trained / "checkpoints").rglob("*")}
    result = judged(trained, tmp_path / "replay", 3, 4)
    assert result.verdict is Found.SAME
    assert result.compared == (
        "the record of step 3 is the same",
        "the record of step 4 is the same",
        "the checkpoint of step 4 is the same",
    )
    assert {str(path): path.stat().st_mtime_ns for path in (trained / "checkpoints").rglob("*")} == before
    assert not [path for path in (tmp_path / "replay").iterdir() if path.name.startswith("checkpoint")]


def test_a_flipped_bit_names_the_device_and_the_parameter(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_INJECT, "bitflip@step=6")
    result = judged(trained, tmp_path / "replay", 5, 6)
    assert (result.verdict, result.step, result.hosts) == (Found.HOST, 6, ("host-0",))
    assert "host-0 (process 0, its device 0) computes wrongly: the state differs after step 6, in " in result.sentence
    assert any(name.startswith("params.") for name in result.arrays)


def test_a_checkpoint_of_other_numbers_is_not_the_same(trained: Path, tmp_path: Path) -> None:
    """A run without a record is compared with its checkpoint; here that of step 4 was made with another seed."""
    shutil.copytree(trained / "checkpoints" / "2", tmp_path / "work" / "checkpoints" / "2")
    train(tmp_path / "other", **{**KEYS, "seed": 5, "launch": {}})
    shutil.copytree(tmp_path / "other" / "checkpoints" / "4", tmp_path / "work" / "checkpoints" / "4")
    checkpoint = {"event": "checkpoint", "time": 2.0, "step": 4}
    (tmp_path / "work" / "events").write_bytes(START + b"\n" + json.dumps(checkpoint).encode() + b"\n")
    result = judged(tmp_path / "work", tmp_path / "replay", 3, 4)
    assert (result.verdict, result.step) == (Found.RECORD, 4)
    assert "but the run's checkpoint after step 4 differs in params." in result.sentence


def test_a_step_whose_loss_is_not_finite(tmp_path: Path) -> None:
    """It ended the run. All devices compute the same infinities, which are compared like other numbers."""
    keys = {**KEYS, "checkpoint": {"every": 1, "keep": 9}, "optimizer": {"name": "sgd", "learning_rate": 1e30}}
    with pytest.raises(NotFiniteError):
        train(tmp_path / "run", **keys)
    step = max(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir()) + 1
    config = Config.model_validate({**JOB, **OTHERS, **keys})
    result = judged(tmp_path / "run", tmp_path / "replay", step, step, config)
    assert result.verdict is Found.SAME


NOISY = """\
import jax, jax.numpy as jnp, numpy as np, optax

random = np.random.default_rng()


def noisy(options, steps):
    def update(updates, state, params=None, **rest):
        noise = jax.pure_callback(lambda: np.float32(random.random()), jax.ShapeDtypeStruct((), jnp.float32))
        return jax.tree.map(lambda x: x + noise, updates), state

    return optax.chain(optax.sgd(0.1), optax.GradientTransformation(lambda params: (), update)), lambda step: 0.1
"""


@pytest.mark.parametrize("parallel", ["pmap", "jit"])
def test_a_program_that_is_not_deterministic(parallel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of each device, and noise that is the same on all of them: no host is blamed."""
    (tmp_path / "noise_of_a_test.py").write_text(NOISY)
    monkeypatch.syspath_prepend(tmp_path)
    keys = {**KEYS, "parallel": parallel, "launch": {}, "optimizer": "noise_of_a_test:noisy", "steps": 4}
    train(tmp_path / "work", **keys)
    config = Config.model_validate({**JOB, **OTHERS, **keys})
    result = judged(tmp_path / "work", tmp_path / "replay", 3, 4, config)
    assert (result.verdict, result.step, result.hosts) == (Found.PROGRAM, 3, ())
    assert "launch.xla=deterministic" in result.sentence and result.arrays


def test_steps_that_cannot_be_computed(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no checkpoint before step 2,.* 2, 4, 6, so the first .* replayed is 3"):
        judged(trained, tmp_path / "early", 2, 2)
    with pytest.raises(UserError, match="the run ends with step 6, and there is no step 9"):
        judged(trained, tmp_path / "late", 9, 9)


def test_a_damaged_checkpoint(trained: Path, tmp_path: Path) -> None:
    """It is named, and keeps its name: the run may be training there."""
    work = tmp_path / "work"
    shutil.copytree(trained, work)
    files = [path for path in (work / "checkpoints" / "4").rglob("*") if path.is_file()]
    file = max(files, key=lambda path: path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(
        UserError, match=r"checkpoint 4 cannot be read: .*`podrun checkpoints .*` lists which are whole"
    ):
        judged(work, tmp_path / "replay", 5, 5)
    assert {path.name for path in (work / "checkpoints").iterdir()} == {"2", "4", "6"}


def test_a_run_that_ends_before_its_last_step_says_how_often_all_agreed(tmp_path: Path) -> None:
    train(tmp_path, **KEYS, stop_at=2)
    notes = [event["message"] for event in map(json.loads, (tmp_path / "events").open()) if event["event"] == "note"]
    assert "launch.verify_every: all devices agreed bit for bit in 2 comparisons" in notes


def test_a_checkpoint_of_another_run(trained: Path, tmp_path: Path) -> None:
    """Its steps are not those of this run, so no host would be at fault."""
    other = CONFIG.model_copy(update={"optimizer": CONFIG.optimizer.model_copy(update={"learning_rate": 0.25})})
    with pytest.raises(
        UserError, match=r"step 2 in .* was saved by another run, .*\(optimizer.learning_rate: .* -> 0.25\)"
    ):
        judged(trained, tmp_path / "replay", 3, 3, other)


def test_a_checkpoint_of_an_earlier_run_from_which_this_one_went_on(trained: Path, tmp_path: Path) -> None:
    other = CONFIG.model_copy(update={"optimizer": CONFIG.optimizer.model_copy(update={"learning_rate": 0.25})})
    assert judged(trained, tmp_path / "replay", 3, 3, other, resumed=2).verdict is Found.RECORD


def test_a_checkpoint_that_the_run_removes_meanwhile(trained: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(trained, work)
    env, files = env_of(tmp_path / "replay", 3, 3), Workdir(work)
    reporter = Reporter(env.directory / "0.events")
    start = choose(files, None, tmp_path, lambda folder: checkpoint_before(folder, 3), reporter)
    assert start is not None and start.step == 2
    wanted = Replay(3, 3, 2)
    replayer = Replayer(start, wanted, CONFIG, env._replace(), files, reporter, None)
    replayer.repeat(1)
    shutil.rmtree(start.checkpoint)
    with pytest.raises(UserError, match=r"step 2 was removed during the replay, .* newest 9 \(checkpoint.keep\)"):
        replayer.repeat(2)

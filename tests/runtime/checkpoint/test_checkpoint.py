"""Checkpoints on disk, written and read by the real library."""

from __future__ import annotations

import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from podrun.runtime.checkpoint.store import Checkpoints
from podrun.runtime.config import Checkpoint, Config
from podrun.runtime.contract import UserError
from podrun.runtime.data.base import Batch
from podrun.runtime.state import StateDict

from .. import strategies
from ..strategies import assert_identical, copies, dataset, place, strategy
from .saving import FINGERPRINT, job, opened, save, state


def until_completed(checkpoints: Checkpoints) -> int:
    """Asks until there is an answer."""
    while (step := checkpoints.completed()) is None:
        pass
    return step


def kept(folder: Path) -> set[int]:
    return {int(path.name) for path in (folder / "checkpoints").iterdir()}


# --- save and restore -----------------------------------------------------------------------------------------------


def batch() -> Batch:
    return dataset().train.gather(np.arange(8), np.zeros(8, np.int64))


@pytest.mark.parametrize("name", ["pmap", "jit fsdp 2"])
def test_a_real_state_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    """Parameters, moments of the optimizer, and step; training goes on as if it had not been interrupted."""
    one, config, given = strategy(name), strategies.job(name), strategy(name).shard(batch())
    trained = one.init()
    for _ in range(2):
        trained, _ = one.step(trained, given)
    expected = copies(one.savable(trained))
    with opened(tmp_path, one.saves_in_parts) as checkpoints:
        checkpoints.save(2, one.savable(trained), 16, config, FINGERPRINT, None)
        trained, metrics = one.step(trained, given)  # while the checkpoint is being written
        assert checkpoints.completed(wait=True) == 2
    with opened(tmp_path, one.saves_in_parts) as checkpoints:
        assert checkpoints.latest() == 2
        restored = checkpoints.load(2, checkpoints.target(one.template, config, FINGERPRINT))
    assert (restored.step, restored.position) == (2, 16)
    assert_identical(copies(restored.state), expected)
    resumed, found = one.step(one.place(restored.state), given)
    assert_identical(found, metrics)
    assert_identical(copies(one.savable(resumed)), copies(one.savable(trained)))


def test_another_process_saves_in_place_of_process_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is asked to, it saves nothing of a state that process 0 has as well."""
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    checkpoints = Checkpoints(tmp_path / "checkpoints", Checkpoint())
    monkeypatch.undo()
    try:
        checkpoints.save(5, state(5), 40, job(), FINGERPRINT, None)
        assert checkpoints.completed(wait=True) is None and kept(tmp_path) == set()
        checkpoints.stand_in()
        save(checkpoints, 10)
    finally:
        checkpoints.close()
    assert kept(tmp_path) == {10}
    with opened(tmp_path) as another:
        restored = another.load(10, another.target(lambda: state(0), job(), FINGERPRINT))
    assert_identical(restored.state, state(10))


def test_a_checkpoint_may_be_of_any_strategy(tmp_path: Path) -> None:
    """Each restores, bit for bit, what another has saved, whole or in parts."""
    state, _ = strategies.train(strategy("single"), strategy("single").init(), [batch()])
    named = copies(strategy("single").savable(state))
    order = ["pmap", "jit fsdp 2", "shard_map", "explicit fsdp 4", "jit fsdp 2", "single", "explicit", "jit", "pmap"]
    for step, (before, after) in enumerate(pairwise(order)):
        with opened(tmp_path, strategy(before).saves_in_parts) as checkpoints:
            saved = strategy(before).savable(place(strategy(before), named))
            checkpoints.save(step, saved, 8, strategies.job(before), FINGERPRINT, None)
            assert checkpoints.completed(wait=True) == step
        with opened(tmp_path, strategy(after).saves_in_parts) as checkpoints:
            target = checkpoints.target(strategy(after).template, strategies.job(after), FINGERPRINT)
            restored = checkpoints.load(step, target)
        placed = strategy(after).place(restored.state)
        assert_identical(copies(strategy(after).savable(placed)), named)


def test_a_state_is_not_compressed(tmp_path: Path) -> None:
    """Compressing takes up to as much memory again as the state, for a tenth of the bytes of a trained one."""
    with opened(tmp_path) as checkpoints:
        zeros = {**state(1), "params": {"kernel": np.zeros((500, 500), np.float32)}}
        checkpoints.save(1, zeros, 8, job(), FINGERPRINT, None)
        assert checkpoints.completed(wait=True) == 1
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) > 1_000_000


def test_an_empty_directory(tmp_path: Path) -> None:
    """It is made, with its parents, and has no latest checkpoint."""
    with opened(tmp_path / "a" / "b") as checkpoints:
        assert checkpoints.latest() is None
        assert checkpoints.completed() is None
        assert checkpoints.completed(wait=True) is None
    assert kept(tmp_path / "a" / "b") == set()


def test_each_step_completes_once(tmp_path: Path) -> None:
    """`completed` tells a step once, whether it waits for it or is asked until it is there."""
    with opened(tmp_path) as checkpoints:
        checkpoints.save(1, state(1), 8, job(), FINGERPRINT, None)
        assert checkpoints.completed(wait=True) == 1
        assert checkpoints.completed(wait=True) is None
        checkpoints.save(2, state(2), 16, job(), FINGERPRINT, None)
        assert until_completed(checkpoints) == 2
        assert checkpoints.completed() is None
        assert checkpoints.latest() == 2
    assert kept(tmp_path) == {1, 2}


# --- what is kept ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "keep_best", "losses", "expected"),
    [
        (2, 0, [None, None, None, None], {3, 4}),
        (1, 0, [1.0, 2.0, 3.0], {3}),
        (1, 1, [3.0, 1.0, 2.0, 4.0], {2, 4}),
        (2, 1, [3.0, 1.0, 2.0, 5.0, 4.0], {2, 4, 5}),
        (1, 2, [3.0, 1.0, 2.0, 5.0, 4.0], {2, 3, 5}),
        (1, 1, [5.0, 4.0, 3.0], {3}),
        (1, 1, [1.0, 1.0, 2.0], {1, 3}),
        (1, 1, [3.0, None, 4.0, None], {1, 4}),
        (1, 1, [3.0, math.nan, math.inf, 4.0], {1, 4}),
        (3, 1, [1.0, 2.0], {1, 2}),
    ],
)
@pytest.mark.parametrize("resumed", [False, True])
def test_newest_and_best_are_kept(
    tmp_path: Path, keep: int, keep_best: int, losses: list[float | None], expected: set[int], resumed: bool
) -> None:
    """The newest `keep`, and besides the `keep_best` with the lowest loss, which a resumed run still knows."""
    steps = list(enumerate(losses, start=1))
    for part in [[step] for step in steps] if resumed else [steps]:
        with opened(tmp_path, keep=keep, keep_best=keep_best) as checkpoints:
            for step, loss in part:
                save(checkpoints, step, loss)
                assert checkpoints.latest() == step
                assert step in kept(tmp_path)
    assert kept(tmp_path) == expected


@pytest.mark.parametrize("name", ["7.orbax-checkpoint-tmp", "7.orbax-checkpoint-tmp-1712", ".podrun-links"])
def test_what_a_killed_save_left_is_removed(tmp_path: Path, name: str) -> None:
    """By process 0, and only that: the others would race with it."""
    with opened(tmp_path) as checkpoints:
        save(checkpoints, 6)
    leftover = tmp_path / "checkpoints" / name
    (leftover / "state").mkdir(parents=True)
    (leftover / "state" / "part").write_text("half")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "process_index", lambda: 1)
        with opened(tmp_path):
            assert leftover.exists()
    with opened(tmp_path) as checkpoints:
        assert kept(tmp_path) == {6}
        assert checkpoints.latest() == 6
        save(checkpoints, 7)


# --- another job ----------------------------------------------------------------------------------------------------


def refusal(folder: Path, saved: Config, now: Config, fingerprint: bytes = FINGERPRINT, size: int = 3) -> str:
    """The message with which a checkpoint of another job is refused."""
    with opened(folder) as checkpoints:
        checkpoints.save(5, state(5), 40, saved, FINGERPRINT, None)
        checkpoints.completed(wait=True)
        with pytest.raises(UserError) as raised:
            checkpoints.load(5, checkpoints.target(lambda: state(0, size), now, fingerprint))
    return str(raised.value)


@pytest.mark.parametrize(
    ("saved", "now", "row"),
    [
        ({"model": {"layers": 2}}, {"model": {"layers": 3}}, "model.layers: 2 in the checkpoint, 3 in this job"),
        ({"model": "gpt2"}, {"model": "my.net:Net"}, 'model.name: "gpt2" in the checkpoint, "my.net:Net" in this job'),
        (
            {"model": {"name": "a:B", "options": {"deep": {"n": 1}}}},
            {"model": {"name": "a:B", "options": {"deep": {"n": 2}, "new": True}}},
            "model.options.new: null in the checkpoint, true in this job",
        ),
        (
            {"optimizer": "adamw"},
            {"optimizer": "my.opt:lion"},
            'optimizer.name: "adamw" in the checkpoint, "my.opt:lion" in this job',
        ),
        (
            {"optimizer": {"clip_norm": 1.0}},
            {"optimizer": {"clip_norm": None}},
            'optimizer.clip_norm: "set" in the checkpoint, null in this job',
        ),
        ({}, {"task": "my.task:Task"}, 'task: "language_model" in the checkpoint, "my.task:Task" in this job'),
        ({"parallel": "ensemble"}, {}, 'parallel: "ensemble" in the checkpoint, "one model" in this job'),
        ({}, {"parallel": "ensemble"}, 'parallel: "one model" in the checkpoint, "ensemble" in this job'),
        ({"ema": 0.9}, {}, 'ema: "on" in the checkpoint, "off" in this job'),
    ],
)
def test_another_job_is_refused(tmp_path: Path, saved: dict[str, Any], now: dict[str, Any], row: str) -> None:
    """The message has the directory, the step, the key that differs with both values, and what to do.

    Its first line, which is also what a run ends with, names the first difference.
    """
    message = refusal(tmp_path, job(**saved), job(**now))
    first, second = message.splitlines()[:2]
    assert (
        first
        == f"workdir {tmp_path} holds a checkpoint (step 5) of another job: {second.strip().replace(':', ' is', 1)}"
    )
    assert f"\n  {row}\n" in message
    assert message.endswith("choose another --workdir to start anew, or give the values of the checkpoint to resume it")


def test_only_what_differs_is_named(tmp_path: Path) -> None:
    """A line for each difference, and none for what is equal or may change."""
    first = {"layers": 2, "heads": 2, "width": 32, "dropout": 0.1}
    second = {"layers": 2, "heads": 4, "width": 64, "dropout": 0.2}
    lines = refusal(tmp_path, job(model=first), job(model=second)).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:-1]] == ["model.heads", "model.width"]


def test_many_differences_are_cut(tmp_path: Path) -> None:
    """Eight are shown, and how many more there are."""
    options = {f"key{n:02}": n for n in range(20)}
    message = refusal(tmp_path, job(model={"name": "a:B", "options": options}), job(model={"name": "a:B"}))
    assert "key07" in message
    assert "key08" not in message
    assert "\n  and 12 more\n" in message


def test_other_data_is_refused(tmp_path: Path) -> None:
    """The fingerprint tells, and the message names both sources."""
    other = job(data={"name": "text", "path": "x.txt"})
    message = refusal(tmp_path, job(data="python_source"), other, fingerprint=b"other data")
    assert "\n  data: not the same as before (data.name python_source, now text)\n" in message


def test_other_shapes_are_refused(tmp_path: Path) -> None:
    """Even if the config does not show them, as with a vocabulary or a user's model whose code has changed."""
    message = refusal(tmp_path, job(), job(), size=4)
    assert "\n  state.params.layer.kernel: shape [3, 2] in the checkpoint, [4, 2] in this job\n" in message


def test_what_may_change_on_the_way(tmp_path: Path) -> None:
    """Rates and probabilities may be tuned, and the run may be longer, on another number of examples per step."""
    before = job(optimizer={"learning_rate": 1e-3, "clip_norm": 1.0}, model={"dropout": 0.1})
    tuned = {"learning_rate": 1e-4, "b1": 0.8, "b2": 0.9, "eps": 1e-6, "weight_decay": 0.0, "clip_norm": 2.0}
    after = job(
        optimizer=tuned,
        model={"dropout": 0.0, "initializer_range": 0.01},
        steps=500,
        batch_size=16,
        accumulate=2,
        schedule={"name": "linear", "warmup_steps": 10},
        precision="bfloat16",
        parallel={"name": "jit", "mesh": {"fsdp": 2}},
        seed=3,
        checkpoint={"keep": 7},
    )
    with opened(tmp_path) as checkpoints:
        save(checkpoints, 5, config=before)
        restored = checkpoints.load(5, checkpoints.target(lambda: state(0), after, FINGERPRINT))
    assert_identical(restored.state, state(5))
    assert restored.position == 40


def test_a_preset_is_its_sizes(tmp_path: Path) -> None:
    """Its sizes, given one by one, are the same model."""
    sizes = {"layers": 12, "heads": 12, "width": 768, "context": 1024}
    with opened(tmp_path) as checkpoints:
        save(checkpoints, 5, config=job(model={"preset": "gpt2"}))
        assert checkpoints.load(5, checkpoints.target(lambda: state(0), job(model=sizes), FINGERPRINT)).step == 5


# --- saves that fail ------------------------------------------------------------------------------------------------


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writing more to any file fails, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


# The library's own threads may find their event loop closed after a failure.
failing = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def noise(step: int) -> StateDict:
    """4 MB that do not compress."""
    return {"step": np.array(step, np.int32), "params": {"w": np.random.default_rng(step).random(1 << 20, np.float32)}}


@failing
def test_a_write_that_fails_is_raised_once(tmp_path: Path) -> None:
    """The step is never reported as complete, the one before it is whole, and a later save may succeed."""
    with opened(tmp_path) as checkpoints:
        checkpoints.save(1, noise(1), 8, job(), FINGERPRINT, None)
        assert checkpoints.completed(wait=True) == 1
        with largest_file(1 << 20), pytest.raises(Exception, match="File too large"):
            checkpoints.save(2, noise(2), 16, job(), FINGERPRINT, None)
        assert checkpoints.completed(wait=True) is None
        assert checkpoints.latest() == 1
        assert_identical(checkpoints.load(1, checkpoints.target(lambda: noise(0), job(), FINGERPRINT)).state, noise(1))
        checkpoints.save(3, noise(3), 24, job(), FINGERPRINT, None)
        assert checkpoints.completed(wait=True) == 3
    with opened(tmp_path) as checkpoints:
        assert kept(tmp_path) == {1, 3}
        assert_identical(checkpoints.load(3, checkpoints.target(lambda: noise(0), job(), FINGERPRINT)).state, noise(3))


@failing
def test_a_failure_is_raised_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked again and again as after each step, `completed` raises once the save has failed; the last good one stays."""
    monkeypatch.setattr("podrun.runtime.checkpoint.save.writes_at_once", lambda: False)
    with opened(tmp_path, keep=1) as checkpoints:
        save(checkpoints, 1)
        with largest_file(1 << 20):
            checkpoints.save(2, noise(2), 16, job(), FINGERPRINT, None)
            with pytest.raises(Exception, match="File too large"):
                until_completed(checkpoints)
        assert checkpoints.completed(wait=True) is None
        assert (tmp_path / "checkpoints" / "1").is_dir()
    with opened(tmp_path) as checkpoints:
        assert checkpoints.latest() == 1


@failing
def test_the_next_save_raises_the_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If nobody has asked before."""
    monkeypatch.setattr("podrun.runtime.checkpoint.save.writes_at_once", lambda: False)
    with opened(tmp_path) as checkpoints, largest_file(1 << 20):
        checkpoints.save(2, noise(2), 16, job(), FINGERPRINT, None)
        with pytest.raises(Exception, match="File too large"):
            checkpoints.save(3, noise(3), 24, job(), FINGERPRINT, None)


@failing
def test_a_save_that_writes_at_once_raises_its_own_failure(tmp_path: Path) -> None:
    with opened(tmp_path) as checkpoints, largest_file(1 << 20), pytest.raises(Exception, match="File too large"):
        checkpoints.save(2, noise(2), 16, job(), FINGERPRINT, None)

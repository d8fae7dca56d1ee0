"""An ensemble: one model per device, each from a seed of its own, and the mean of their predictions."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from podrun.runtime.checkpoint.store import Checkpoints
from podrun.runtime.config import Checkpoint
from podrun.runtime.contract import UserError
from podrun.runtime.data.pipeline import ShuffledOrder, TrainBatches, evaluation_batches
from podrun.runtime.parallel.base import Strategy
from podrun.runtime.state import Batch, StateDict, TrainState, to_dict
from podrun.runtime.tasks.base import Task
from podrun.runtime.tasks.classification import Classification

from ..strategies import (
    DEVICES,
    assert_close,
    assert_identical,
    compilations,
    copies,
    dataset,
    job,
    make,
    place,
    strategy,
    train,
)


def ensemble() -> Strategy:
    return strategy("ensemble")


@functools.cache
def batches() -> list[Batch]:
    order = TrainBatches(dataset().train, ShuffledOrder(dataset().train.size, 0), 8, 0, 1)
    return [order.at(8 * i) for i in range(3)]


@functools.cache
def initial() -> StateDict:
    return copies(ensemble().savable(ensemble().init()))


@functools.cache
def trained() -> tuple[StateDict, list[dict[str, float]], int]:
    """After three steps: the state, the metrics, and what was compiled after the first step."""
    one = ensemble()
    state, history = train(one, one.init(), batches()[:1])
    before = compilations()
    state, rest = train(one, state, batches()[1:])
    compiled = compilations() - before
    return copies(one.savable(state)), history + rest, compiled


def member(named: Any, number: int) -> Any:
    """One model of an ensemble's arrays."""
    return jax.tree.map(lambda x: x[number] if x.ndim else x, named)


@functools.cache
def alone(number: int) -> tuple[StateDict, StateDict, list[dict[str, float]]]:
    """The member trained by itself on one device: the start, the end, and the metrics."""
    one = strategy("single")
    seed = jax.random.bits(jax.random.fold_in(jax.random.key(one.seed), number))
    start = copies(to_dict(one.initial_state(seed)))
    state, history = train(one, place(one, start), batches())
    return start, copies(one.savable(state)), history


class Untold(Classification):
    """A user's task that does not say what it predicts."""

    predict = Task.predict


def test_a_task_without_predictions() -> None:
    """It is an error before training, not at the first evaluation."""
    with pytest.raises(UserError, match=r"^parallel: ensemble averages .*:Untold has no predict; write them"):
        make(job("ensemble", task=f"{__name__}:Untold"), dataset())


def test_no_two_members_start_equal() -> None:
    """Every matrix differs between any two of them; what begins with zeros is equal."""
    params = initial()["params"]
    for layer in ("dense_0", "head"):
        kernels = params[layer]["kernel"]
        assert len(kernels) == DEVICES
        assert len({kernel.tobytes() for kernel in kernels}) == DEVICES
        assert not params[layer]["bias"].any()


@pytest.mark.parametrize("number", range(DEVICES))
def test_a_member_follows_from_its_number_alone(number: int) -> None:
    """Its initial state is that of a single model from the seed that the global number of its device gives."""
    assert_identical(member(initial(), number), alone(number)[0])


@pytest.mark.parametrize("number", range(DEVICES))
def test_members_do_not_influence_each_other(number: int) -> None:
    """After three steps each is what it becomes when it is trained by itself, with its optimizer."""
    assert_close(member(trained()[0], number), alone(number)[1])


def test_the_metrics_of_a_step_are_means() -> None:
    """They are means over the members, each trained by itself."""
    for step, metrics in enumerate(trained()[1]):
        by_member = [alone(number)[2][step] for number in range(DEVICES)]
        assert metrics == pytest.approx({k: np.mean([m[k] for m in by_member]) for k in by_member[0]}, rel=1e-5)


def test_only_the_first_step_of_an_ensemble_compiles() -> None:
    """The state that a step returns is of the types of the one before."""
    assert trained()[2] == 0
    assert int(trained()[0]["step"]) == 3


def test_the_ensemble_is_evaluated() -> None:
    """Loss and accuracy are those of the mean of the members' probabilities; each member's own are beside them."""
    one = ensemble()
    state = place(one, trained()[0])
    sums: Any = None
    for batch in evaluation_batches(dataset().validation, 8, *one.data_shard, None):
        part = jax.tree.map(np.float64, one.evaluate(state, one.shard(batch)))
        sums = part if sums is None else jax.tree.map(np.add, sums, part)
    found = one.summarize(sums)

    size = dataset().validation.size
    examples = dataset().validation.gather(np.arange(size), np.zeros(size, np.int64))
    by_member = []
    for number in range(DEVICES):
        p = jax.tree.map(np.float64, member(trained()[0], number)["params"])
        hidden = np.tanh(examples["x"] @ p["dense_0"]["kernel"] + p["dense_0"]["bias"])
        logits = hidden @ p["head"]["kernel"] + p["head"]["bias"]
        by_member.append(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))

    def scores(p: Any) -> dict[str, float]:
        loss = -np.log(p[np.arange(size), examples["y"]]).mean()
        return {"loss": loss, "accuracy": (p.argmax(-1) == examples["y"]).mean()}

    members = [scores(p) for p in by_member]
    expected = scores(np.mean(by_member, axis=0))
    number = int(np.argmin([m["loss"] for m in members]))
    best = {"best_member": number, **{f"best_member_{name}": value for name, value in members[number].items()}}
    mean = {f"mean_member_{name}": np.mean([m[name] for m in members]) for name in expected}
    assert expected["loss"] < mean["mean_member_loss"]  # Jensen's inequality
    for own, values in zip(found.pop("members"), members, strict=True):
        assert own == pytest.approx(values, rel=1e-5)
    assert found == pytest.approx({**expected, **mean, **best}, rel=1e-5)


def test_the_ensemble_is_scored_while_it_trains() -> None:
    """Loss and accuracy of the averaged prediction for a training batch, before its step; the program is an evaluation's."""
    one, batch = ensemble(), batches()[0]
    state = place(one, initial())
    weights = np.ones(8, np.float32)
    one.evaluate(state, one.shard({**batch, "weights": weights}))  # compiles
    before = compilations()
    scores = one.scores(state, one.shard(batch))
    assert compilations() == before
    sums = jax.device_get(one.evaluate(state, one.shard({**batch, "weights": weights})))
    expected = one.summarize(jax.tree.map(np.float64, sums))
    assert scores == {f"ensemble_{name}": pytest.approx(expected[name]) for name in ("loss", "accuracy")}
    assert scores["ensemble_loss"] < expected["mean_member_loss"]
    assert strategy("single").scores(state, batch) == {}


def test_the_best_member_is_one() -> None:
    """Its loss and its accuracy are both its own, also if another one is right more often."""
    sums = {"loss": 40.0, "correct": 9.0, "count": 10.0}
    members = {"loss": [9.0, 4.0, *[8.0] * (DEVICES - 2)], "correct": [8.0, 6.0, *[7.0] * (DEVICES - 2)]}
    arrays = {name: np.array(values) for name, values in {**members, "count": [10.0] * DEVICES}.items()}
    found = ensemble().summarize({**sums, "members": arrays})
    assert (found["best_member"], found["best_member_loss"], found["best_member_accuracy"]) == (1, 0.4, 0.6)


def test_an_ensemble_goes_on_from_a_placed_state() -> None:
    """All members with their optimizers come back bit for bit, on the devices where they were, and train on the same."""
    one = ensemble()
    assert one.saves_in_parts
    state = place(one, initial())
    assert_identical(copies(one.savable(state)), initial())
    for number, device in enumerate(jax.devices()):
        kernels = state.params["head"]["kernel"].addressable_shards
        (mine,) = [shard.data for shard in kernels if shard.device == device]
        assert_identical(mine[0], initial()["params"]["head"]["kernel"][number])
    state, history = train(one, state, batches())
    assert history == trained()[1]
    assert_identical(copies(one.savable(state)), trained()[0])


def test_the_result_is_one_model() -> None:
    """The first member, on the host."""
    one = ensemble()
    assert_identical(one.result(place(one, initial())), member(initial(), 0)["params"])


def test_all_members_see_the_whole_batch() -> None:
    """Each batch is on every device, and every process provides all of it."""
    one = ensemble()
    assert (one.shares, one.data_shard) == (1, (0, 1))
    x = one.shard(batches()[0])["x"]
    assert {shard.device for shard in x.addressable_shards} == set(jax.devices())
    for shard in x.addressable_shards:
        assert_identical(shard.data, batches()[0]["x"])


@pytest.mark.parametrize(
    ("before", "after", "row"),
    [
        ("ensemble", "pmap", 'parallel: "ensemble" in the checkpoint, "one model" in this job'),
        ("jit fsdp 2", "ensemble", 'parallel: "one model" in the checkpoint, "ensemble" in this job'),
    ],
)
def test_one_model_and_an_ensemble_do_not_resume_each_other(tmp_path: Path, before: str, after: str, row: str) -> None:
    """The checkpoint is refused before it is read, with what differs and what to do."""
    state: TrainState = strategy(before).init()
    checkpoints = Checkpoints(tmp_path / "checkpoints", Checkpoint(), strategy(before).saves_in_parts)
    checkpoints.save(5, strategy(before).savable(state), 40, job(before), b"data", None)
    checkpoints.completed(wait=True)
    checkpoints.close()
    checkpoints = Checkpoints(tmp_path / "checkpoints", Checkpoint(), strategy(after).saves_in_parts)
    with pytest.raises(UserError) as raised:
        checkpoints.load(5, checkpoints.target(strategy(after).template, job(after), b"data"))
    checkpoints.close()
    assert f"\n  {row}\n" in str(raised.value)
    assert "choose another --workdir" in str(raised.value)

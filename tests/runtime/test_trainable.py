"""The key `trainable`: parameters that it does not match are frozen, under every strategy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from pydantic import ValidationError

from podrun.runtime.checkpoint.same_job import obstacles, shapes_of
from podrun.runtime.checkpoint.saved_model import SavedModel, find_checkpoint
from podrun.runtime.checkpoint.store import Checkpoints
from podrun.runtime.config import Checkpoint, Config, saved_config
from podrun.runtime.contract import UserError, Workdir
from podrun.runtime.data.base import Dataset
from podrun.runtime.models.adapter import name_of
from podrun.runtime.optim import make_optimizer, updates_of
from podrun.runtime.parallel import layout, make_strategy
from podrun.runtime.parallel.base import Strategy
from podrun.runtime.state import Batch, to_dict
from podrun.runtime.tasks import make_task

from ..tiers import mostly_long
from .parallel.reference import batches, text, text_batches, text_job
from .strategies import (
    SECTIONS,
    assert_close,
    assert_identical,
    copies,
    dataset,
    every_strategy_in_parts,
    job,
    make,
    place,
    train,
)
from .training import train as train_run

HEAD = "head.*"
MLP = r"layers\.block_1\.mlp\..*kernel"


def arrays(tree: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {name_of(path): np.array(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def unrestricted(config: Config, data: Dataset, trainable: str) -> Strategy:
    """Return a strategy that trains all, with an optimizer that ignores the gradients of frozen parameters."""
    task = make_task(config, data)
    inner, schedule = make_optimizer(config, config.total_steps(1), task.stacked)

    def of_trained(gradients: Any, _: Any) -> Any:
        return jax.tree.map_with_path(lambda path, x: x * bool(re.fullmatch(trainable, name_of(path))), gradients)

    return make_strategy(config, task, optax.chain(optax.stateless(of_trained), inner), schedule)


_OF_SINGLE: dict[str, tuple[Any, list[dict[str, float]]]] = {}


def of_single(config: Config, data: Dataset, given: list[Batch], trainable: str) -> tuple[Any, list[dict[str, float]]]:
    """Return the parameters and metrics of an unrestricted training on one device; each is trained once."""
    key = f"{config.model_dump_json()} {trainable}"
    if key not in _OF_SINGLE:
        one = unrestricted(config, data, trainable)
        state, metrics = train(one, one.init(), given)
        _OF_SINGLE[key] = copies(state.params), metrics
    return _OF_SINGLE[key]


def check(config: Config, data: Dataset, given: list[Batch], trainable: str) -> None:
    """Check that losses and parameters are those of the reference, and that frozen ones stay and have no moments."""
    expected, wanted = of_single(config.model_copy(update={"parallel": job("single").parallel}), data, given, trainable)
    one = make(config.model_copy(update={"trainable": trainable}), data)
    state = one.init()
    before = arrays(state.params)
    state, found = train(one, state, given)
    assert [metrics["loss"] for metrics in found] == pytest.approx([metrics["loss"] for metrics in wanted], rel=1e-5)
    assert_close(state.params, expected)
    after = arrays(state.params)
    ema = arrays(state.ema)
    moments = {name for name in arrays(state.opt_state) if name.endswith(tuple(before))}
    for name, value in before.items():
        frozen = re.fullmatch(trainable, name) is None
        assert (after[name].tobytes() == value.tobytes()) == frozen
        assert any(moment.endswith(name) for moment in moments) != frozen
        assert not ema or (name in ema) != frozen
        assert frozen or not ema or ema[name].tobytes() != value.tobytes()
    assert arrays(state.best).keys() == before.keys()
    assert moments


@every_strategy_in_parts
def test_training(name: str, accumulate: int) -> None:
    check(job(name, accumulate=accumulate, ema=0.9 if accumulate == 2 else None), dataset(), batches(3), HEAD)


@pytest.mark.parametrize("name", mostly_long(["jit fsdp 2", "pmap", "explicit fsdp 4"], lambda number, _: number == 0))
def test_stacked_layers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One block of each two is trained, in a loop over stacked layers with divided parameters and batches in two parts."""
    monkeypatch.setattr(layout, "SMALL", 100)
    fewer = {"post_norms": False, "qk_norm": False, "attention_soft_cap": None, "logit_soft_cap": None}
    check(text_job(name, "decoder", **fewer), text(), text_batches(), MLP)


HALF = {"frozen": "bfloat16"}


@pytest.mark.parametrize("name", mostly_long(SECTIONS, lambda _, name: name in ("pmap", "jit fsdp 2")))
def test_frozen_in_bfloat16(name: str) -> None:
    """The losses are those of the rounded parameters in float32; the trained ones and their moments stay float32."""
    one = make(job(name, trainable=HEAD, precision=HALF, ema=0.9), dataset())
    state = one.init()
    kinds = {leaf.dtype.name for leaf in jax.tree.leaves((state.params["dense_0"], state.best["dense_0"]))}
    assert kinds == {"bfloat16"}
    wide = make(job(name, trainable=HEAD, ema=0.9), dataset())
    rounded = jax.tree.map(lambda x: np.asarray(x, np.float32), copies(one.savable(state)))
    found = train(one, state, batches(2))
    opt_state = wide.savable(wide.init())["opt_state"]
    expected = train(wide, place(wide, {**rounded, "step": np.int32(0), "opt_state": opt_state}), batches(2))
    assert found[1] == expected[1]
    assert {x.dtype.name for x in jax.tree.leaves((found[0].params["head"], found[0].opt_state)) if x.ndim} == {
        "float32"
    }


def test_resumed_in_another_precision(tmp_path: Path) -> None:
    """Frozen parameters of a checkpoint are converted, also where devices hold parts of them; the run says so."""
    keys = {"steps": 4, "trainable": "head.*", "batch_size": 8, "parallel": {"name": "jit", "mesh": {"fsdp": 4}}}
    train_run(tmp_path / "a", until=2, **keys)
    train_run(tmp_path / "a", precision=HALF, **keys)
    saved = SavedModel(tmp_path / "a" / "checkpoints" / "4")
    kinds = {place[-2]: dtype.name for place, (_, dtype) in saved.arrays.items() if place[0] == "params"}
    assert kinds["head"] == "float32" and set(kinds.values()) == {"float32", "bfloat16"}
    assert "precision: float32 -> " in (tmp_path / "a" / "events").read_text()
    train_run(tmp_path / "a", **{**keys, "steps": 6})
    assert len(losses(tmp_path / "a")) == 6


def test_nothing_is_frozen() -> None:
    with pytest.raises(
        ValidationError, match=r"precision.frozen: bfloat16 is the type of parameters that are not trained"
    ):
        job("jit", precision=HALF)


def test_short_form_of_precision() -> None:
    """Jobs, and the checkpoints of older versions, have the name of a type alone."""
    assert saved_config(job("jit", precision="bfloat16"))["precision"] == "bfloat16"
    full = job("jit", trainable=HEAD, precision={"compute": "bfloat16", **HALF})
    assert saved_config(full)["precision"] == {"compute": "bfloat16", "frozen": "bfloat16"}
    assert Config.model_validate_json(full.model_dump_json()) == full


def test_members_of_an_ensemble() -> None:
    """Each keeps its own initial values in what is frozen."""
    one = make(job("ensemble", trainable=HEAD), dataset())
    state = one.init()
    before = arrays(state.params)
    after = arrays(train(one, state, batches(2))[0].params)
    same = {name for name, value in before.items() if after[name].tobytes() == value.tobytes()}
    assert same == {"dense_0.bias", "dense_0.kernel"}


def test_line_search() -> None:
    """L-BFGS evaluates the loss again in its update."""
    config = job("pmap", optimizer="lbfgs", schedule={}, batch_size="all", trainable=HEAD)
    one = make(config, dataset())
    state = one.init()
    before = arrays(state.params)
    state, found = train(one, state, batches(1) * 3)
    assert found[2]["loss"] < found[1]["loss"] < found[0]["loss"]
    after = arrays(state.params)
    assert {name for name in before if np.array_equal(after[name], before[name])} == {"dense_0.bias", "dense_0.kernel"}


def test_no_weight_decay() -> None:
    """Frozen parameters do not decay, and inspect names them."""
    config = job("jit", optimizer={"name": "adamw", "weight_decay": 10.0}, trainable=HEAD)
    one = make(config, dataset())
    state = one.init()
    assert updates_of(config, state.params) == ["frozen", "frozen", "trained", "decayed"]
    before = arrays(state.params)
    after = arrays(train(one, state, batches(2))[0].params)
    assert after["dense_0.kernel"].tobytes() == before["dense_0.kernel"].tobytes()


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(UserError, match=r"trainable 'layers' matches no parameter's full name.*dense_0.bias") as error:
        make(job("jit", trainable="layers"), dataset()).init()
    assert "'.*layers.*' matches anywhere" in str(error.value)


def test_not_a_regular_expression() -> None:
    with pytest.raises(ValidationError, match=r"trainable\n.*'\(' is not a regular expression"):
        job("jit", trainable="(")


def test_another_regular_expression_is_another_job() -> None:
    before = {"config": saved_config(job("jit")), "fingerprint": "", "shapes": {}}
    rows = obstacles(before, job("pmap", trainable=HEAD), b"", {})  # type: ignore[arg-type]
    assert rows == [("trainable", 'null in the checkpoint, "head.*" in this job')]


def test_resume_under_another_strategy(tmp_path: Path) -> None:
    """Losses do not depend on a stop in the middle, after which the run goes on under another strategy."""
    keys = {"steps": 6, "trainable": "head.*", "batch_size": 8, "checkpoint": {"every": 3}, "ema": 0.5}
    train_run(tmp_path / "whole", parallel="pmap", **keys)
    train_run(tmp_path / "parts", until=3, parallel="pmap", **keys)
    train_run(tmp_path / "parts", parallel={"name": "jit", "mesh": {"fsdp": 4}}, **keys)
    whole, parts = losses(tmp_path / "whole"), losses(tmp_path / "parts")
    assert len(whole) == 6 and parts == pytest.approx(whole, rel=1e-5)


def test_resume_of_an_average_with_frozen_parameters(tmp_path: Path) -> None:
    """Older versions saved the frozen parameters in the average as well: such a checkpoint resumes and is evaluated."""
    config = job("pmap", trainable=HEAD, ema=0.5)
    one = make(config, dataset())
    state, _ = train(one, one.init(), batches(2))
    named = copies(one.savable(state))
    older = {**named, "ema": to_dict(state.replace(ema=state.best))["ema"]}  # type: ignore[attr-defined]
    assert shapes_of(older) != shapes_of(named)
    checkpoints = Checkpoints(tmp_path / "checkpoints", Checkpoint(), one.saves_in_parts)
    checkpoints.save(2, copies(older), 16, config, b"", None)
    checkpoints.close()
    checkpoints = Checkpoints(tmp_path / "checkpoints", Checkpoint(), one.saves_in_parts)
    restored = checkpoints.load(2, checkpoints.target(one.template, config, b""))
    checkpoints.close()
    assert_identical(copies(restored.state), named)
    saved = SavedModel(find_checkpoint(tmp_path, None))
    assert_identical(saved.trees(np.asarray)[0], copies(state.best))


def losses(workdir: Path) -> list[float]:
    records = map(json.loads, Workdir(workdir).metrics.read_text().splitlines())
    return [record["loss"] for record in records if record["kind"] == "train"]

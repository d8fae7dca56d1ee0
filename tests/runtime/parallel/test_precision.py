"""The section `precision`: the types of the sum of gradients over devices and of the logits."""

from __future__ import annotations

import re
from typing import Any

import jax
import numpy as np
import pytest
from pydantic import ValidationError

from podrun.runtime.config import Config, saved_config
from podrun.runtime.config.sections import Precision
from podrun.runtime.parallel.base import Strategy
from podrun.runtime.state import TrainState

from ...tiers import mostly_long
from ..strategies import dataset, job, make, place, random_state, train
from .reference import ONE_LAYER, batches, text, text_batches, text_job

HALF = {"gradients": "bfloat16"}


def all_reduces(one: Strategy, state: TrainState) -> list[tuple[str, str]]:
    """Return shape and element type of each all-reduce in a step as it is given to the compiler."""
    program = one._step.lower(state, one.shard(batches(1)[0])).as_text()
    return re.findall(r"stablehlo.all_reduce.*?\}\) : \(tensor<([0-9x]*?)x?([a-z]+[0-9]+)>", program, re.DOTALL)


def total(reduced: list[tuple[str, str]], dtype: str) -> int:
    """Return the number of elements that are summed in `dtype`."""
    return sum(int(np.prod([int(n) for n in shape.split("x") if n])) for shape, kind in reduced if kind == dtype)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("name", ["pmap", "shard_map"])
def test_gradients_are_summed_in_bfloat16(name: str, accumulate: int) -> None:
    """Parameters, moments and the sum of microbatches stay float32, and the losses are close to those of float32."""
    wide = make(job(name, accumulate=accumulate), dataset())
    one = make(job(name, accumulate=accumulate, precision=HALF), dataset())
    parameters = sum(leaf.size for leaf in jax.tree.leaves(one.abstract_state().params))
    start = random_state(one)
    in_halves, in_floats = all_reduces(one, place(one, start)), all_reduces(wide, place(wide, start))
    assert parameters <= total(in_halves, "bf16") <= parameters + 1
    assert total(in_halves, "f32") < 10 < parameters <= total(in_floats, "f32")
    assert total(in_floats, "bf16") == 0
    state, found = train(one, place(one, start), batches(3))
    _, expected = train(wide, place(wide, start), batches(3))
    losses, close = ([metrics["loss"] for metrics in history] for history in (found, expected))
    assert losses == pytest.approx(close, rel=1e-2) and losses[1:] != close[1:]
    assert {leaf.dtype.name for leaf in jax.tree.leaves((state.params, state.opt_state)) if leaf.ndim} == {"float32"}


@pytest.mark.parametrize(
    ("model", "keys"),
    mostly_long(
        (
            ("gpt2", {}),
            ("decoder", {"tied_head": True, **ONE_LAYER}),
            ("decoder", {"tied_head": False, **ONE_LAYER}),
        ),
        lambda number, _: number != 1,
    ),
)
def test_logits_are_computed_in_float32(model: str, keys: dict[str, Any]) -> None:
    """Only the head's products; the losses are nearer to those of float32."""
    losses = {}
    for kind, precision in (
        ("float32", {}),
        ("bfloat16", {"compute": "bfloat16"}),
        ("head", {"compute": "bfloat16", "output": "float32"}),
    ):
        section = Precision.model_validate(precision)
        one = make(text_job("single", model, **keys).model_copy(update={"precision": section}), text())
        program = one.lowered(text_batches()[0]).as_text()
        products = re.findall(r"stablehlo.dot_general.*-> tensor<[0-9x]*x([a-z]+[0-9]+)>", program)
        assert ("f32" in products) == (kind != "bfloat16") and ("bf16" in products) == (kind != "float32")
        state = place(one, random_state(one))
        losses[kind] = [metrics["loss"] for metrics in train(one, state, text_batches())[1]]
    assert losses["head"] == pytest.approx(losses["float32"], rel=1e-2) and losses["head"] != losses["bfloat16"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"name": "jit", "precision": HALF}, "precision.gradients: bfloat16 is for parallel: pmap and shard_map"),
        (
            {"name": "pmap", "precision": HALF, "optimizer": {"name": "lbfgs", "line_search": "zoom"}},
            "precision.gradients: bfloat16 is too coarse for the line search",
        ),
        ({"name": "pmap", "precision": {"output": "float32"}}, "precision.output is for model gpt2 and decoder"),
    ],
)
def test_mistakes(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        job(str(keys.pop("name")), **keys)


def test_an_evaluation_may_have_another_strategy() -> None:
    saved = job("pmap", precision={"compute": "bfloat16", **HALF}).for_evaluation()
    assert (saved.precision.compute, saved.precision.gradients) == ("bfloat16", "float32")
    evaluated = Config.model_validate({**saved_config(saved), "parallel": "jit"})
    assert evaluated.parallel.name == "jit"

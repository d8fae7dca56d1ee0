"""The kernels of attention: which one a job takes and why, and that splash computes the same as XLA's."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from podrun.runtime.config import Config, check_slice
from podrun.runtime.config.attention import with_kernel
from podrun.runtime.contract import UserError
from podrun.runtime.data.base import Dataset
from podrun.runtime.data.pipeline import batch_shapes
from podrun.runtime.data.windows import Source, TrainWindows, ValidationWindows
from podrun.runtime.devices import Devices
from podrun.runtime.measure.flops import step_flops
from podrun.runtime.models import attention
from podrun.runtime.models.attention import (
    Scores,
    Setting,
    Shards,
    attend,
    by_splash,
    choose,
    in_shards,
    largest_block,
    resolve,
)
from podrun.runtime.tasks import make_task

CPU = Setting("cpu", "cpu")
H100 = Setting("gpu", "NVIDIA H100", (9, 0))
WITHOUT_CUDNN = Setting("gpu", "NVIDIA H100", (9, 0), "cuDNN not found")
INSPECTED = Setting("gpu", "NVIDIA H100", (9, 0), "cuDNN not found", are_here=False)
V5E, V3 = Setting("tpu", "TPU v5 lite"), Setting("tpu", "TPU v3")
A100, V100, AMD = Setting("gpu", "A100", (8, 0)), Setting("gpu", "V100", (7, 0)), Setting("gpu", "MI300")


def job(precision: str = "bfloat16", parallel: str = "pmap", **model: Any) -> Config:
    name = "decoder" if "head_size" in model or "attention_soft_cap" in model else "gpt2"
    section = {"name": name, "width": 128, "heads": 2, **model}
    given = {"batch_size": 8, "steps": 1, "precision": precision, "parallel": parallel, "model": section}
    return Config.model_validate(given)


@pytest.mark.parametrize(
    ("setting", "config", "kernel", "reason"),
    [
        (CPU, job(), "xla", "the only one for cpu"),
        (H100, job(), "cudnn", "keeps no scores in the memory of NVIDIA H100"),
        (H100, job(attention="cudnn"), "cudnn", "as the job says"),
        (H100, job(attention="xla"), "xla", "as the job says"),
        (H100, job("float32"), "xla", "16 bits, and precision is float32"),
        (H100, job(dropout=0.1), "xla", "dropout is not 0"),
        (H100, job(attention_soft_cap=50), "xla", "no attention_soft_cap"),
        (H100, job(head_size=36), "xla", "a multiple of 8 up to 256, and they have the size 36"),
        (H100, job(head_size=256), "cudnn", "keeps no scores"),
        (A100, job(head_size=256), "xla", "heads up to 128 on A100, and they have the size 256"),
        (A100, job(), "cudnn", "keeps no scores"),
        (V100, job(), "xla", "Ampere or later, and the devices are V100"),
        (AMD, job(), "xla", "NVIDIA's GPUs, and the devices are MI300"),
        (WITHOUT_CUDNN, job(), "xla", "cuDNN's cannot be compiled here: cuDNN not found"),
        (
            INSPECTED,
            job(),
            "xla",
            "a run on NVIDIA H100 takes cudnn, which this machine cannot compile: cuDNN not found",
        ),
        (V5E, job(), "splash", "keeps no scores in the memory of TPU v5 lite"),
        (V5E, job(attention_soft_cap=50), "splash", "keeps no scores"),
        (V5E, job("float32"), "xla", "16 bits, and precision is float32"),
        (V5E, job(context=100), "xla", "a context of a multiple of 128, and it is 100"),
        (V5E, job(parallel="jit"), "splash", "keeps no scores"),
        (
            V5E,
            job(parallel="shard_map"),
            "xla",
            "or single or ensemble, and parallel is shard_map",
        ),
        (V3, job(), "xla", "does not compile for TPU v3"),
    ],
)
def test_the_choice_and_its_reason(setting: Setting, config: Config, kernel: str, reason: str) -> None:
    choice = choose(config, setting)
    assert choice is not None
    assert choice.kernel == kernel and reason in str(choice)
    assert (choice.of_run != kernel) == (setting is INSPECTED)


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        (CPU, "model.attention: cudnn is for GPUs, and the devices are CPUs; change that, or take attention: auto"),
        (V100, "model.attention: cudnn needs Ampere or later"),
        (V5E, "model.attention: cudnn is for GPUs, and the devices are TPUs"),
        (WITHOUT_CUDNN, "model.attention: cuDNN's cannot be compiled here: cuDNN not found"),
    ],
)
def test_a_named_kernel_that_the_devices_lack(setting: Setting, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        choose(job(attention="cudnn"), setting)


def test_a_named_kernel_that_does_not_fit_the_job() -> None:
    """It is an error of train.yaml, and of its slice, before anything is started."""
    with pytest.raises(ValueError, match=r"model\.attention: cudnn computes with 16 bits, and precision is float32"):
        job("float32", attention="cudnn")
    check_slice(job(attention="cudnn"), 8, platform="gpu")
    with pytest.raises(UserError, match="cudnn is for GPUs, and the devices are TPUs"):
        check_slice(job(attention="cudnn"), 8, platform="tpu")


def of_both(kernel: Callable[..., jax.Array], *given: jax.Array) -> list[np.ndarray[Any, Any]]:
    """Return the output and the three gradients."""

    def loss(query: jax.Array, key: jax.Array, value: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = kernel(query, key, value)
        return (out * weights).sum(), out

    grads, out = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*given)
    return [np.asarray(x) for x in (out, *grads)]


def test_splash_computes_what_xla_does() -> None:
    """Grouped queries, a window and a soft cap, in Pallas' interpreter: output and gradients."""
    shapes = ((1, 128, 4, 8), (1, 128, 2, 8), (1, 128, 2, 8), (1, 128, 4, 8))
    keys = jax.random.split(jax.random.key(0), len(shapes))
    given = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]
    scores = Scores(0.5, 50, 3.0)
    expected = of_both(partial(attend, kernel="xla", scores=scores), *given)
    for one, other in zip(of_both(partial(by_splash, scores, interpret=True), *given), expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.parametrize("in_shares", [False, True])
def test_splash_of_divided_arrays(monkeypatch: pytest.MonkeyPatch, in_shares: bool) -> None:
    """Each device computes its examples and heads, also under `vmap` over shares; nothing is sent but what the sum needs."""
    monkeypatch.setattr(attention, "by_splash", partial(by_splash, interpret=True))
    mesh = jax.make_mesh((2, 2), ("batch", "model"), axis_types=(AxisType.Auto,) * 2)
    shapes = ((2, 1, 128, 4, 8), (2, 1, 128, 2, 8), (2, 1, 128, 2, 8), (2, 1, 128, 4, 8))
    keys = jax.random.split(jax.random.key(0), len(shapes))
    whole = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]
    expected = of_both(jax.vmap(partial(attend, kernel="xla", scores=Scores(0.5))), *whole)
    spec = PartitionSpec("batch", None, None, "model", None)
    given = [jax.device_put(x, NamedSharding(mesh, spec)) for x in whole]
    splash = partial(attend, kernel="splash", scores=Scores(0.5))
    of_shares = jax.vmap(splash, spmd_axis_name="batch")

    def of_all(*arrays: jax.Array) -> jax.Array:
        if in_shares:
            return of_shares(*arrays)
        return splash(*[x.reshape(2, 128, -1, 8) for x in arrays]).reshape(2, 1, 128, -1, 8)

    with jax.set_mesh(mesh), in_shards(Shards(None if in_shares else ("batch",), "model")):
        for one, other in zip(of_both(of_all, *given), expected, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
        program = jax.jit(of_all).lower(*given[:3]).compile().as_text()
    assert program and not re.search(r" all-(gather|reduce|to-all)", program)


def test_blocks_divide_the_context() -> None:
    assert [largest_block(length) for length in (128, 384, 640, 1024, 1152)] == [128, 384, 128, 512, 384]


def test_flops_count_the_same_with_every_kernel() -> None:
    tokens, source = np.arange(500) % 50, Source("tokens", 50)
    windows = TrainWindows(tokens, 16, 0, source), ValidationWindows(tokens, 16, source)
    data = Dataset(*windows, b"", 50, None)
    tasks = [make_task(with_kernel(job(layers=1, context=16), kernel), data) for kernel in ("xla", "cudnn", "splash")]
    params = jax.eval_shape(tasks[0].init, jax.random.key(0))
    counted = {step_flops(task, params, batch_shapes(data.train, 8)).work for task in tasks}
    assert len(counted) == 1


def test_the_devices_of_this_machine_decide() -> None:
    config, choice = resolve(job(), Devices.here())
    assert config.model.attention == "xla" and choice is not None and not choice.has_alternatives  # type: ignore[union-attr]
    with_mlp = Config.model_validate({"task": "regression", "batch_size": 8, "steps": 1})
    assert resolve(with_mlp, Devices.here()) == (with_mlp, None)

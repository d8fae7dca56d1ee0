"""Peaks of devices, and how much a step computes."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from podrun.launcher.pod.slices import GENERATIONS
from podrun.runtime.config import Config
from podrun.runtime.data.base import Dataset
from podrun.runtime.measure.flops import StepFlops, step_flops
from podrun.runtime.measure.peak import PEAKS, peak_of, seconds_at_peak, tpu_kind
from podrun.runtime.state import Batch, Params
from podrun.runtime.tasks.base import Scalars, Task
from podrun.runtime.tasks.language_model import LanguageModel

float32 = jnp.float32
Shape = jax.ShapeDtypeStruct


# --- peaks ----------------------------------------------------------------------------------------------------------


def test_every_peak_has_a_source() -> None:
    """And float32 is never faster than bfloat16."""
    for kind, peak in PEAKS.items():
        assert peak.source.startswith("https://"), kind
        assert 0 < peak.float32 <= peak.bfloat16 < 1e16, kind


@pytest.mark.parametrize("generation", GENERATIONS, ids=lambda g: g.name)
def test_every_tpu_slice_has_a_peak(generation: Any) -> None:
    """The peak is that of what JAX lists as one device: half a chip where a chip is two."""
    kind = tpu_kind(generation.slices()[0].name)
    assert kind
    peak = peak_of(kind)
    assert peak
    chips = {"v2": 46, "v3": 123, "v4": 275, "v5litepod": 197, "v5p": 459, "v6e": 918, "tpu7x": 2307}
    assert peak.flops("bfloat16") * generation.devices_per_chip == chips[generation.name] * 1e12


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA A100-SXM4-40GB MIG 1g.5gb", "TPU v99", ""])
def test_a_device_that_is_not_known_has_no_peak(kind: str) -> None:
    """A part of a GPU is not the GPU."""
    assert peak_of(kind) is None
    assert seconds_at_peak(1e12, kind, 8, "float32") is None


PUBLISHED = {  # kind: TFLOP/s of dense bfloat16 and of float32 as JAX computes it, which is TF32 on these
    "NVIDIA A100-SXM4-40GB": (312, 156),
    "NVIDIA A30": (165, 82),
    "NVIDIA A10": (125, 62.5),
    "NVIDIA L4": (121, 60),
    "NVIDIA L40": (181.05, 90.5),
    "NVIDIA GeForce RTX 4090": (165.2, 82.6),
    "NVIDIA H100 PCIe": (756.5, 378),
    "NVIDIA H200": (989.5, 494.5),
    "NVIDIA B200": (2250, 1125),
    "NVIDIA GB200": (2500, 1250),
}


@pytest.mark.parametrize("kind", PUBLISHED)
def test_peaks_are_the_published_ones(kind: str) -> None:
    """Without sparsity, which doubles the figures of data sheets."""
    assert (PEAKS[kind].bfloat16, PEAKS[kind].float32) == tuple(tera * 1e12 for tera in PUBLISHED[kind])


def test_precision() -> None:
    """float32 is TF32 where there is that, one pass of bfloat16 on TPU; GPUs without bfloat16 compute it as float32."""
    h100, v4, v100 = (PEAKS[kind] for kind in ("NVIDIA H100 80GB HBM3", "TPU v4", "Tesla V100-SXM2-16GB"))
    assert h100.flops("bfloat16") == 989.5e12
    assert h100.flops("float32") == 494.5e12
    assert v4.flops("float32") == v4.flops("bfloat16")
    assert v100.flops("float32") == v100.flops("bfloat16") == 15.7e12
    assert seconds_at_peak(8 * 989.5e12, "NVIDIA H100 80GB HBM3", 4, "bfloat16") == 2.0


# --- FLOPs ----------------------------------------------------------------------------------------------------------


class Dense(Task):
    """x @ w, `turns` times in a loop."""

    turns = 0

    def __init__(self) -> None:
        pass

    def init(self, key: jax.Array) -> Params:
        raise NotImplementedError

    evaluate = summarize = init  # type: ignore[assignment]

    def loss(self, params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Scalars]:
        y = batch["x"] @ params
        if self.turns:
            y, _ = jax.lax.scan(lambda y, _: (y @ params, None), batch["x"], length=self.turns)
        return y[0, 0], {}


def test_flops_of_a_dense_layer() -> None:
    """Two for each weight and example forwards, two backwards (the input needs no gradient): exactly."""
    flops = step_flops(Dense(), Shape((64, 128), float32), {"x": Shape((32, 64), float32)})
    assert flops == StepFlops(2 * 2 * 32 * 64 * 128, 0)


def test_flops_of_a_loop() -> None:
    """Every turn counts: 3 products of each, one forwards and two backwards."""
    task = Dense()
    task.turns = 10
    flops = step_flops(task, Shape((256, 256), float32), {"x": Shape((64, 256), float32)})
    # Of the product before the loop nothing is used, and of the input of the first turn no gradient.
    assert flops.work == pytest.approx(10 * 3 * 2 * 64 * 256 * 256, rel=0.05)


VOCABULARY = 50257


def gpt2(batch_size: int, parts: int = 1, **keys: Any) -> tuple[StepFlops, float]:
    """FLOPs as counted, and by hand: products with a weight are 6 a weight and token; the lookup of tokens is none.

    A block has the weights of queries, keys and values (3), of attention's output (1) and of the perceptron (4 + 4), each
    width x width; the head is the matrix of the tokens again. Attention itself multiplies each token by all of the context
    twice forwards and four times backwards, with the width as the sum over heads.
    """
    config = Config.model_validate({"steps": 3, "batch_size": batch_size, "sample": {"tokens": 0}, **keys})
    task = LanguageModel(config, Dataset(None, None, b"", vocabulary=VOCABULARY))  # type: ignore[arg-type]
    params = jax.eval_shape(task.init, jax.random.key(0))
    model: Any = config.model
    weights = model.layers * 12 * model.width**2 + VOCABULARY * model.width
    by_hand = batch_size * model.context * (6 * weights + 12 * model.layers * model.width * model.context)
    return step_flops(task, params, {"tokens": Shape((batch_size, model.context + 1), jnp.int32)}, parts), by_hand


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_flops_of_gpt2(precision: str) -> None:
    """Within 1 % of a count by hand; it is exact."""
    model = {"preset": "gpt2", "layers": 2, "context": 256}
    counted, by_hand = gpt2(4, parts=4, model=model, precision=precision)
    assert counted.work == pytest.approx(by_hand, rel=0.001)
    assert counted.repeated == 0


def test_remat_of_gpt2_is_no_work() -> None:
    """By block its products are computed twice, but the last one, whose result nothing needs; by dots those of attention."""
    model: dict[str, Any] = {"layers": 3, "heads": 2, "width": 32, "context": 16}
    plain, _ = gpt2(8, model=model)
    block, dots = (gpt2(8, model={**model, "remat": remat})[0] for remat in ("block", "dots"))
    assert block.work == dots.work == plain.work
    tokens = 8 * 16
    attention = tokens * 2 * 16 * 32  # of one of its two products
    assert block.repeated == 3 * (tokens * 2 * 8 * 32**2 + 2 * attention)
    assert dots.repeated == 3 * 2 * attention


def test_a_loss_in_pieces_is_no_more_work() -> None:
    """The head is computed twice where logits are larger than a piece, in a part of the batch that is computed at once."""
    model = {"layers": 1, "heads": 2, "width": 32, "context": 100}
    plain, by_hand = gpt2(8, parts=4, model=model)
    pieces, _ = gpt2(8, model=model)
    assert pieces.work == plain.work == pytest.approx(by_hand, rel=0.01)
    assert plain.repeated == 0
    assert pieces.repeated == 8 * 100 * 2 * VOCABULARY * 32


def test_flops_do_not_depend_on_how_a_batch_is_computed() -> None:
    """Nor on parts of it, and they are proportional to its size."""
    model = {"layers": 1, "heads": 2, "width": 32, "context": 16}
    whole, _ = gpt2(8, model=model)
    assert gpt2(8, model=model, accumulate=4)[0] == whole
    assert gpt2(16, model=model)[0] == whole.times(2)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"window_strides": (2, 3)},
        {"padding": "VALID"},
        {"rhs_dilation": (2, 2)},
        {"feature_group_count": 4},
        {"window_strides": (3, 3), "padding": "VALID"},
    ],
    ids=str,
)
def test_flops_of_a_convolution(options: dict[str, Any]) -> None:
    """Forwards and backwards they are XLA's own: products with padding, and with the holes of a stride, are none."""
    options = {"window_strides": (1, 1), "padding": "SAME", **options}

    class Convolution(Dense):
        def loss(self, params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Scalars]:
            def convolved(x: jax.Array) -> jax.Array:
                return jax.lax.conv_general_dilated(x, params, **options, dimension_numbers=("NHWC", "HWIO", "NHWC"))

            return convolved(batch["x"]).sum(), {}

    kernel = Shape((3, 5, 8 // options.get("feature_group_count", 1), 16), float32)
    batch = {"x": Shape((2, 13, 17, 8), float32)}

    def loss(params: Any, batch: Any) -> Any:
        return Convolution().loss(params, batch, jax.random.key(0))[0]

    cost: Any = jax.jit(jax.grad(loss)).lower(kernel, batch).cost_analysis()
    forward: Any = jax.jit(loss).lower(kernel, batch).cost_analysis()
    counted = step_flops(Convolution(), kernel, batch).work
    assert counted == pytest.approx(cost["flops"] + forward["flops"], rel=0.02)


def test_of_several_branches_the_longest_counts() -> None:
    class Branches(Dense):
        def loss(self, params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Scalars]:
            x = batch["x"]
            y = jax.lax.cond(x[0, 0] > 0, lambda: x @ params, lambda: x @ params @ params.T @ params)
            return y.sum(), {}

    flops = step_flops(Branches(), Shape((64, 128), float32), {"x": Shape((32, 64), float32)})
    assert flops.work == (3 + 5) * 2 * 32 * 64 * 128


class Layers(Dense):
    """Three layers of one shape, one after another or in a loop, with or without `jax.checkpoint` around each."""

    remat: Any = staticmethod(lambda layer: layer)
    in_a_loop = False

    def loss(self, params: Params, batch: Batch, key: jax.Array) -> tuple[jax.Array, Scalars]:
        layer = self.remat(lambda x, w: jax.nn.gelu(x @ w) @ w.T)
        if self.in_a_loop:
            x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), batch["x"], params)
        else:
            x = batch["x"]
            for number in range(3):
                x = layer(x, params[number])
        return x.sum(), {"mean": x.mean()}


@pytest.mark.parametrize("in_a_loop", [False, True])
@pytest.mark.parametrize(
    ("remat", "again"),
    [
        (jax.checkpoint, 3),
        (functools.partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable), 0),
        (lambda layer: jax.jit(jax.checkpoint(layer)), 3),
        (lambda layer: jax.checkpoint(jax.checkpoint(layer, prevent_cse=False)), 3),
    ],
    ids=["checkpoint", "policy", "within jit", "nested"],
)
def test_rematerialisation_is_no_work(in_a_loop: bool, remat: Any, again: int) -> None:
    """A model counts as it does without: MFU says how well the devices do its work, not how much they do twice."""

    def flops(remat: Any) -> StepFlops:
        task = Layers()
        task.in_a_loop, task.remat = in_a_loop, remat
        return step_flops(task, Shape((3, 64, 128), float32), {"x": Shape((32, 64), float32)})

    product = 2 * 32 * 64 * 128
    plain, counted = flops(lambda layer: layer), flops(remat)
    # Two products forwards and four backwards, but of the input of the first layer there is no gradient outside of a loop.
    assert plain == StepFlops((18 if in_a_loop else 17) * product, 0)
    assert counted.work == plain.work
    assert counted.repeated == again * product, "of each layer the product that a gradient needs, unless it is kept"

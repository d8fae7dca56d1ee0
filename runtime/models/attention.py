"""Causal self-attention by one of several kernels, and the choice of a job's kernel.

XLA's keeps the scores of all pairs of tokens in memory, T x S for each head, and works everywhere. cuDNN's on GPUs and splash
attention on TPUs compute them in parts that stay on the chip, so that memory and its traffic grow with T only.

Letters in shapes: B batch, T tokens, S tokens as keys, H query heads, K heads of keys and values, G = H / K queries that
share one, D size of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from ..config import Config
from ..config.attention import (
    LANES,
    NO_SEGMENTS,
    attention_of,
    job_conflict,
    named_conflict,
    platform_conflict,
    with_kernel,
)
from ..contract import UserError
from ..devices import Devices
from ..job_report import Choice
from .layers import with_loop

_LOWEST = float(np.finfo(np.float32).min)
_BLOCK = 512
_HOPPER = (9, 0)
_OLDEST = (8, 0)
_LARGE_HEADS = 128
"""cuDNN's kernel needs a Hopper or later for heads above this size."""
_FOR_AUTO = {"gpu": "cudnn", "tpu": "splash"}
"""The kernel that `auto` prefers, by platform."""
_OLD_TPUS = ("TPU v2", "TPU v3")
INSTALL_CUDNN = "`pip install nvidia-cudnn-cu13` (517 MB)"


@dataclass(frozen=True)
class Shards:
    """The division of an attention kernel's arrays over a mesh, for kernels that the compiler cannot divide itself."""

    examples: tuple[str, ...] | None
    """Axes that divide B; None: `vmap` adds its own (`spmd_axis_name`)."""
    heads: str | None
    """Axis that divides H and K, if one does."""


_shards: ContextVar[Shards | None] = ContextVar("shards", default=None)


@contextmanager
def in_shards(shards: Shards) -> Iterator[None]:
    """Context manager: within it and within a mesh, each device computes traced attention for its own shards."""
    token = _shards.set(shards)
    try:
        yield
    finally:
        _shards.reset(token)


# --- the kernels ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scores:
    """How the scores of pairs of tokens are computed from queries and keys."""

    scale: float
    """Factor of the scores."""
    window: int | None = None
    """Number of last tokens that a token attends to, itself among them; None: all."""
    soft_cap: float | None = None
    """Limit of the scores; `cudnn` has none."""


def attend(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    kernel: str,
    scores: Scores,
    *,
    drop: Callable[[jax.Array], jax.Array] | None = None,
    places: jax.Array | None = None,
    segments: jax.Array | None = None,
) -> jax.Array:
    """Return the attention of each token to itself and the tokens before it, [B, T, H, D].

    Args:
        query: [B, T, H, D]. Each of the K heads of keys is shared by G neighbouring queries.
        key: [B, S, K, D].
        value: [B, S, K, D].
        kernel: `xla`, `cudnn` or `splash`; `auto` means `xla`, if `resolve` has not chosen.
        scores: how the scores are computed.
        drop: dropout of the weights, [B, H, T, S]; only by `xla`.
        places: indices of the T tokens among the S, int32[B, T], if there are earlier tokens; always by `xla`.
        segments: number of each token's document, int32[B, T]; a token attends only to its own document. Not by `cudnn`.
    """
    if places is not None:
        return _by_xla(query, key, value, scores, _seen(places, key.shape[1], scores.window), drop)
    if kernel == "splash":
        assert drop is None
        splash = partial(by_splash, scores)
        return _of_each_device(splash)(query, key, value, *([] if segments is None else [segments]))
    if kernel == "cudnn":
        assert scores.soft_cap is None and drop is None
        if segments is not None:  # of a user's data source: for podrun's own, `job_conflict` says so before
            raise UserError(f"model.attention: {NO_SEGMENTS}; take attention: xla")
        # JAX counts the tokens before a token, without itself.
        local = None if scores.window is None else (scores.window - 1, 0)
        return jax.nn.dot_product_attention(
            query, key, value, scale=scores.scale, is_causal=True, local_window_size=local, implementation="cudnn"
        )
    seen = _seen(jnp.arange(query.shape[1]), key.shape[1], scores.window)
    if segments is not None:
        seen = seen & (segments[:, :, None] == segments[:, None, :])
    return _by_xla(query, key, value, scores, seen, drop)


def _of_each_device(kernel: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Wrap the kernel so that each device runs it for its shards, within the context `in_shards`."""
    shards = _shards.get()
    if shards is None:
        return kernel
    spec = PartitionSpec(shards.examples, None, shards.heads, None)

    def mapped(*arrays: jax.Array) -> jax.Array:
        specs = tuple(spec if array.ndim == len(spec) else PartitionSpec(shards.examples, None) for array in arrays)
        result: jax.Array = jax.shard_map(kernel, in_specs=specs, out_specs=spec, check_vma=False)(*arrays)
        return result

    return mapped


def _by_xla(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    form: Scores,
    seen: jax.Array,
    drop: Callable[[jax.Array], jax.Array] | None,
) -> jax.Array:
    batch, length, heads, size = query.shape
    groups = key.shape[2]
    # A program with an axis of one head in each group reads and writes a fifth more memory on GPUs.
    products, mixture = "btkgd,bskd->bkgts", "bkgts,bskd->btkgd"
    if groups == heads:
        products, mixture = "bthd,bshd->bhts", "bhts,bshd->bthd"
    else:
        query = query.reshape(batch, length, groups, heads // groups, size)
    scores = jnp.einsum(products, query, key).astype(jnp.float32) * form.scale
    if form.soft_cap is not None:
        scores = form.soft_cap * jnp.tanh(scores / form.soft_cap)
    seen = seen if seen.ndim == 2 else jnp.expand_dims(seen, tuple(range(1, scores.ndim - 2)))
    weights = jax.nn.softmax(jnp.where(seen, scores, _LOWEST)).astype(query.dtype)
    if drop is not None:
        weights = drop(weights.reshape(batch, heads, length, length)).reshape(weights.shape)
    return jnp.einsum(mixture, weights, value).reshape(batch, length, heads, size)


def by_splash(
    scores: Scores,
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    segments: jax.Array | None = None,
    *,
    interpret: bool = False,
) -> jax.Array:
    """Compute attention, as `attend` does, by JAX's splash attention in Pallas. `interpret` runs it on CPUs, slowly."""
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    length, window = query.shape[1], scores.window
    shape = (length, length)
    mask = splash.CausalMask(shape) if window is None else splash.LocalMask(shape, (window - 1, 0), 0)
    block = largest_block(length)
    kernel = splash.make_splash_mha(
        splash.MultiHeadMask([mask] * query.shape[2]),
        block_sizes=splash.BlockSizes(
            block_q=block,
            block_kv=block,
            block_q_dkv=block,
            block_kv_dkv=block,
            block_q_dq=block,
            block_kv_dq=block,
        ),
        head_shards=1,
        q_seq_shards=1,
        attn_logits_soft_cap=scores.soft_cap,
        interpret=interpret,
    )
    query = (query.astype(jnp.float32) * scores.scale).astype(query.dtype)  # the kernel itself does not scale
    arrays = [jnp.swapaxes(x, 1, 2) for x in (query, key, value)]
    out = jax.vmap(kernel)(*arrays, None if segments is None else splash.SegmentIds(segments, segments))
    return jnp.swapaxes(out, 1, 2)


def positions_in(tokens: jax.Array, segments: jax.Array | None) -> jax.Array:
    """Return each token's position in its row, [T]; with `segments`, int32[B, T], its position in its document, [B, T]."""
    places = jnp.arange(tokens.shape[1])
    if segments is None:
        return places
    begins = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)))
    return places - jax.lax.cummax(jnp.where(begins, places, 0), axis=1)


def largest_block(length: int) -> int:
    """Return the tokens of a block: as MaxText 512, or the next lower multiple of a TPU's 128 lanes that divides `length`."""
    return max(size for size in range(LANES, _BLOCK + 1, LANES) if length % size == 0)


def _seen(places: jax.Array, length: int, window: int | None) -> jax.Array:
    """Return whether tokens at `places`, [T] or [B, T], attend to each of `length` keys: bool[T, S] or [B, T, S]."""
    before = places[..., None] - jnp.arange(length)
    return before >= 0 if window is None else (before >= 0) & (before < window)


# --- the choice -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """Facts about devices and machine that the choice of a kernel depends on."""

    platform: str
    """`cpu`, `gpu` or `tpu`."""
    kind: str
    """Kind of the devices, such as `NVIDIA H100 80GB HBM3`."""
    capability: tuple[int, int] | None = None
    """NVIDIA's compute capability; None on other devices."""
    cudnn_problem: str = ""
    """Reason why this process cannot compile cuDNN's attention; empty if it can."""
    are_here: bool = True
    """True if the job runs in this process. Otherwise its hosts may have what this machine lacks."""


def choose(config: Config, setting: Setting) -> Choice | None:
    """Return the kernel of a job on some devices, with the reason; None if its model has no choice.

    Raises:
        UserError: the job names a kernel that cannot work there.
    """
    section = attention_of(config)
    if section is None:
        return None
    named = section.attention
    if named != "auto" and (problem := named_conflict(config, setting.platform)):
        raise UserError(problem)
    kernel = _FOR_AUTO.get(setting.platform, "xla") if named == "auto" else named
    if kernel == "xla":
        reason = "as the job says" if named == "xla" else f"the only one for {setting.kind}"
        return Choice("xla", reason, "xla", named == "xla" and setting.platform in _FOR_AUTO)
    problem = job_conflict(kernel, config) or platform_conflict(kernel, setting.platform)
    if problem is None and kernel == "cudnn":
        problem = _gpu_conflict(section.size, setting)
    if problem is None and kernel == "splash":
        problem = f"splash does not compile for {setting.kind}" if setting.kind in _OLD_TPUS else None
    if problem is None and setting.cudnn_problem and setting.are_here:
        problem = f"cuDNN's cannot be compiled here: {setting.cudnn_problem}"
    if problem is not None:
        if named != "auto":
            raise UserError(f"model.attention: {problem}; change that, or take attention: auto")
        return Choice("xla", f"because {problem}", "xla")
    if setting.cudnn_problem:
        reason = (
            f"though a run on {setting.kind} takes cudnn, which this machine cannot compile: {setting.cudnn_problem}; "
            f"for the same program install cuDNN here: {INSTALL_CUDNN}"
        )
        return Choice("xla", reason, kernel)
    reason = "as the job says" if named != "auto" else f"which keeps no scores in the memory of {setting.kind}"
    return Choice(kernel, reason, kernel)


def _gpu_conflict(size: int, setting: Setting) -> str | None:
    if setting.capability is None:
        return f"cudnn is for NVIDIA's GPUs, and the devices are {setting.kind}"
    if setting.capability < _OLDEST:
        return f"cudnn needs Ampere or later, and the devices are {setting.kind}"
    if size > _LARGE_HEADS and setting.capability < _HOPPER:
        return f"cudnn takes heads up to {_LARGE_HEADS} on {setting.kind}, and they have the size {size}"
    return None


def resolve(config: Config, pod: Devices) -> tuple[Config, Choice | None]:
    """Return the job with kernel of attention and loop over layers decided for the devices of a pod, and the kernel's choice.

    Raises:
        UserError: the job names a kernel that cannot work there.
    """
    section = attention_of(config)
    if section is None:
        return config, None
    wants_cudnn = pod.platform == "gpu" and section.attention in ("auto", "cudnn") and not job_conflict("cudnn", config)
    setting = Setting(
        pod.platform,
        pod.kind,
        _capability(pod),
        _cudnn_problem(section.size, section.context) if wants_cudnn else "",
        pod.are_here,
    )
    choice = choose(config, setting)
    config = with_loop(config, pod)
    return (config, None) if choice is None else (with_kernel(config, choice.kernel), choice)


def _capability(pod: Devices) -> tuple[int, int] | None:
    parts = str(getattr(pod.all[0], "compute_capability", "")).split(".")
    if pod.platform != "gpu" or len(parts) != 2 or not all(part.isdecimal() for part in parts):
        return None  # AMD's are called gfx90a and the like
    return int(parts[0]), int(parts[1])


def _cudnn_problem(size: int, length: int) -> str:
    """Return why JAX cannot trace cuDNN's attention of `length` tokens in this process; empty if it can."""
    x = jax.ShapeDtypeStruct((1, length, 1, size), jnp.bfloat16)

    def loss(x: jax.Array) -> jax.Array:
        return attend(x, x, x, "cudnn", Scores(1.0)).astype(jnp.float32).sum()

    try:
        jax.eval_shape(jax.grad(loss), x)
    except Exception as error:  # RuntimeError without cuDNN, NotImplementedError for what its version lacks
        return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return ""

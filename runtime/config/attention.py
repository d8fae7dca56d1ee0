"""Rules that say which kernels of attention fit a job, whatever its devices are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .data import has_segments
from .model import DecoderModel, GPT2Model

if TYPE_CHECKING:
    from .job import Config

PLATFORMS = {"cudnn": "gpu", "splash": "tpu"}
"""The platform of each kernel that has only one."""
_NAMES = {"gpu": "GPUs", "tpu": "TPUs", "cpu": "CPUs"}
_MULTIPLE, _LARGEST = 8, 256
"""Sizes of heads for cuDNN."""
LANES = 128
"""Lanes of a TPU: blocks of splash attention are multiples of them."""
NO_SEGMENTS = "cudnn has no segments, which keep documents in a row apart"
_WITH_SPLASH = ("pmap", "jit", "explicit", "single", "ensemble")
"""Strategies whose programs may have splash attention: `jax.shard_map` refuses Pallas kernels that do not say over which axes
their results vary (`check_vma`)."""


def attention_of(config: Config) -> GPT2Model | DecoderModel | None:
    """Return the job's section `model` if its attention has a choice of kernels, otherwise None."""
    return config.model if isinstance(config.model, GPT2Model | DecoderModel) else None


def with_kernel(config: Config, kernel: str) -> Config:
    """Return the job with this attention kernel. A job without a choice of kernels is returned as it is."""
    section = attention_of(config)
    if section is None or section.attention == kernel:
        return config
    return config.model_copy(update={"model": section.model_copy(update={"attention": kernel})})


def platform_conflict(kernel: str, platform: str) -> str | None:
    """Return why a kernel does not work on `cpu`, `gpu` or `tpu`; None if it does."""
    needed = PLATFORMS.get(kernel, platform)
    return None if needed == platform else f"{kernel} is for {_NAMES[needed]}, and the devices are {_NAMES[platform]}"


def job_conflict(kernel: str, config: Config) -> str | None:
    """Return why a kernel does not work for a job on any device; None if it does."""
    model = attention_of(config)
    if model is None or kernel not in PLATFORMS:
        return None
    if config.precision.compute == "float32":
        return f"{kernel} computes with 16 bits, and precision is float32"
    if model.dropout:
        return f"{kernel} drops no weights of the attention, and dropout is not 0"
    if kernel == "cudnn":
        if model.size % _MULTIPLE or model.size > _LARGEST:
            return (
                f"cudnn takes heads of a multiple of {_MULTIPLE} up to {_LARGEST}, and they have the size {model.size}"
            )
        if any(map(has_segments, (config.data, *config.validation.values()))):
            return NO_SEGMENTS
        if isinstance(model, DecoderModel) and model.attention_soft_cap:
            return "cudnn has no attention_soft_cap"
        if "deterministic" in config.launch.xla:  # IndexError: raw_hash_map::at in the first step (JAX 0.11.2, H200)
            return "cudnn fails with launch.xla=deterministic"
        return None
    if model.context % LANES:
        return f"splash takes a context of a multiple of {LANES}, and it is {model.context}"
    if config.parallel.name not in _WITH_SPLASH:
        return f"splash is for parallel: {' or '.join(_WITH_SPLASH)}, and parallel is {config.parallel.name}"
    return None


def named_conflict(config: Config, platform: str | None = None) -> str | None:
    """Return the error if a job names a kernel that cannot work, on `platform` if that is given; None if it can."""
    model = attention_of(config)
    if model is None:
        return None
    kernel = model.attention
    problem = job_conflict(kernel, config) or (platform_conflict(kernel, platform) if platform else None)
    return problem and f"model.attention: {problem}; change that, or take attention: auto"

"""Set what the field sets for XLA on several GPUs, where the environment does not say otherwise."""

from __future__ import annotations

from collections.abc import MutableMapping

OVERLAP = "--xla_gpu_enable_latency_hiding_scheduler"
"""Lets communication go on beside computation. The one flag that NVIDIA's own images of JAX set:
https://docs.nvidia.com/jax-toolbox/environment-variables"""


def set_xla_flags(env: MutableMapping[str, str], devices: int) -> None:
    """Add the flag to XLA_FLAGS of a worker on GPUs, of which the pod has `devices`, unless it is there with any value."""
    flags = env.get("XLA_FLAGS", "")
    if env.get("JAX_PLATFORMS", "").startswith("cuda") and devices > 1 and OVERLAP not in flags:
        env["XLA_FLAGS"] = f"{flags} {OVERLAP}=true".strip()

"""Set the usual XLA flags for several GPUs, unless the environment sets them."""

from __future__ import annotations

from collections.abc import MutableMapping

OVERLAP = "--xla_gpu_enable_latency_hiding_scheduler"
"""Overlaps communication with computation. It is the only flag that NVIDIA's images of JAX set:
https://docs.nvidia.com/jax-toolbox/environment-variables"""


def set_xla_flags(env: MutableMapping[str, str], platform: str, devices: int) -> None:
    """Add `OVERLAP` to XLA_FLAGS on GPUs, if the pod has several devices and the flag is not set already.

    Args:
        env: the variables to change.
        platform: JAX's platforms, the first of which computes: `cuda,cpu`.
        devices: number of devices of the pod.
    """
    flags = env.get("XLA_FLAGS", "")
    if platform.startswith("cuda") and devices > 1 and OVERLAP not in flags:
        env["XLA_FLAGS"] = f"{flags} {OVERLAP}=true".strip()

"""What every worker of podrun's own finds in its environment, whatever the job is. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from podrun.runtime.contract import ENV_ADDRESS

from ..pod.pod import Pod

RUNTIME = ("-m", "podrun.runtime")
"""Arguments of the interpreter that make it a worker."""


def base_env(pod: Pod, device_ids: Sequence[int]) -> dict[str, str]:
    """Return the variables of a worker with these devices of its host, which the pod's and the job's own override."""
    address = {ENV_ADDRESS: "127.0.0.1"} if pod.traits.is_one_machine else {}
    return {**_platform_env(pod.platform, device_ids), **address, "PYTHONUNBUFFERED": "1"}


def _platform_env(platform: str, device_ids: Sequence[int]) -> dict[str, str]:
    """Return variables that make JAX use the devices of the slice, and fail if they are missing."""
    if platform == "cuda":
        # Without this, jax.distributed.initialize would take the device ids from SLURM_LOCALID if that is set.
        return {"JAX_PLATFORMS": "cuda,cpu", "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, device_ids))}
    if platform != "cpu":
        return {"JAX_PLATFORMS": f"{platform},cpu"}
    return {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(len(device_ids)),
        # glibc gives large buffers back to the kernel at each free and faults them in again at each step; keeping them
        # takes a quarter off a step (docs/performance.md).
        "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    }

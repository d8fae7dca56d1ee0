"""Environment variables of podrun's workers that do not depend on the job. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from podrun.runtime.contract import ENV_ADDRESS

from ..agent.base.protocol import MULTISLICE
from ..pod.pod import Host, Pod

MEGASCALE_PORT = "8081"
RUNTIME = ("-m", "podrun.runtime")
"""Arguments of the interpreter that start a worker."""


def base_env(pod: Pod, device_ids: Sequence[int]) -> dict[str, str]:
    """Return the variables of a worker that uses these devices of its host.

    The pod's and the job's variables override them.
    """
    address = {ENV_ADDRESS: "127.0.0.1"} if pod.traits.is_simulated else {}
    return {**_platform_env(pod.platform, device_ids), **address, "PYTHONUNBUFFERED": "1"}


def names_of(pod: Pod, host: Host) -> list[str]:
    """Return the names under which workers reach a simulated host, its own name first; empty for a real machine."""
    if not pod.traits.is_simulated:
        return []
    return [host.name, *(other.name for other in pod.all_hosts if other.name != host.name)]


def multislice_env(pod: Pod, number: int) -> dict[str, str]:
    """Return libtpu's variables for a worker of one of several slices, without the address of the coordinator.

    `number` is the index of the worker's host. An `env` of pod or job may set the port.
    Sources: libtpu as used by JAX's cloud_tpu_cluster.py, levanter and Ray.
    """
    slice = pod.slice
    if pod.platform != "tpu" or slice.slices == 1:
        return {}
    slice_id = number // slice.hosts_per_slice
    return dict(zip(MULTISLICE[1:], (str(slice.slices), str(slice_id), MEGASCALE_PORT), strict=True))


def multislice_coordinator(pod: Pod, address: str) -> dict[str, str]:
    """Return the variable with the address at which the slices meet, on the host of process 0.

    Args:
        pod: the pod.
        address: `host:port` of JAX's coordinator.
    """
    if pod.platform != "tpu" or pod.slice.slices == 1:
        return {}
    return {MULTISLICE[0]: address.rpartition(":")[0].strip("[]")}


def _platform_env(platform: str, device_ids: Sequence[int]) -> dict[str, str]:
    """Return variables that make JAX use the slice's devices, and fail if they are missing."""
    if platform == "cuda":
        # otherwise jax.distributed.initialize takes the device ids from SLURM_LOCALID
        return {"JAX_PLATFORMS": "cuda,cpu", "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, device_ids))}
    if platform != "cpu":
        return {"JAX_PLATFORMS": f"{platform},cpu"}
    return {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(len(device_ids)),
        # By default glibc returns large buffers to the kernel at each free, and faults them in again at each step;
        # keeping them makes a step a quarter faster (docs/performance.md).
        "MALLOC_MMAP_THRESHOLD_": str(1 << 32),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    }

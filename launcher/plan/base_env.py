"""What every worker of podrun's own finds in its environment, whatever the job is. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from podrun.runtime.contract import ENV_ADDRESS

from ..agent.base.protocol import MULTISLICE
from ..pod.pod import Host, Pod

MEGASCALE_PORT = "8081"
RUNTIME = ("-m", "podrun.runtime")
"""Arguments of the interpreter that make it a worker."""


def base_env(pod: Pod, device_ids: Sequence[int]) -> dict[str, str]:
    """Return the variables of a worker with these devices of its host, which the pod's and the job's own override."""
    address = {ENV_ADDRESS: "127.0.0.1"} if pod.traits.is_one_machine else {}
    return {**_platform_env(pod.platform, device_ids), **address, "PYTHONUNBUFFERED": "1"}


def names_of(pod: Pod, host: Host) -> list[str]:
    """Return the names that a host of a simulated pod has for its workers, its own first; none for a real machine."""
    if not pod.traits.is_one_machine:
        return []
    return [host.name, *(other.name for other in pod.all_hosts if other.name != host.name)]


def multislice_env(pod: Pod, number: int) -> dict[str, str]:
    """Return what libtpu reads of a slice among several: `number` is that of the host. Its coordinator is known later.

    Sources: libtpu by way of JAX's cloud_tpu_cluster.py, levanter and Ray, whose port this is; a port of `env` goes first.
    """
    slice = pod.slice
    if pod.platform != "tpu" or slice.slices == 1:
        return {}
    slice_id = number // slice.hosts_per_slice
    return dict(zip(MULTISLICE[1:], (str(slice.slices), str(slice_id), MEGASCALE_PORT), strict=True))


def multislice_coordinator(pod: Pod, address: str) -> dict[str, str]:
    """Return where the slices meet: on the host of process 0, whose `address` is `host:port` of JAX's coordinator."""
    if pod.platform != "tpu" or pod.slice.slices == 1:
        return {}
    return {MULTISLICE[0]: address.rpartition(":")[0].strip("[]")}


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

"""The machines of GKE's TPU node pools. PURE.

Source: https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus (machine types and topologies).
"""

from __future__ import annotations

import re

from podrun.runtime.contract import UserError

from ...pod.slices import TWO_HOSTS, Slice, on_hosts

ACCELERATORS = {
    "v4": "tpu-v4-podslice",
    "v5litepod": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "tpu7x": "tpu7x",
}
"""Maps TPU generations to GKE's node label `cloud.google.com/gke-tpu-accelerator`."""


def generation(slice: Slice) -> str:
    """Return the generation in the slice's name, such as `v5litepod`."""
    return _single(slice).rpartition("-")[0]


def with_chips_per_host(slice: Slice, chips: int) -> Slice:
    """Return the slice on machines with this number of chips. Raises UserError if GKE does not offer it so.

    Only the number of hosts changes: its name, its topology and its devices stay.
    """
    if slice.kind != "tpu":
        raise UserError(f"--chips-per-host is for TPUs; the devices of each host are in the name {slice.name}")
    if chips == (now := slice.chips // slice.hosts):
        return slice
    if _single(slice) not in TWO_HOSTS or chips != 4:
        allowed = "4 or 8" if _single(slice) in TWO_HOSTS else str(now)
        raise UserError(
            f"--chips-per-host {chips}: GKE's machines for {slice.name} have {allowed} chips; "
            + (f"give {allowed}" if "or" in allowed else "leave the option out")
        )
    return on_hosts(slice, slice.chips // chips)


def _single(slice: Slice) -> str:
    """Return the name of one of the slices: `v5litepod-8` of `2xv5litepod-8`."""
    return re.sub(r"^\d+x(?=[a-z])", "", slice.name)

"""List the hosts of the TPU slice that this Google Kubernetes Engine container belongs to: `--hosts-from gke`.

GKE sets TPU_WORKER_HOSTNAMES in each container that asks for `google.com/tpu`, and its device plug-in sets
TPU_ACCELERATOR_TYPE and TPU_TOPOLOGY: https://cloud.google.com/kubernetes-engine/docs/how-to/tpus.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from podrun.runtime.contract import UserError
from podrun.runtime.wording import counted

from ...inventory.base import Listing
from ...inventory.tpu_slice import slice_of_topology, slice_of_type, unknown_type
from ...inventory.worker import check_slices, check_worker
from ...pod.pod import Host
from ...pod.ranges import LIMIT, is_host
from ...pod.slices import Slice
from ...yamlfile.short import short

_TYPED = "--hosts-from gke"
_HOSTS = "TPU_WORKER_HOSTNAMES"
_TYPE = "TPU_ACCELERATOR_TYPE"


def list_hosts() -> Listing:
    """Return the hosts that this container's environment names, in the order of their workers. Raises UserError."""
    return read_environment(os.environ)


def read_environment(env: Mapping[str, str]) -> Listing:
    """Parse and check the variables, which are untrusted input. Raises UserError."""
    text = env.get(_HOSTS, "")
    if not text.strip():
        raise UserError(
            f"{_TYPED}: {_HOSTS} is not set: this is no container of a TPU slice of GKE, or its job has no headless "
            "service (`subdomain`); call podrun in a container that asks for google.com/tpu, or name the hosts with --hosts"
        )
    names = [name.strip() for name in text.split(",", LIMIT)]
    wrong = [name for name in names if not is_host(name)]
    if wrong:
        raise UserError(
            f"{_TYPED}: {_HOSTS} has {short(wrong[0])}, which is not the name or address of a host; "
            "it is like worker-0.my-service,worker-1.my-service"
        )
    check_worker(_TYPED, "TPU_WORKER_ID", env.get("TPU_WORKER_ID"), len(names))
    check_slices(_TYPED, env.get("MEGASCALE_NUM_SLICES"))
    slice = _slice(env)
    if slice and len(names) != slice.hosts:
        raise UserError(
            f"{_TYPED}: {_HOSTS} names {len(names)}, but a {slice.name} has "
            f"{counted(slice.hosts, 'host')}; let the job have a pod for each host of "
            "the slice, and give each all the chips of its node"
        )
    return Listing(tuple(Host(name, name, name) for name in names), slice=slice)


def _slice(env: Mapping[str, str]) -> Slice | None:
    """Return the slice; None if GKE does not name it. Raises UserError if podrun does not know its type."""
    kind, topology = env.get(_TYPE, ""), env.get("TPU_TOPOLOGY", "")
    if not kind:
        return None
    slice = slice_of_topology(kind.rpartition("-")[0], topology) or slice_of_type(kind)
    if slice is None:
        raise unknown_type(f"{_TYPED}: {_TYPE} is", kind)
    return slice

"""List the hosts of the TPU slice that this Google Kubernetes Engine container belongs to: `--hosts-from gke`.

GKE sets TPU_WORKER_HOSTNAMES in each container that asks for `google.com/tpu`, and its device plug-in sets
TPU_ACCELERATOR_TYPE and TPU_TOPOLOGY: https://cloud.google.com/kubernetes-engine/docs/how-to/tpus. Where a machine has
several containers (TPU7x), TPU_PROCESS_ADDRESSES has an `address:port` for each, and JAX reads it first
(jax/_src/clusters/cloud_tpu_cluster.py).
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
from ...pod.slices import Slice, on_hosts
from ...yamlfile.short import short

_TYPED = "--hosts-from gke"
_PROCESSES = "TPU_PROCESS_ADDRESSES"
_HOSTS = "TPU_WORKER_HOSTNAMES"
_TYPE = "TPU_ACCELERATOR_TYPE"


def list_hosts() -> Listing:
    """Return the hosts that this container's environment names, in the order of their workers. Raises UserError."""
    return read_environment(os.environ)


def read_environment(env: Mapping[str, str]) -> Listing:
    """Parse and check the variables, which are untrusted input. Raises UserError."""
    source = _PROCESSES if env.get(_PROCESSES, "").strip() else _HOSTS
    text = env.get(source, "")
    if not text.strip():
        raise UserError(
            f"{_TYPED}: {_HOSTS} is not set: this is no container of a TPU slice of GKE, or its job has no headless "
            "service (`subdomain`); call podrun in a container that asks for google.com/tpu, or name the hosts with --hosts"
        )
    names = [name.strip() for name in text.split(",", LIMIT)]
    if source == _PROCESSES:
        names = [_without_port(name) for name in names]
    wrong = [name for name in names if not is_host(name)]
    if wrong:
        raise UserError(
            f"{_TYPED}: {source} has {short(wrong[0])}, which is not the name or address of a host; "
            "it is like worker-0.my-service,worker-1.my-service"
        )
    twice = next((name for name in names if names.count(name) > 1), None) if source == _PROCESSES else None
    if twice:
        raise UserError(
            f"{_TYPED}: {_PROCESSES} has {short(twice)} more than once: this machine's chips are divided among several "
            "containers, but podrun starts one process for each machine, with all of its chips; let the pod have one "
            "container that asks for all of them (google.com/tpu: 4)"
        )
    check_worker(_TYPED, "TPU_WORKER_ID", env.get("TPU_WORKER_ID"), len(names))
    check_slices(_TYPED, env.get("MEGASCALE_NUM_SLICES"))
    slice = _slice(env, len(names))
    if slice and len(names) != slice.hosts:
        raise UserError(
            f"{_TYPED}: {source} names {len(names)}, but a {slice.name} has "
            f"{counted(slice.hosts, 'host')}; let the job have a pod for each host of "
            "the slice, and give each all the chips of its node"
        )
    return Listing(tuple(Host(name, name, name) for name in names), slice=slice)


def _without_port(text: str) -> str:
    """Return the address of `10.0.0.1:8476`; an address of IPv6 has brackets if it has a port."""
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0] if text.count(":") == 1 else text


def _slice(env: Mapping[str, str], hosts: int) -> Slice | None:
    """Return the slice; None if GKE does not name it. Raises UserError if podrun does not know its type.

    `hosts`: number of its machines, of which GKE makes some slices in two ways.
    """
    kind, topology = env.get(_TYPE, ""), env.get("TPU_TOPOLOGY", "")
    if not kind:
        return None
    slice = slice_of_topology(kind.rpartition("-")[0], topology) or slice_of_type(kind)
    if slice is None:
        raise unknown_type(f"{_TYPED}: {_TYPE} is", kind)
    return on_hosts(slice, hosts)

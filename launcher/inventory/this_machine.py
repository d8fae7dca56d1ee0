"""This machine itself, reached without SSH: `--local`, `--hosts local`, and `hosts: [local]` in a pod file."""

from __future__ import annotations

import os
import sys
from typing import cast

from podrun.runtime.contract import UserError

from ..agent.host.devices import device_nodes
from ..agent.host.google import metadata_server
from ..agent.host.gpus import read_gpus
from ..pod.lazy import load
from ..pod.pod import Host
from ..pod.slices import Slice, parse_slice
from ..yamlfile.short import short
from .base import LOCAL, Listing

_NO_GPU = ("", "-1", "none", "NoDevFiles")
"""Values of CUDA_VISIBLE_DEVICES that hide all GPUs."""
_METADATA = "engines.tpu.metadata:list_hosts"


def from_option(_: bool = True) -> Listing:
    """Return this machine as the only host. Its devices are counted only if the user names no slice."""
    host = Host(LOCAL, "127.0.0.1", internal="127.0.0.1")
    return Listing((host,), transport="this_machine", python=sys.executable, ask_slice=find_slice)


def find_slice() -> Slice:
    """Return the slice of this machine's GPUs, else of its TPU chips, else `cpu-1x1`.

    Raises:
        UserError: the GPUs cannot be counted, the type of the TPU is unknown, or this is one host of several.
        UnavailableError: the metadata server, which knows the type of the TPU, does not answer.
    """
    nodes = device_nodes()
    if gpus := _count_gpus(len(nodes["nvidia"])):
        return parse_slice(f"gpu-1x{gpus}")
    server = metadata_server()
    if nodes["accel"] or (nodes["vfio"] and server):  # elsewhere, vfio devices are those of virtual machines
        return _tpu_slice(len(nodes["accel"] or nodes["vfio"]), server)
    return parse_slice("cpu-1x1")


def _count_gpus(files: int) -> int:
    """Return the number of GPUs that CUDA programs see on this machine. `files`: number of device files of GPUs."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in _NO_GPU:
        return 0
    gpus = read_gpus(os.environ)
    if gpus is None:
        return files
    if not gpus["rows"]:
        raise UserError(
            f"the GPUs of this machine cannot be counted: nvidia-smi: {short(str(gpus['why']))}; run `nvidia-smi`, and "
            "`sudo dmesg | grep -i xid`; or say what to use: --slice gpu-1x2, or --slice cpu-1x1 for the CPU"
        )
    return len(gpus["rows"])


def _tpu_slice(chips: int, server: str | None) -> Slice:
    remedy = "say it, as in --slice v5e-4"
    if server is None:
        raise UserError(f"this machine has {chips} TPU chips, and nothing here knows their type; {remedy}")
    try:
        slice = cast(Listing, load(_METADATA)()).slice
    except UserError as error:
        raise UserError(f"this machine has {chips} TPU chips of unknown type; {remedy}\n{error}") from None
    if slice is None:
        raise UserError(f"this machine has {chips} TPU chips, and the metadata server names no type; {remedy}")
    if slice.hosts > 1:
        raise UserError(
            f"this machine is one of the {slice.hosts} hosts of a {slice.name}, which compute only together: "
            "--hosts-from metadata trains on all of them"
        )
    return slice

"""A pod whose hosts are processes on this machine and whose devices are virtual CPU devices."""

from __future__ import annotations

from ..pod.pod import Host, Pod
from ..pod.slices import Slice


def simulated_pod(slice: Slice) -> Pod:
    hosts = tuple(Host(f"host-{i}", "127.0.0.1", internal="127.0.0.1") for i in range(slice.hosts))
    return Pod(slice, hosts, transport="local", platform="cpu")

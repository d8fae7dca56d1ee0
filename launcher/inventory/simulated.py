"""Simulate a pod: its hosts are processes on this machine, its devices virtual CPU devices."""

from __future__ import annotations

import sys

from ..pod.home import podrun_home
from ..pod.pod import Host, Pod
from ..pod.slices import Slice


def simulated_pod(slice: Slice) -> Pod:
    """Return the simulated pod of a slice. Raises UserError if this user has no home directory."""
    hosts = tuple(Host(f"host-{i}", "127.0.0.1", internal="127.0.0.1") for i in range(slice.hosts))
    return Pod(slice, hosts, "local", "cpu", home=str(podrun_home()), python=sys.executable)


from_slice = simulated_pod

"""The agent of a host that is this machine."""

from __future__ import annotations

import sys
from pathlib import Path

from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.remote.open_agent import open_agent
from podrun.launcher.transport.local import LocalTransport

HOST = Host("h", "127.0.0.1")


def pod_of(home: Path, python: str = sys.executable) -> Pod:
    return Pod(parse_slice("cpu-1x1"), (HOST,), "local", "cpu", home=str(home), python=python)


def say(transport: LocalTransport, pod: Pod) -> bytes:
    """Return what an agent says behind its mark; `attach` to a folder without an agent says nothing."""
    channel = open_agent(transport, pod, HOST, "attach", pod.home)
    said = b""
    while data := channel.receive():
        said += data
    channel.close()
    return said + channel.stderr_tail().encode()

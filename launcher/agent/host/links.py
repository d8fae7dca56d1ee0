"""Inspect the links between GPUs: network interfaces, InfiniBand ports and NVLink."""

from __future__ import annotations

import fcntl
import os
import re
import socket
import struct
import subprocess
from typing import TYPE_CHECKING, List, Mapping, Optional

from ..base.disk import names_in
from ..base.protocol import IFNAME
from .usage import nvidia_smi

if TYPE_CHECKING:
    from ..base.from_agent import Infiniband, Links, Nvlink

_LIMIT = 10.0  # seconds for nvidia-smi
_MOST = 256  # most interfaces, and ports, that are reported
_ADDRESS_OF = 0x8915  # SIOCGIFADDR of linux/sockios.h
_GPU = re.compile(r"GPU (\d{1,4}): ")
_LINK = re.compile(r"\s+Link \d{1,4}: (<inactive>|[\d.]+ GB/s)")


def read_links(address: Optional[str], env: Mapping[str, str], folder: str = "/sys/class") -> Links:
    """Return the links of this host: network `interfaces`, `infiniband` ports and `nvlink` links.

    `used` is the interface with `address`, this host's address for the others, and `chosen` the one that NCCL is told to use.
    Speeds are in Mb/s; None: unknown. Sources: sysfs-class-net and sysfs-class-infiniband of the kernel's documentation,
    `nvidia-smi nvlink --help`.
    """
    names = sorted(names_in(os.path.join(folder, "net")))[:_MOST]
    return {
        "interfaces": [{"name": name, "speed": _speed(os.path.join(folder, "net", name))} for name in names],
        "used": next((name for name in names if address and address in _addresses(name)), None),
        "chosen": env.get(IFNAME) or None,
        "infiniband": _ports(os.path.join(folder, "infiniband")),
        "nvlink": _nvlink(),
    }


def parse_nvlink(answer: str) -> List[Nvlink]:
    """Return the number of links, and of active ones, of each GPU that has links."""
    rows: List[Nvlink] = []
    for line in answer.splitlines():
        gpu, link = _GPU.match(line), _LINK.match(line)
        if gpu:
            rows.append({"gpu": int(gpu.group(1)), "links": 0, "active": 0})
        elif link and rows:
            rows[-1]["links"] += 1
            rows[-1]["active"] += link.group(1) != "<inactive>"
    return [row for row in rows if row["links"]]


def _nvlink() -> List[Nvlink]:
    program = nvidia_smi()
    if program is None:
        return []
    null = subprocess.DEVNULL
    try:
        process = subprocess.Popen([program, "nvlink", "--status"], stdin=null, stdout=subprocess.PIPE, stderr=null)
        output, _ = process.communicate(timeout=_LIMIT)
    except OSError:
        return []
    except subprocess.TimeoutExpired:  # it hangs in the driver, which `read_gpus` reports
        process.kill()
        return []
    return parse_nvlink(output.decode("utf-8", "replace"))


def _ports(folder: str) -> List[Infiniband]:
    ports: List[Infiniband] = []
    for device in sorted(names_in(folder))[:_MOST]:
        below = os.path.join(folder, device, "ports")
        for number in sorted(names_in(below))[:_MOST]:
            place = os.path.join(below, number)
            state = (_read(os.path.join(place, "state")) or "").rpartition(": ")[2]
            if state:
                ports.append(
                    {"port": "%s/%s" % (device, number), "state": state, "rate": _read(os.path.join(place, "rate"))}
                )
    return ports


def _addresses(name: str) -> List[str]:
    """Return the addresses of a network interface."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock.fileno(), _ADDRESS_OF, struct.pack("256s", os.fsencode(name)[:15]))
            addresses.append(socket.inet_ntoa(answer[20:24]))
        except OSError:  # it has no IPv4 address
            pass
    for line in (_read("/proc/net/if_inet6") or "").splitlines():
        words = line.split()
        if words[-1] == name:
            addresses.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(words[0])))
    return addresses


def _speed(place: str) -> Optional[int]:
    text = _read(os.path.join(place, "speed")) or ""
    return int(text) if text.isdigit() and int(text) else None


def _read(path: str) -> Optional[str]:
    try:
        with open(path, errors="replace") as file:
            return file.read(1 << 16).strip()
    except OSError:  # such as the speed of an interface that is down
        return None

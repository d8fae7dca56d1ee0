"""Ask the kernel who owns a socket's address and which files are locked. Requires no privileges."""

from __future__ import annotations

import os
import socket
import struct
from typing import Optional, Tuple

_SOCK_DIAG = 4  # NETLINK_SOCK_DIAG
_BY_FAMILY, _DONE, _ERROR = 20, 3, 2
_REQUEST, _DUMP = 0x1, 0x300
_SHOW_NAME, _SHOW_UID = 0x1, 0x40
_NAME, _UID = 0, 7
_HEADER, _REQUESTED, _MESSAGE = struct.Struct("=IHHII"), struct.Struct("=BBHIIIII"), struct.Struct("=BBBBIII")


def owner_of(address: bytes) -> Tuple[bool, Optional[int]]:
    """Return whether a socket in this network namespace has the address, and its owner's uid (since Linux 5.3)."""
    with open("/proc/net/unix", "rb") as file:
        end = b" @" + address[1:]
        taken = any(line.rstrip(b"\n").endswith(end) for line in file)  # a name may contain newlines
    try:
        return taken, _uid_of(address) if taken else None
    except (OSError, struct.error):
        return taken, None


def is_locked(status: os.stat_result) -> bool:
    """Return whether any process holds a lock on the file: /proc/locks lists all users' locks by device and inode."""
    device = "%02x:%02x:%d" % (os.major(status.st_dev), os.minor(status.st_dev), status.st_ino)
    with open("/proc/locks") as locks:
        return any(device in line.split() for line in locks)


def _uid_of(address: bytes) -> Optional[int]:
    """Return the uid of the owner of the Unix socket with this address, from the kernel's list. Raises OSError."""
    body = _REQUESTED.pack(socket.AF_UNIX, 0, 0, 0xFFFFFFFF, 0, _SHOW_NAME | _SHOW_UID, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _SOCK_DIAG) as sock:
        sock.settimeout(2.0)
        sock.send(_HEADER.pack(_HEADER.size + len(body), _BY_FAMILY, _REQUEST | _DUMP, 1, 0) + body)
        while True:
            data = sock.recv(1 << 16)
            while data:
                size, kind = _HEADER.unpack_from(data)[:2]
                if kind in (_DONE, _ERROR) or size < _HEADER.size:
                    return None
                fields = dict(_attributes(data[_HEADER.size + _MESSAGE.size : size]))
                if fields.get(_NAME) == address and _UID in fields:
                    return int(struct.unpack("=I", fields[_UID])[0])
                data = data[_aligned(size) :]


def _attributes(data: bytes) -> "list[Tuple[int, bytes]]":
    attributes = []
    while len(data) >= 4:
        size, kind = struct.unpack_from("=HH", data)
        attributes.append((kind, data[4:size]))
        data = data[max(4, _aligned(size)) :]
    return attributes


def _aligned(size: int) -> int:
    return (size + 3) & ~3

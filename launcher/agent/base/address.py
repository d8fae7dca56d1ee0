"""The address at which the other hosts of a pod reach this one."""

from __future__ import annotations

import os
import re
import socket
from typing import Any, Dict, List, Optional

from .schema import Malformed, port, short, text

ENV = "PODRUN_ADDRESS"
_ZONE = re.compile(r"[A-Za-z0-9_.-]{1,15}")  # zone of an IPv6 address: an interface name or number


def only_address(internal: Optional[str]) -> str:
    """Return the loopback address of a simulated host, the only one at which it may be reached; empty for a real machine."""
    return internal if internal and is_loopback(internal) else ""


def address_env(internal: Optional[str]) -> Dict[str, str]:
    """Return the variable that tells workers this host's address; empty if the address is unknown."""
    address = only_address(internal) or peer_address(internal)
    return {} if address is None else {ENV: address}


def peer_address(internal: Optional[str]) -> Optional[str]:
    """Return this host's first non-loopback address: from `internal`, else from the SSH connection; None if unknown."""
    for name in (internal, own_address()):
        for address in resolve(name) if name else []:
            if is_own(address) and not is_loopback(address):
                return address
    return None


def own_address() -> Optional[str]:
    """Return the address by which the launcher reached this host over SSH, which other hosts know; None without SSH."""
    fields = os.environ.get("SSH_CONNECTION", "").split()
    try:
        ip(fields[2] if len(fields) == 4 else None)
    except Malformed:  # sshd sets UNKNOWN if its connection is not a socket
        return None
    return fields[2]


def resolve(name: str) -> List[str]:
    """Return the distinct addresses of a name; empty if it does not resolve."""
    try:
        return resolve_or_raise(name)
    except OSError:
        return []


def resolve_or_raise(name: str) -> List[str]:
    """Return the distinct addresses of a name. Raises OSError if it does not resolve."""
    entries = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def is_own(address: str) -> bool:
    """Return whether a process on this host could listen at the address."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM) as sock:
            sock.bind((address, 0))
    except OSError:
        return False
    return True


def is_loopback(address: str) -> bool:
    return address == "::1" or address.startswith("127.")


def ip(value: Any) -> None:
    """Accept an IP address; an IPv6 address may name its zone. Raises Malformed."""
    from ipaddress import ip_address

    text(value)
    address, percent, zone = value.partition("%")
    try:
        version = ip_address(address).version
        accepted = not percent or (version == 6 and _ZONE.fullmatch(zone) is not None)
    except ValueError:
        accepted = False
    if not accepted:
        raise Malformed("%s, expected an IP address" % short(value))


def peer(value: Any) -> None:
    """Accept an address with a port: 10.0.0.1:2000 or [fd00::1]:2000."""
    text(value)
    host, _, number = value.rpartition(":")
    if not re.fullmatch("[0-9]{1,5}", number, re.ASCII):
        raise Malformed("%s, expected an address and a port" % short(value))
    port(int(number))
    ip(host[1:-1] if host[:1] + host[-1:] == "[]" else host)

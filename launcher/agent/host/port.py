"""Reserve a free port for the coordinator, and test whether other hosts can connect to it."""

from __future__ import annotations

import random
import socket
from typing import List, Optional

PROBE_TIMEOUT = 5.0  # seconds; a firewall that drops packets does not answer


class RefusedError(Exception):
    """This host cannot take part in the run; the message says why."""


def reserve_port(allowed: Optional[List[int]], address: str = "") -> socket.socket:
    """Reserve a free TCP port. Only a server with SO_REUSEPORT, such as the coordinator's gRPC, can bind it then.

    Listens until `release`, so that the other hosts can test the port.

    Args:
        allowed: first and last port of the allowed range; None: any port.
        address: address to listen at; empty: all addresses of this host.

    Raises:
        RefusedError: no port is free.
    """
    ports = _unassigned() if allowed is None else range(allowed[0], allowed[1] + 1)
    for port in [*random.sample(ports, len(ports)), *([0] if allowed is None else [])]:
        sock = _bind(address, port, may_share=False)
        if sock is not None:
            sock.listen(64)
            return sock
    raise RefusedError("no port of %s is free for the coordinator; widen `ports` in the pod file" % allowed)


def _unassigned() -> range:
    """Return ports outside the host's ephemeral range, which no client takes between release and use."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            first = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        first = 0
    return range(20000, min(first, 32768)) if first > 21000 else range(0)


def release(listeners: List[socket.socket], hold_first: bool) -> List[socket.socket]:
    """Stop listening, so that connections reach the workers. Returns the sockets to keep open.

    `hold_first`: keep the first port reserved for a server with SO_REUSEPORT, such as JAX's coordinator. A user's
    program may start a server without SO_REUSEPORT, such as torch's, which needs a port that is not reserved.
    """
    held = [_stop_listening(listeners[0])] if hold_first else []
    for listener in listeners[1 if hold_first else 0 :]:
        listener.close()
    return held


def _stop_listening(listener: socket.socket) -> socket.socket:
    address, port = listener.getsockname()[:2]
    held = _bind(address, port, may_share=True)
    listener.close()
    assert held is not None
    return held


def probe(address: str) -> Optional[str]:
    """Return why this host cannot connect to `host:port`; None if it can."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_TIMEOUT).close()
    except socket.timeout:
        return "no answer within %g s" % PROBE_TIMEOUT
    except OSError as error:
        return error.strerror or str(error)
    return None


def _bind(address: str, port: int, may_share: bool) -> Optional[socket.socket]:
    if port and not may_share and not _is_free(port):
        return None
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        sock.bind((address, port))
    except OSError:
        sock.close()
        return None
    return sock


def _is_free(port: int) -> bool:
    """Return whether no socket is bound to the port, not even a shareable one."""
    with socket.socket(socket.AF_INET) as sock:
        try:
            sock.bind(("", port))
        except OSError:
            return False
    return True

"""Commands that answer the launcher with one JSON line. `listen` and `share` then run until their connection ends."""

from __future__ import annotations

import json
import os
import select
import sys
from typing import Any, Callable, Dict, List

from .base.address import own_address
from .base.stdin import read_request
from .host.port import RefusedError, probe, reserve_port
from .host.shared import look, offer, withdraw
from .prepare.facts import gather


def facts() -> None:
    """Report the facts of this host that the request, a line on stdin, asks for."""
    answer(gather(read_request("facts")))


def listen(first: str, last: str) -> None:
    """Listen on a port as the coordinator would, and report port and address. `first` and `last` limit the port; 0 0: any."""
    ports = [int(first), int(last)]
    try:
        listener = reserve_port(ports if ports[1] else None)
    except RefusedError as error:
        answer({"error": str(error)})
        return
    answer({"error": None, "port": listener.getsockname()[1], "address": own_address()})
    sources: List[Any] = [0, listener]
    while True:
        for source in select.select(sources, [], [])[0]:
            if source is listener:
                sources.append(listener.accept()[0])
            elif source == 0:
                if not os.read(0, 4096):
                    return
            else:
                # The caller closes first: TIME_WAIT at this end would block the port for the next run's coordinator.
                sources.remove(source)
                source.close()


def reach(address: str) -> None:
    """Report whether this host can connect to `host:port`."""
    answer({"error": probe(address)})


def share(folder: str) -> None:
    """Put a file into the folder until the connection ends, so that other hosts can look for it."""
    try:
        path = offer(folder)
    except OSError as error:
        answer({"error": "%s: %s" % (error.filename, error.strerror)})
        return
    try:
        answer({"error": None, "path": path})
        while os.read(0, 4096):
            pass
    finally:
        withdraw(path)


def see(path: str) -> None:
    """Report whether this host can read a file that another host has put into a shared folder."""
    answer({"error": look(path)})


def answer(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


COMMANDS: Dict[str, Callable[..., None]] = {
    "facts": facts,
    "listen": listen,
    "reach": reach,
    "share": share,
    "see": see,
}

"""Runs whose launcher was killed: whether their processes live on, and the record of their end."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from podrun.runtime.contract import ExitCode, UserError, events_stream

from ..agent.base.places import SOCKET, agent_folder
from ..agent.base.schema import Malformed
from ..plan.plan import DETACHED_LEASE, attached_lease
from .backwards import lines_backwards
from .events import EndEvent, parse_worker_event, saved_step
from .runs import RunDirectory


def end_of_lost(directory: RunDirectory) -> EndEvent | None:
    """Record and return the end of a run without a launcher, of whose agents on this machine none lives any more.

    Returns None if it may go on: an agent lives, its hosts are other machines, or this is not the launcher's machine.
    Processes never outlive their agent, so a run without agents has ended.
    """
    start = directory.start()
    if start is None or directory.last_machine() != socket.gethostname():
        return None
    try:
        spec = directory.spec()
        attempt = directory.attempt()
        if not spec.pod.traits.files_are_here or attempt is None:
            return None
        hosts = directory.hosts(spec.pod)
        folders = [Path(agent_folder(spec.pod.home, directory.run_id, host.name, attempt)) for host in hosts]
        with directory.supervise():  # nobody takes the run over meanwhile
            if directory.end() is None and not any(map(_is_served, folders)):
                last = next(directory.newest_events(), start)
                directory.record_end(_message(directory, folders), ExitCode.UNAVAILABLE, stopped=True, at=last["time"])
    except (UserError, OSError):  # another version wrote it, another podrun supervises it, or the disk is full
        return None
    return directory.end()


def lease_of(directory: RunDirectory) -> float | None:
    """Return the seconds after which the run's processes end by themselves without a launcher; None if unknown."""
    try:
        spec = directory.spec()
    except UserError:
        return None
    return DETACHED_LEASE if spec.detached else attached_lease(spec.pod)


def _message(directory: RunDirectory, folders: list[Path]) -> str:
    saved = _saved_step(folders)
    if saved is None:  # all that process 0 reported had reached the launcher
        saved = next(filter(None, map(saved_step, directory.newest_events())), None)
    return f"its launcher is gone; its processes have ended{'' if saved is None else f' and saved step {saved}'}"


def _saved_step(folders: list[Path]) -> int | None:
    """Return the step of the newest checkpoint in what process 0 has reported, also after the launcher was gone."""
    for folder in folders:
        for line in lines_backwards(folder / events_stream(0)):
            try:
                event = parse_worker_event(line)
            except Malformed:
                continue
            if (step := saved_step(event)) is not None:
                return step
    return None


def _is_served(folder: Path) -> bool:
    """Return whether an agent listens in its folder. An agent without a launcher does not mind the connection."""
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return False
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(1.0)
            sock.connect(f"/proc/self/fd/{at}/{SOCKET}")  # the kernel allows only 107 bytes for a socket's path
        return True
    except (FileNotFoundError, ConnectionRefusedError):
        return False
    except OSError:  # it is busy
        return True
    finally:
        os.close(at)

"""The agent's folder of one attempt, with its socket and its log."""

from __future__ import annotations

import os
import shutil
import socket
from typing import TYPE_CHECKING, List, Tuple

from .places import SOCKET
from .private import private_path
from .protocol import INSTRUMENT

if TYPE_CHECKING:
    from .to_agent import Spec

LOG = "agent.log"


def open_folder(spec: Spec) -> Tuple[socket.socket, int]:
    """Make the folder and enter it. Returns its listening socket and the descriptor of its log.

    Raises OSError, UnsafeError.
    """
    private_path(spec["home"], *os.path.relpath(spec["dir"], spec["home"]).split("/"))
    os.chdir(spec["dir"])  # the kernel allows 107 bytes for a socket's path, so it is a relative one
    listener = socket.socket(socket.AF_UNIX)
    if os.path.exists(SOCKET):
        os.unlink(SOCKET)
    listener.bind(SOCKET)
    listener.listen(4)
    return listener, os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def use_log(log: int) -> None:
    """Redirect stdout and stderr to `log`, a descriptor, and close it."""
    for target in (1, 2):
        os.dup2(log, target)
    os.close(log)


def remove_folder(folder: str, files: List[str]) -> None:
    """Remove `files` from the current folder, then `folder`, its parent and its grandparent if they are empty.

    The working directory is `/` afterwards.
    """
    for name in [SOCKET, LOG, *files]:
        try:
            os.unlink(name)
        except OSError:
            pass
    if INSTRUMENT in {os.path.dirname(name) for name in files}:
        shutil.rmtree(INSTRUMENT, ignore_errors=True)  # Python's cache of compiled code is in there
    os.chdir("/")
    for _ in range(3):  # the agent's folder, the run's hosts folder, the run's folder
        try:
            os.rmdir(folder)
        except OSError:
            return  # not empty: other hosts' folders, or files of the user's program
        folder = os.path.dirname(folder)

"""An agent's run folder: the socket at which it listens, and its log, which show that an agent has run there."""

from __future__ import annotations

import os
import shutil
import socket
from typing import TYPE_CHECKING, List, Tuple

from .private import private_path
from .protocol import INSTRUMENT

if TYPE_CHECKING:
    from .to_agent import Spec

SOCKET = "agent.sock"
LOG = "agent.log"


def open_folder(spec: Spec) -> Tuple[socket.socket, int]:
    """Make and enter the folder. Returns the socket that listens there, and the open log. Raises OSError, UnsafeError."""
    private_path(spec["home"], *os.path.relpath(spec["dir"], spec["home"]).split("/"))
    os.chdir(spec["dir"])  # a relative name keeps the socket's path below the 107 bytes the kernel allows
    listener = socket.socket(socket.AF_UNIX)
    if os.path.exists(SOCKET):
        os.unlink(SOCKET)
    listener.bind(SOCKET)
    listener.listen(4)
    return listener, os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def use_log(log: int) -> None:
    """Write what this process prints to the log, which is closed here."""
    for target in (1, 2):
        os.dup2(log, target)
    os.close(log)


def remove_folder(folder: str, files: List[str]) -> None:
    """Remove the files from the folder, which is left for that, and the folder itself if it is empty then."""
    for name in [SOCKET, LOG, *files]:
        try:
            os.unlink(name)
        except OSError:
            pass
    if INSTRUMENT in {os.path.dirname(name) for name in files}:
        shutil.rmtree(INSTRUMENT, ignore_errors=True)  # Python has kept compiled code there
    os.chdir("/")
    for _ in range(3):  # this folder, the run's hosts folder, and the run's folder
        try:
            os.rmdir(folder)
        except OSError:
            return  # it holds other hosts' folders, or files of the user program
        folder = os.path.dirname(folder)

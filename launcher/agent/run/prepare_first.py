"""Prepare this host in a child process, before the agent gets its spec over the same connection.

A host then needs one connection for both, such as one step of a SLURM job.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

from ..base.processes import ENDING
from ..base.watchdog import end_with_connection

if TYPE_CHECKING:
    from ..base.to_agent import PrepareFrame


def prepare_first(frame: PrepareFrame, unread: bytes) -> None:
    """Answer one request of `prepare` on stdin, as that command does. Exits with 1 if the host is not prepared.

    The child alone has the preparation's threads, signal handlers and processes.

    Args:
        frame: the launcher's first frame.
        unread: what has been read of stdin after the frame.
    """
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            from ..prepare.prepare import prepare

            end_with_connection()
            prepare(frame["python"], unread)
            code = 0
        except SystemExit as ending:  # its message is printed by the exit that does not happen here
            if isinstance(ending.code, str):
                print(ending.code, file=sys.stderr)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    for number in ENDING:  # SLURM may send it only to this process
        signal.signal(number, lambda number, _: os.kill(pid, number))
    status = os.waitpid(pid, 0)[1]
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    if status:
        sys.exit(1)

"""`agent execute`: run one command of the user, relay its output as it comes, and exit with its code.

If stdin ends before the command, the command and all its descendants are killed. If the command ends by itself, its
background processes keep running.
"""

from __future__ import annotations

import errno
import os
import select
from typing import TYPE_CHECKING, List, Optional

from ..base.processes import adopt_orphans, end_all, ended_children, wake_on_signals
from ..base.stdin import GoneError, end_with_signals, read_request
from .worker import become_worker

if TYPE_CHECKING:
    from ..base.to_agent import ExecuteRequest

CHUNK = 1 << 16
NOT_FOUND, NOT_PERMITTED = 127, 126  # as in shells
_AFTER = 32  # reads of output after the command has ended; background processes may write to the pipe forever


def execute() -> int:
    """Run the command of the request and return its exit code, or 128 + N for signal N."""
    request: ExecuteRequest = read_request("execute")
    adopt_orphans()
    wake, _ = wake_on_signals()
    end_with_signals()
    try:
        return _Command(request).follow(wake)
    except GoneError:
        end_all()
        return 1


class _Command:
    def __init__(self, request: ExecuteRequest) -> None:
        request["argv"][0] = os.path.expanduser(request["argv"][0])
        request["cwd"] = os.path.expanduser(request["cwd"])
        self._code: Optional[int] = None
        self._output, output_in = os.pipe()
        os.set_blocking(self._output, False)
        failure, failure_in = os.pipe()  # closed by a successful exec
        agent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                become_worker(agent, request, dict(os.environ, **request["env"]), output_in)
            except OSError as error:
                os.write(failure_in, b"%d" % (error.errno or errno.EIO))
            finally:
                os._exit(NOT_FOUND)
        os.close(output_in)
        os.close(failure_in)
        number = os.read(failure, 100)
        os.close(failure)
        if number:
            self._refuse(request["argv"], int(number))

    def _refuse(self, argv: List[str], number: int) -> None:
        os.waitpid(self._pid, 0)
        self._code = NOT_PERMITTED if number == errno.EACCES else NOT_FOUND
        _write(os.fsencode("podrun: cannot start %s: %s\n" % (argv[0], os.strerror(number))))

    def follow(self, wake: int) -> int:
        """Relay output until the command has ended; return its exit code. Raises GoneError."""
        sources = [0, wake, self._output]
        while self._code is None:
            ready = select.select(sources, [], [])[0]
            if 0 in ready and not os.read(0, CHUNK):
                raise GoneError()
            if self._output in ready and not self._relay():
                sources.remove(self._output)
            if wake in ready:
                os.read(wake, CHUNK)
                self._reap()
        for _ in range(_AFTER):
            if not self._relay():
                break
        return self._code

    def _reap(self) -> None:
        """Reap children that have ended: the command, and its orphaned descendants."""
        for pid, code in ended_children():
            if pid == self._pid:
                self._code = 128 - code if code < 0 else code

    def _relay(self) -> bool:
        """Relay the next part of the output. Returns False if there is none. Raises GoneError."""
        try:
            data = os.read(self._output, CHUNK)
        except BlockingIOError:
            return False
        _write(data)
        return bool(data)


def _write(data: bytes) -> None:
    """Write all data to stdout. Raises GoneError."""
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        raise GoneError()

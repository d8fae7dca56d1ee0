"""Start commands on the nodes of a SLURM job, each by an `srun` whose stdin and stdout are the channel.

Steps share all resources of the job on a node (`--overlap`, and no CPUs, memory or GPUs of their own), so that podrun's
commands never wait for each other, and workers see everything that SLURM has allocated.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import IO

from podrun.runtime.contract import UserError

from ...pod.errors import HostError
from ...pod.pod import Host, Pod
from ...transport.base import Channel, Transport
from ...transport.open_files import restore_limit
from ...transport.process_channel import ProcessChannel
from .job import is_job_id, time_left, why_over
from .srun import srun_command, start_srun, take_over
from .srun_errors import command_stderr, why_not_started


class SrunChannel(Channel):
    """The streams of one srun, and the meaning of its error messages and exit code."""

    def __init__(self, process: subprocess.Popen[bytes], stderr: IO[bytes], job: str) -> None:
        self._srun = process
        self._streams = ProcessChannel(process, stderr)
        self._job = job
        self._closed = False

    def send(self, data: bytes) -> None:
        self._streams.send(data)

    def finish(self) -> None:
        self._streams.finish()

    def receive(self) -> bytes:
        return self._streams.receive()

    def close(self) -> None:
        # After a while by SIGKILL, never by SIGTERM, at which srun would end the whole step, and with it an agent that may be
        # reached again.
        self._closed = True
        self._streams.close()

    def stderr_tail(self) -> str:
        stderr = self._streams.stderr_tail()
        return command_stderr(stderr) or stderr

    def why_not_started(self) -> str | None:
        return why_not_started(self._streams.stderr_tail(), self._job)

    def exit_code(self) -> int | None:
        code = self._streams.exit_code()
        # srun has no exit code of its own for a command that it could not start.
        lost = self._closed or (self._srun.returncode or 0) < 0 or (code and self.why_not_started())
        return None if lost else code


class SlurmTransport(Transport):
    """Opens channels by srun, inside the job whose nodes are the pod's hosts."""

    def __init__(self, pod: Pod) -> None:
        if pod.queue_job is None:
            raise UserError(
                "the SLURM job of the run has not started yet, so it has no nodes; `podrun ps` says why it waits"
            )
        assert is_job_id(pod.queue_job)
        self._job = pod.queue_job
        folders = [] if pod.home.startswith("~/") else [pod.home]  # the home directory exists
        self._container = pod.container.transport_options(folders) if pod.container else []

    def open(self, host: Host, argv: Sequence[str]) -> SrunChannel:
        command = srun_command(self._container, self._job, host.address, argv)
        try:
            srun = take_over(command) or start_srun(command)
        except FileNotFoundError:
            what = "there is no `srun` in the PATH of this machine; call podrun where SLURM is installed"
            raise HostError(host.name, what) from None
        except OSError as error:
            raise HostError(host.name, f"cannot start srun: {error.strerror}") from None
        restore_limit(srun.process.pid)
        return SrunChannel(srun.process, srun.stderr, self._job)

    def why_over(self, timeout: float = 0.0) -> str | None:
        return why_over(self._job, timeout)

    def remark(self) -> str | None:
        left = time_left(self._job)
        limit = "has no time limit" if left == "UNLIMITED" else f"has {left} left"
        return f"the SLURM job {self._job} {limit}" if left else None

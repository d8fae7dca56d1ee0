"""Read the files of a workdir: on this machine, or on the first host of a remote pod."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from podrun.runtime.contract import ExitCode, UserError

from ..pod.errors import HostError
from ..pod.pod import Pod
from ..remote.execution import KEPT, Execution
from ..transport.base import load_transport

_TIMEOUT = 60.0  # seconds for one command
_LIST = 'test ! -d "$1" || ls -A -- "$1"'
_READ = 'test ! -f "$1" || tail -c "+$2" -- "$1" | head -c "$3"'


class Files(Protocol):
    """Access to files. Both methods raise HostError if a host is unreachable."""

    def names(self, folder: Path) -> set[str]:
        """Return the names in a folder; empty if it does not exist. Raises UserError for a local folder."""

    def read(self, file: Path) -> bytes:
        """Return the content of a file; empty if it does not exist. Raises OSError for a local file."""


def files_of(pod: Pod) -> Files:
    return LocalFiles() if pod.traits.files_are_here else HostFiles(pod)


class LocalFiles:
    def names(self, folder: Path) -> set[str]:
        try:
            return set(os.listdir(folder)) if folder.is_dir() else set()
        except OSError as error:
            raise UserError(
                f"cannot read the folder {folder}: {error.strerror}; choose another with --workdir DIR"
            ) from None

    def read(self, file: Path) -> bytes:
        return file.read_bytes() if file.is_file() else b""


class SharedFiles(LocalFiles):
    """Files of hosts that share this machine's file system, such as nodes of a SLURM cluster."""

    def names(self, folder: Path) -> set[str]:
        return super().names(folder.expanduser())

    def read(self, file: Path) -> bytes:
        if not (path := file.expanduser()).is_file():
            raise FileNotFoundError(
                f"{path} is not here; give a folder that this machine sees as well with --workdir DIR"
            )
        return super().read(path)


class HostFiles:
    """Files in a folder that all hosts share, read from the first host."""

    def __init__(self, pod: Pod, part: int = KEPT) -> None:
        self._pod = replace(pod, hosts=pod.hosts[:1])
        self._part = part  # bytes per command; the middle of output beyond KEPT is dropped

    def names(self, folder: Path) -> set[str]:
        return set(self._ask(_LIST, folder).decode(errors="replace").splitlines())

    def read(self, file: Path) -> bytes:
        data = b""
        while len(part := self._ask(_READ, file, str(len(data) + 1), str(self._part))) == self._part:
            data += part
        return data + part

    def _ask(self, script: str, path: Path, *arguments: str) -> bytes:
        """Run a script on the host, and return its output. Raises HostError."""
        argument = os.fspath(path).removeprefix("~/")  # commands start in the login directory
        transport = load_transport(self._pod)
        try:
            argv = ["sh", "-c", script, "sh", argument, *arguments]
            (result,) = Execution(transport, self._pod, argv, _TIMEOUT).run()
        finally:
            transport.close()
        if result.error is not None or result.code != ExitCode.DONE:
            lines = result.output.decode(errors="replace").strip().splitlines()
            reason = result.error or (lines[-1] if lines else f"exit code {result.code}")
            raise HostError(result.host, f"cannot read {path}: {reason}")
        return result.output

"""Pull the results of a run: find a host that has them, and bring them into a folder here."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from podrun.runtime.config.bucket_url import url
from podrun.runtime.contract import UserError

from ..pod.errors import HostError
from ..pod.home import podrun_home
from ..pod.pod import Host
from ..pod.traits import location
from ..remote.download import FileFailedError, RemoteFolder
from ..rundir.runs import RunDirectory
from ..rundir.spec import RunSpec
from ..transport.base import Transport, load_transport
from ..view.times import size
from .bucket_folder import BucketFolder
from .folder import HomeFolder, digest_of
from .selection import Selection, checkpoint_path, find_steps
from .source import Source
from .transfer import Bringing, Brought, Progress, Say

PULLED = Path("pulled")
"""Folder for the folders that results are brought to, unless the user names one."""
_LOGS = "logs"
_CONNECTIONS = 10  # if each has brought something before it ended


@dataclass(frozen=True)
class Pulled:
    """Results that are here now."""

    folder: Path
    brought: Brought

    @property
    def problems(self) -> list[str]:
        """Results that could not be brought, each once, however many connections there were."""
        return list(dict.fromkeys(self.brought.problems))

    def describe(self) -> str:
        """Return `2 checkpoints and 3 files, 1.2 MB received; 4 unchanged: pulled/train`."""
        brought = {*self.brought.files, *map(checkpoint_path, self.brought.checkpoints)}
        unchanged = len(self.brought.unchanged - brought)
        numbers = {"checkpoint": len(self.brought.checkpoints), "file": len(self.brought.files)}
        counts = [f"{n} {name if n == 1 else name + 's'}" for name, n in numbers.items() if n]
        what = f"{' and '.join(counts)}, {size(self.brought.sent)} received" if counts else "nothing new"
        return f"{what}{f'; {unchanged} unchanged' if unchanged else ''}: {self.folder}"


def default_folder(spec: RunSpec) -> Path:
    """Return the folder that a run's results are brought to unless the user names another: it has the workdir's name."""
    return PULLED / (spec.workdir.name or spec.run_id)


def check_folder(spec: RunSpec, folder: Path) -> None:
    """Raise UserError if results of the run cannot be brought to the folder, which is made."""
    _check_not_workdir(spec, folder)
    with _home(folder, _source(spec)):
        pass


def _check_not_workdir(spec: RunSpec, folder: Path) -> None:
    if spec.pod.traits.files_are_here and not url(spec.workdir) and folder.resolve() == spec.workdir.resolve():
        raise UserError(f"{folder} is the workdir of the run: its results are there already; choose another folder")


def pull_run(
    transport: Transport, directory: RunDirectory, selection: Selection, folder: Path, say: Say, progress: Progress
) -> Pulled:
    """Bring what is selected of a run into the folder.

    Raises UserError, and HostError if no host that has the results could be asked, or it fails in the middle.
    """
    spec = directory.spec()
    _check_not_workdir(spec, folder)
    if bucket := url(spec.workdir):
        return pull_bucket(bucket, selection, folder, say, progress, directory)
    brought = Brought()
    if selection.kinds == {"logs"} and not selection.steps:
        with _home(folder, _source(spec)) as home, _explain_failures(folder, spec.pod.hosts[0].name):
            _copy_logs(directory, home, brought)
            return Pulled(folder, brought)
    for connections_left in reversed(range(_CONNECTIONS)):
        before = brought.sent
        host, remote = _open(transport, directory, spec, say)
        try:
            origin = _Origin(location(remote.path, spec.pod.transport, host.name), host.name, _source(spec), directory)
            _bring(remote, origin, selection, folder, brought, say, progress)
            break
        except HostError as error:
            if brought.sent == before or not connections_left:
                raise
            say(f"podrun: {error}; it goes on over a new connection")
        finally:
            remote.close()
    return Pulled(folder, brought)


def pull_bucket(
    url: str, selection: Selection, folder: Path, say: Say, progress: Progress, directory: RunDirectory | None = None
) -> Pulled:
    """Bring what is selected of a workdir in a bucket, and the logs of its run if that was started here.

    Raises UserError, and HostError if the bucket cannot be reached.
    """
    brought = Brought()
    if selection.kinds == {"logs"} and not selection.steps and directory is None:
        raise UserError(
            f"the logs of a run are not in {url}, but on the machine that has started it: podrun pull RUN logs"
        )
    _bring(BucketFolder(url, say), _Origin(url, url, url, directory), selection, folder, brought, say, progress)
    return Pulled(folder, brought)


@dataclass(frozen=True)
class _Origin:
    """Where results are from."""

    label: str
    """As the user is told it."""
    host: str
    """Name of the host, or URL."""
    source: str
    """As it is recorded in the folder here."""
    directory: RunDirectory | None
    """The run, with its logs."""


def _source(spec: RunSpec) -> str:
    return url(spec.workdir) or f"{spec.pod.hosts[0].address}:{spec.workdir}"


def _bring(
    remote: Source,
    origin: _Origin,
    selection: Selection,
    folder: Path,
    brought: Brought,
    say: Say,
    progress: Progress,
) -> None:
    """Bring what is selected over one connection. Raises UserError, HostError."""
    with _explain_failures(folder, origin.host):
        listing = remote.list_files()
    selection.checkpoints(find_steps(listing.sizes).complete)  # raises for a missing step before anything is made
    with _home(folder, origin.source) as home, _explain_failures(folder, origin.host):
        say(f"podrun: pulling {origin.label} to {folder}")
        Bringing(remote, origin.host, home, brought, say, progress).run(listing, selection)
        if selection.has_logs and origin.directory is not None:
            _copy_logs(origin.directory, home, brought)
        if selection.is_everything and not brought.problems:
            home.drop_parts()
        if listing.left_out and selection.is_everything:
            say(f"{listing.left_out} links, or unsafe names, in {remote.path} are left out")


def _open(transport: Transport, directory: RunDirectory, spec: RunSpec, say: Say) -> tuple[Host, RemoteFolder]:
    """Return the workdir on the host of process 0, or on another that sees the same. Raises HostError, UserError."""
    first, *others = directory.hosts(spec.pod)
    folder = os.fspath(spec.workdir)
    try:
        return first, RemoteFolder(transport, spec.pod, first, folder)
    except FileFailedError as error:
        raise UserError(
            f"run {directory.run_id} has no results on {first.name}: {error}; it has not begun to write any, or they were "
            "removed"
        ) from None
    except HostError as error:
        failed = error
    for host in others:
        try:
            remote = RemoteFolder(transport, spec.pod, host, folder)
        except (FileFailedError, HostError):
            continue
        if remote.last_run == directory.run_id:
            say(f"podrun: {failed}; {host.name} sees the same folder")
            return host, remote
        remote.close()
    return _open_here(directory, spec, folder, failed, say)


def _open_here(
    directory: RunDirectory, spec: RunSpec, folder: str, failed: HostError, say: Say
) -> tuple[Host, RemoteFolder]:
    """Return the workdir as this machine sees it, if it shares a file system with the hosts. Raises the HostError if not."""
    if not os.path.isdir(os.path.expanduser(folder)):
        raise failed
    here = replace(spec.pod, hosts=(Host("this machine", "127.0.0.1"),), transport="local", home=str(podrun_home()))
    try:
        remote = RemoteFolder(load_transport(here), here, here.hosts[0], folder)
    except (FileFailedError, HostError):
        raise failed from None
    if remote.last_run != directory.run_id:  # a folder of another run with the same path
        remote.close()
        raise failed
    say(f"podrun: {failed}; this machine sees the same folder")
    return here.hosts[0], remote


@contextmanager
def _home(folder: Path, source: str) -> Iterator[HomeFolder]:
    home = HomeFolder(folder, source)
    try:
        yield home
    finally:
        home.close()


@contextmanager
def _explain_failures(folder: Path, host: str) -> Iterator[None]:
    """Turn errors of this machine's disk, and of the workdir on the host, into sentences. Raises UserError, HostError."""
    try:
        yield
    except FileFailedError as error:
        raise HostError(host, str(error)) from None
    except OSError as error:
        place = error.filename or folder
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"no space left on the disk of {folder}; free some, and the same command goes on from what is here"
            ) from None
        raise UserError(f"cannot write {place}: {error.strerror}; choose another folder with --to DIR") from None


def _copy_logs(directory: RunDirectory, home: HomeFolder, brought: Brought) -> None:
    """Copy the logs, which are in the run directory on this machine."""
    for source in sorted(directory.logs.glob("*.log")):
        path = f"{_LOGS}/{source.name}"
        final = home.final(path)
        if final.is_file() and digest_of(final).digest() == digest_of(source).digest():
            brought.unchanged.add(path)
            continue
        part = home.part(path)
        part.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, part)
        home.place(path)
        brought.files.add(path)

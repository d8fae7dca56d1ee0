"""Download the results of a run: find a host that has them, and transfer them into a local folder."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from podrun.runtime.config.bucket_url import url
from podrun.runtime.contract import UserError
from podrun.runtime.wording import counted

from ..plan.spec import RunSpec
from ..pod.errors import HostError
from ..pod.home import podrun_home
from ..pod.pod import Host
from ..pod.traits import location
from ..remote.download import FileFailedError, RemoteFolder
from ..rundir.runs import RunDirectory
from ..transport.base import Transport, load_transport
from ..view.times import size
from .bucket_folder import BucketFolder
from .folder import DownloadFolder, digest_of
from .selection import Selection, checkpoint_path, find_steps
from .source import Below, Source
from .transfer import Downloaded, Progress, Say, Transfer

PULLED = Path("pulled")
"""Parent of the default download folders."""
_LOGS, FILES = "logs", "files"
"""Subfolders of a download folder: for logs, and for files that a program wrote beside its code, by host."""
_CONNECTIONS = 10  # reconnections, each after the previous connection transferred something


@dataclass(frozen=True)
class Pulled:
    """The downloaded results."""

    folder: Path
    downloaded: Downloaded

    @property
    def problems(self) -> list[str]:
        """Return the failures. If several connections had the same one, it is listed once."""
        return list(dict.fromkeys(self.downloaded.problems))

    def describe(self) -> str:
        """Return what was downloaded: `2 checkpoints and 3 files, 1.2 MB received; 4 unchanged: pulled/train`."""
        downloaded = {*self.downloaded.files, *map(checkpoint_path, self.downloaded.checkpoints)}
        unchanged = len(self.downloaded.unchanged - downloaded)
        numbers = {"checkpoint": len(self.downloaded.checkpoints), "file": len(self.downloaded.files)}
        counts = [counted(n, name) for name, n in numbers.items() if n]
        what = f"{' and '.join(counts)}, {size(self.downloaded.received)} received" if counts else "nothing new"
        return f"{what}{f'; {unchanged} unchanged' if unchanged else ''}: {self.folder}"


@dataclass(frozen=True)
class _Target:
    """Where results are downloaded to, and who hears of it."""

    folder: Path
    say: Say
    progress: Progress
    downloaded: Downloaded = field(default_factory=Downloaded)
    """What has arrived, over any number of connections."""

    @property
    def pulled(self) -> Pulled:
        return Pulled(self.folder, self.downloaded)


def default_folder(spec: RunSpec) -> Path:
    """Return the default download folder of a run, which has the name of its workdir."""
    return PULLED / (spec.workdir.name or spec.run_id)


def check_folder(spec: RunSpec, folder: Path) -> None:
    """Create the folder; raise UserError if results of the run cannot be downloaded into it."""
    _check_not_workdir(spec, folder)
    with _home(folder, _source(spec)):
        pass


def _check_not_workdir(spec: RunSpec, folder: Path) -> None:
    if spec.pod.traits.files_are_here and not url(spec.workdir) and folder.resolve() == spec.workdir.resolve():
        raise UserError(f"{folder} is the workdir of the run: its results are there already; choose another folder")


def pull_run(
    transport: Transport, directory: RunDirectory, selection: Selection, folder: Path, say: Say, progress: Progress
) -> Pulled:
    """Download the selected results of a run into a local folder.

    Args:
        transport: reaches the hosts.
        directory: the run.
        selection: which results.
        folder: the local folder.
        say: prints a message to the user.
        progress: shows the progress.

    Raises:
        UserError: the local folder or the workdir cannot be used.
        HostError: no host with the results is reachable, or the connection was lost.
    """
    spec = directory.spec()
    _check_not_workdir(spec, folder)
    if bucket := url(spec.workdir):
        return pull_bucket(bucket, selection, folder, say, progress, directory)
    target = _Target(folder, say, progress)
    if "files" in selection.kinds and not directory.kept_files():
        raise UserError(_no_files(directory, spec))
    if not selection.is_of_workdir and selection.has_logs:
        with _home(folder, _source(spec)) as home, _explain_failures(folder, spec.pod.hosts[0].name):
            _copy_logs(directory, home, target.downloaded)
    if selection.is_of_workdir:
        _download_workdir(transport, directory, spec, selection, target)
    if selection.has_files:
        _download_files(transport, directory, spec, target)
    return target.pulled


def _no_files(directory: RunDirectory, spec: RunSpec) -> str:
    if spec.pod.traits.files_are_here:
        return f"run {directory.run_id} worked in {spec.cwd} on this machine: what the program wrote is there"
    if directory.end() is None:
        return f"run {directory.run_id} has not ended: the files that its program writes beside its code can be pulled then"
    return f"the program of run {directory.run_id} wrote no files beside its code"


def _download_files(transport: Transport, directory: RunDirectory, spec: RunSpec, target: _Target) -> None:
    """Download what the program wrote beside its code on each host, to `files/HOST/`.

    That of earlier attempts, each of which begins with a new copy of the code, goes to `files/HOST.earlier-1/` and so on.

    Raises HostError, UserError.
    """
    hosts = {host.name: host for host in spec.pod.all_hosts}
    for kept in directory.kept_files():
        name = kept.host
        if name not in hosts:
            target.downloaded.problems.append(f"{name}:{kept.folder}: the pod has no such host")
            continue
        try:
            remote = RemoteFolder(transport, spec.pod, hosts[name], kept.folder)
        except (FileFailedError, HostError) as error:
            if isinstance(error, HostError) and not kept.earlier:  # the host of an earlier attempt may be gone for good
                raise
            target.downloaded.problems.append(f"{name}:{kept.folder}: {error}")
            continue
        try:
            place = location(remote.path, spec.pod.transport, name)
            origin = _Origin(place, name, _source(spec), None)
            below = Below(remote, f"{FILES}/{name}{f'.earlier-{kept.earlier}' if kept.earlier else ''}")
            _download(below, origin, Selection(as_they_are=True), target)
        finally:
            remote.close()


def _download_workdir(
    transport: Transport, directory: RunDirectory, spec: RunSpec, selection: Selection, target: _Target
) -> None:
    for connections_left in reversed(range(_CONNECTIONS)):
        before = target.downloaded.received
        host, remote = _open(transport, directory, spec, target.say)
        try:
            origin = _Origin(location(remote.path, spec.pod.transport, host.name), host.name, _source(spec), directory)
            _download(remote, origin, selection, target)
            break
        except HostError as error:
            if target.downloaded.received == before or not connections_left:
                raise
            target.say(f"podrun: {error}; it goes on over a new connection")
        finally:
            remote.close()


def pull_bucket(
    url: str, selection: Selection, folder: Path, say: Say, progress: Progress, directory: RunDirectory | None = None
) -> Pulled:
    """Download the selected results of a workdir in a bucket, and the logs if the run was started from this machine.

    Raises UserError; HostError if the bucket is unreachable.
    """
    if selection.kinds == {"logs"} and not selection.steps and directory is None:
        raise UserError(
            f"the logs of a run are not in {url}, but on the machine that has started it: podrun pull RUN logs"
        )
    target = _Target(folder, say, progress)
    _download(BucketFolder(url, say), _Origin(url, url, url, directory), selection, target)
    return target.pulled


@dataclass(frozen=True)
class _Origin:
    """The place from which results are downloaded."""

    label: str
    """Name of the place in messages."""
    host: str
    """Name of the host, or URL of the bucket."""
    source: str
    """Text that the download folder stores, to recognize results of the same place."""
    directory: RunDirectory | None
    """The run whose logs are downloaded as well; None: unknown."""


def _source(spec: RunSpec) -> str:
    return url(spec.workdir) or f"{spec.pod.hosts[0].address}:{spec.workdir}"


def _download(remote: Source, origin: _Origin, selection: Selection, target: _Target) -> None:
    """Download the selected results over one connection. Raises UserError, HostError."""
    folder, downloaded, say = target.folder, target.downloaded, target.say
    with _explain_failures(folder, origin.host):
        listing = remote.list_files()
    selection.checkpoints(find_steps(listing.sizes).complete)  # raises for a missing step before anything is created
    with _home(folder, origin.source) as home, _explain_failures(folder, origin.host):
        say(f"podrun: pulling {origin.label} to {folder}")
        Transfer(remote, origin.host, home, downloaded, say, target.progress).run(listing, selection)
        if selection.has_logs and origin.directory is not None:
            _copy_logs(origin.directory, home, downloaded)
        if selection.is_everything and not downloaded.problems:
            home.drop_parts()
        if listing.left_out and selection.is_everything:
            say(f"{listing.left_out} links, or unsafe names, in {remote.path} are left out")


def _open(transport: Transport, directory: RunDirectory, spec: RunSpec, say: Say) -> tuple[Host, RemoteFolder]:
    """Open the workdir: on the host of process 0, or on another host that shares it. Raises HostError, UserError."""
    first, *others = directory.hosts(spec.pod)
    folder = os.fspath(spec.workdir)
    try:
        return first, RemoteFolder(transport, spec.pod, first, folder)
    except FileFailedError as error:
        raise UserError(
            f"run {directory.run_id} has no results on {first.name}: {error}; it has not begun to write any, they were "
            "removed, or it is a program that wrote elsewhere (podrun downloads only the folder that PODRUN_WORKDIR names)"
            + (f"; `podrun pull {directory.run_id} files` brings them" if directory.kept_files() else "")
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
    """Open the workdir on this machine if that shares the hosts' file system, because they are unreachable.

    Raises `failed` if it does not.
    """
    if not os.path.isdir(os.path.expanduser(folder)):
        raise failed
    here = replace(spec.pod, hosts=(Host("this machine", "127.0.0.1"),), transport="local", home=str(podrun_home()))
    try:
        remote = RemoteFolder(load_transport(here), here, here.hosts[0], folder)
    except (FileFailedError, HostError):
        raise failed from None
    if remote.last_run != directory.run_id:  # another run's folder with the same path
        remote.close()
        raise failed
    say(f"podrun: {failed}; this machine sees the same folder")
    return here.hosts[0], remote


@contextmanager
def _home(folder: Path, source: str) -> Iterator[DownloadFolder]:
    home = DownloadFolder(folder, source)
    try:
        yield home
    finally:
        home.close()


@contextmanager
def _explain_failures(folder: Path, host: str) -> Iterator[None]:
    """Convert errors of the local disk and of the host's workdir during the `with` block. Raises UserError, HostError."""
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


def _copy_logs(directory: RunDirectory, home: DownloadFolder, downloaded: Downloaded) -> None:
    """Copy the logs from the run directory of this machine."""
    for source in sorted(directory.logs.glob("*.log")):
        path = f"{_LOGS}/{source.name}"
        final = home.final(path)
        if final.is_file() and digest_of(final).digest() == digest_of(source).digest():
            downloaded.unchanged.add(path)
            continue
        part = home.part(path)
        part.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, part)
        home.place(path)
        downloaded.files.add(path)

"""Check the keys of a pod file against each other, and against the files and environment of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from podrun.runtime.contract import UserError

from ..agent.base.python_version import is_version
from ..pod.secret_values import Secrets, missing_secret_message, missing_secrets, read_secrets_file
from ..pod.traits import TRAITS
from ..yamlfile.mistakes import Row, mistake_row
from .base import INVENTORIES, LOCAL
from .fits import duplicates
from .hosts import NOT_ALONE
from .pod_file import ParsedPodFile

Mistake = tuple[str, str]
"""(dotted key, problem)."""


_STAGED = ("setup", "requirements", "offline", "container")
"""Keys that change what is installed on a host."""
_REMOTE = ("ssh", "home", "spares", "min_hosts", "exclude", *_STAGED)
"""Keys that are only for other machines."""


def check_pod(
    described: ParsedPodFile,
    other_hosts: bool = False,
    env: Mapping[str, str] = os.environ,
    *,
    here: bool = False,
) -> list[Row]:
    """Return the mistakes that the schema cannot detect, as rows with line and message.

    Args:
        described: the pod file.
        other_hosts: hosts of the command line replace the file's hosts.
        env: environment of the launcher, with the secrets.
        here: the hosts of the command line are this machine.
    """
    mistakes = [*_transport(described, other_hosts, here), *_files(described), *_secrets(described, env)]
    if not other_hosts:
        twice = list(duplicates(described.hosts))
        mistakes += [(described.inventory or "hosts", what) for what in twice]
        every = duplicates([*described.hosts, *described.spares])
        mistakes += [("spares", what) for what in every if what not in twice]
    return [mistake_row(dotted, what, described.lines) for dotted, what in mistakes]


def _transport(described: ParsedPodFile, other_hosts: bool, here: bool) -> Iterator[Mistake]:
    file = described.file
    if described.broken & {*INVENTORIES, "transport"}:
        return
    for second in described.inventories[1:]:
        yield second, f"`{described.inventory}` names the hosts as well; remove one of the two"
    key = described.inventory
    listed_elsewhere = other_hosts or key is not None
    if here or (not other_hosts and TRAITS[described.listing.transport].files_are_here and key is not None):
        for remote in _REMOTE:
            if remote in file.model_fields_set:
                yield remote, f"is for other machines; {LOCAL} is this one, and uses what is installed here: remove it"
        if file.python and is_version(file.python):
            yield "python", f"{file.python}: podrun brings a version of Python to other machines only; give a path here"
        if file.transport:
            yield "transport", f"{file.transport}, but `{LOCAL}` is this machine itself; remove one of the two"
        return
    if key and len(described.hosts) > 1 and LOCAL in {host.address for host in described.hosts}:
        yield key, NOT_ALONE
    lists_hosts = None if file.transport is None else TRAITS[file.transport].lists_hosts
    if lists_hosts is False and key is not None:
        what = f"{file.transport} means processes on this machine, but there are `{key}`; remove one of the two"
        yield "transport", what
    elif file.spares and not listed_elsewhere:
        yield "spares", "replace `hosts`, but there are none; a simulated pod needs no spares"
    elif file.exclude and not listed_elsewhere:
        yield "exclude", "is for hosts that are other machines; a simulated pod has none: remove it"
    elif file.hosts == () and not other_hosts:
        yield "hosts", "is empty; name at least one host"
    elif not listed_elsewhere and lists_hosts:
        yield "transport", f"{file.transport} needs `hosts`; write for example `hosts: tpu-[0-3]`, or give --hosts"
    elif not listed_elsewhere and file.transport is None and "ssh" in file.model_fields_set:
        yield "ssh", "there are no `hosts` to reach; write for example `hosts: tpu-[0-3]`, or `transport: local`"
    elif not listed_elsewhere:
        for key in _STAGED:
            if getattr(file, key):
                yield key, "is for hosts that are reached by SSH; a simulated pod uses what is installed here"
    if file.container:
        yield from _mounts(file.container.mounts)
    if file.container and file.requirements:
        yield "requirements", "a container has the packages of its image; install them there, and remove this"
    yield from _version(described, simulated=lists_hosts is False or (not listed_elsewhere and file.transport is None))
    if file.offline and not (file.requirements or described.broken & {"requirements"}):
        yield (
            "offline",
            "sends the packages of `requirements`, and there is none; name a requirements.txt, or remove this",
        )


def _version(described: ParsedPodFile, simulated: bool) -> Iterator[Mistake]:
    """Check `python` with a version in place of an interpreter."""
    file = described.file
    if not (file.python and is_version(file.python)):
        return
    if file.container:
        yield (
            "python",
            f"{file.python}: podrun brings no Python into a container; install it in the image, and remove this",
        )
    elif simulated:
        yield "python", f"{file.python}: podrun brings a version of Python to other machines only; give a path here"
    elif not (file.requirements or described.broken & {"requirements"}):
        yield (
            "python",
            f"{file.python} is a version, which podrun brings for the packages of `requirements`, and there is none; name a "
            "requirements.txt, or the path of an interpreter",
        )


def _mounts(mounts: Sequence[str]) -> Iterator[Mistake]:
    first: dict[str, str] = {}
    for mount in mounts:
        source, _, inside = mount.partition(":")
        target = os.path.normpath(inside.partition(":")[0] or source)
        if other := first.get(target):
            yield (
                "container.mounts",
                f"{other} and {mount} are both mounted at {target}; remove one, or mount it elsewhere",
            )
        first.setdefault(target, mount)


def _files(described: ParsedPodFile) -> Iterator[Mistake]:
    ssh = described.file.ssh
    new = ssh.host_keys == "accept-new"  # accept-new creates ssh.known_hosts
    needed = {
        "ssh.key": ssh.key,
        "ssh.known_hosts": None if new else ssh.known_hosts,
        "ssh.config": ssh.config,
        "requirements": described.file.requirements,
    }
    for key, path in needed.items():
        if (file := described.at(path)) is not None and (problem := _unreadable(file)):
            yield key, f"cannot read {file}: {problem}; give the path of a file, from the pod file's folder"
    if ssh.key is not None and ssh.key.suffix == ".pub":
        yield "ssh.key", f"{ssh.key} is the public half; give {ssh.key.with_suffix('')}"


def _unreadable(path: Path) -> str | None:
    try:
        with path.open("rb"):
            return None
    except OSError as error:
        return error.strerror


def _secrets(described: ParsedPodFile, env: Mapping[str, str]) -> Iterator[Mistake]:
    names, path = described.file.secrets, described.at(described.file.secrets_file)
    in_file: Mapping[str, str] = Secrets({})
    readable = "secrets_file" not in described.broken
    if path is not None:
        try:
            in_file = read_secrets_file(path)
        except UserError as error:
            readable = False
            yield "secrets_file", str(error)
        if not names and "secrets" not in described.broken:
            yield "secrets_file", "is not used; list the names that the workers get under `secrets`"
    for index, name in enumerate(names):
        key = f"secrets.{index}"
        if name in names[:index]:
            yield key, f"{name} is listed twice; keep one of them"
        elif name in described.file.env:
            yield key, f"{name} is in `env` as well; keep one of the two"
        elif readable and missing_secrets([name], in_file, env):
            yield key, missing_secret_message(name, path)

"""Check what a submitted run would only meet in its job, perhaps after days in the queue."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...pod.home import podrun_home
from ...pod.pod import Pod
from ...pod.secret_values import read_secrets_file
from .job import SlurmError, ask_slurm
from .options import BatchOptions, seconds

_OWN_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm", "/run")
"""Folders that every machine has for itself, unless a file system of a network is mounted there."""
_OF_ONE_MACHINE = {
    "tmpfs",
    "ramfs",
    "ext2",
    "ext3",
    "ext4",
    "xfs",
    "btrfs",
    "zfs",
    "f2fs",
    "overlay",
    "reiserfs",
    "jfs",
}
_PARTITION = re.compile(r"(\S+?)(\*?)\|(\S+)\|(\S+)")


def queue_mistakes(options: BatchOptions, pod: Pod | None, env: Mapping[str, str] = os.environ) -> list[str]:
    """Return what would keep the job from starting on its nodes, each with its remedy.

    Args:
        options: what the job is asked for with.
        pod: its pod; None if that has mistakes of its own.
        env: the environment in which sbatch is called.
    """
    if shutil.which("sbatch") is None:
        return []  # said when it is called
    secrets = () if pod is None else _missing_secrets(options, pod, env)
    return [f"--slurm: {mistake}" for mistake in (*secrets, *_unseen_folders(), *_too_short(options, env))]


def _missing_secrets(options: BatchOptions, pod: Pod, env: Mapping[str, str]) -> Iterator[str]:
    """Yield the secrets that `export=` keeps out of the environment of the job."""
    export = options.value("export") or env.get("SBATCH_EXPORT") or "ALL"
    words = export.split(",")
    if "ALL" in words or options.value("export-file"):
        return
    in_file = read_secrets_file(pod.secrets_file) if pod.secrets_file and pod.secrets else {}
    carried = {word.partition("=")[0] for word in words}
    missing = [name for name in pod.secrets if name not in carried and not in_file.get(name)]
    if missing:
        names = ",".join(missing)
        yield (
            f"export={export} keeps the secret {', '.join(missing)} from the job; leave it out, add {names} to it, or "
            "write the values into a file that `secrets_file` names"
        )


def _unseen_folders() -> Iterator[str]:
    """Yield the folders that the job needs and that are on a disk of this machine alone."""
    needed = {"PODRUN_HOME": podrun_home(), "the folder in which podrun was called": Path.cwd()}
    unseen = {what: path for what, path in needed.items() if _is_own(path.resolve())}
    if unseen and not _is_only_node():
        for what, path in unseen.items():
            remedy = "set it to a folder" if what == "PODRUN_HOME" else "call podrun in one"
            yield f"{what} is {path}, which each machine has for itself; {remedy} that the nodes share with this machine"


def _is_own(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _OWN_FOLDERS) and _file_system(path) in _OF_ONE_MACHINE


def _file_system(path: Path) -> str:
    """Return the type of the file system on which a path is or would be."""
    kinds: dict[str, str] = {}
    try:
        for line in Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines():
            words = line.split(" ")
            kinds[words[1].encode("latin-1", "replace").decode("unicode_escape")] = words[2]  # `\\040` is a blank
    except (OSError, ValueError, IndexError):
        return "tmpfs"
    return next((kinds[str(folder)] for folder in (path, *path.parents) if str(folder) in kinds), "tmpfs")


def _is_only_node() -> bool:
    """Return whether SLURM has no node but this machine."""
    try:
        nodes = set(ask_slurm("sinfo", "--noheader", "--Node", "--format=%n").split())
    except SlurmError:
        return False
    return nodes == {socket.gethostname()} or nodes == {socket.gethostname().partition(".")[0]}


def _too_short(options: BatchOptions, env: Mapping[str, str]) -> Iterator[str]:
    """Yield a message if the time that a job has by default is over before podrun would save."""
    if options.value("time"):
        return  # compared already
    given = env.get("SBATCH_TIMELIMIT") or ""
    if given:
        default, of = given, "SBATCH_TIMELIMIT"
    else:
        names = options.value("partition") or env.get("SBATCH_PARTITION") or ""
        default, of = _default_time(names.split(",") if names else [])
    if default and (whole := seconds(default)) is not None and whole <= options.lead:
        yield (
            f"the job would have {default} ({of}), and podrun would save {options.lead} s before its end; "
            "give it more: time=1:00:00, or fewer seconds: signal=30"
        )


def _default_time(names: list[str]) -> tuple[str, str]:
    """Return the shortest time limit of jobs without one in these partitions, or in the default one, and where it is from."""
    try:
        answer = ask_slurm("sinfo", "--noheader", "--format=%P|%L|%l")
    except SlurmError:
        return "", ""  # sbatch says what is wrong
    times: list[tuple[int, str, str]] = []
    for line in answer.splitlines():
        if not (match := _PARTITION.fullmatch(line.strip())):
            continue
        name, star, default, longest = match.groups()
        if name in names or (star and not names):
            limit = longest if default in ("n/a", "infinite") else default
            if (whole := seconds(limit)) is not None:
                times.append((whole, limit, f"the default of the partition {name}"))
    return min(times)[1:] if times else ("", "")

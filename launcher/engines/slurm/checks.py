"""Check before submission for mistakes that would only appear when the job starts, perhaps after days in the queue."""

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
"""Folders that are local to each machine, unless a network file system is mounted there."""
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
    """Return the mistakes that would prevent the run from starting on its nodes, each with a remedy.

    Args:
        options: options of the job.
        pod: its pod; None if that is invalid.
        env: the environment in which sbatch is called.
    """
    if shutil.which("sbatch") is None:
        return []  # sbatch's own error says it
    secrets = () if pod is None else _missing_secrets(options, pod, env)
    return [f"--slurm: {mistake}" for mistake in (*secrets, *_unshared_folders(), *_short_time_limit(options, env))]


def _missing_secrets(options: BatchOptions, pod: Pod, env: Mapping[str, str]) -> Iterator[str]:
    """Yield a message if `export=` keeps secrets out of the job's environment."""
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


def _unshared_folders() -> Iterator[str]:
    """Yield a message for each folder that the job needs and that is only on this machine's disk."""
    needed = {"PODRUN_HOME": podrun_home(), "the folder in which podrun was called": Path.cwd()}
    unseen = {what: path for what, path in needed.items() if _is_own(path.resolve())}
    if unseen and not _is_only_node():
        for what, path in unseen.items():
            remedy = "set it to a folder" if what == "PODRUN_HOME" else "call podrun in one"
            yield f"{what} is {path}, a folder that is local to each machine; {remedy} that the nodes share with this machine"


def _is_own(path: Path) -> bool:
    return any(path.is_relative_to(folder) for folder in _OWN_FOLDERS) and _file_system_type(path) in _OF_ONE_MACHINE


def _file_system_type(path: Path) -> str:
    """Return the type of the file system of a path, which need not exist."""
    kinds: dict[str, str] = {}
    try:
        for line in Path("/proc/self/mounts").read_text(errors="surrogateescape").splitlines():
            words = line.split(" ")
            kinds[words[1].encode("latin-1", "replace").decode("unicode_escape")] = words[2]  # `\\040` is a space
    except (OSError, ValueError, IndexError):
        return "tmpfs"
    return next((kinds[str(folder)] for folder in (path, *path.parents) if str(folder) in kinds), "tmpfs")


def _is_only_node() -> bool:
    """Return whether this machine is the only node of SLURM."""
    try:
        nodes = set(ask_slurm("sinfo", "--noheader", "--Node", "--format=%n").split())
    except SlurmError:
        return False
    return nodes == {socket.gethostname()} or nodes == {socket.gethostname().partition(".")[0]}


def _short_time_limit(options: BatchOptions, env: Mapping[str, str]) -> Iterator[str]:
    """Yield a message if the partition's default time limit is shorter than the time podrun saves before the end."""
    if options.value("time"):
        return  # `parse_options` has compared it
    given = env.get("SBATCH_TIMELIMIT") or ""
    if given:
        default, of = given, "SBATCH_TIMELIMIT"
    else:
        names = options.value("partition") or env.get("SBATCH_PARTITION") or ""
        default, of = _default_time(names.split(",") if names else [])
    if default and (whole := seconds(default)) is not None and whole <= options.lead:
        yield (
            f"the job's time limit would be {default} ({of}), but podrun saves {options.lead} s before the limit, so the job "
            "could not train; give it more time (time=1:00:00) or a later save (signal=30, in seconds)"
        )


def _default_time(names: list[str]) -> tuple[str, str]:
    """Return the shortest default time limit of the partitions, and where it is from; empty if unknown.

    `names`: the partitions; empty: the default partition.
    """
    try:
        answer = ask_slurm("sinfo", "--noheader", "--format=%P|%L|%l")
    except SlurmError:
        return "", ""  # sbatch's own error says it
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

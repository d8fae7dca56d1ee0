"""Exclude bad nodes from a job that is submitted: `exclude: bad` in the pod file, or `--slurm=...,exclude=bad`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from podrun.runtime.contract import UserError

from ...pod.fold import fold
from ...pod.pod import Pod
from ...pod.ranges import split_hosts
from ...run.bad_hosts import describe_left_out, how_to_clear
from ...rundir.host_history import HostHistory, worst_first
from ...rundir.host_record import read_hosts
from .job import SlurmError, ask_slurm
from .options import BatchOptions

BAD = "bad"
"""Word among the nodes of `exclude` that stands for the bad nodes."""


def without_bad_nodes(
    options: BatchOptions, pod: Pod, words: Callable[[BatchOptions], Sequence[str]], tell: Callable[[str], None]
) -> BatchOptions:
    """Return the options of a job with the names of the bad nodes of this cluster in `exclude`.

    They are not excluded if SLURM has too few others, because the job would wait for ever.

    Args:
        options: options of the job.
        pod: its pod.
        words: returns the arguments of sbatch for options.
        tell: prints a line to the user.
    """
    typed = split_hosts(",".join(value for key, value in options.given if key == "exclude" and value)[-65536:])
    if not pod.excludes_bad and BAD not in typed:
        return options
    named = [name for name in typed if name != BAD]
    plain = _excluding(options, named)
    bad = _bad_nodes(tell)
    names = [name for name in bad if name not in named]
    if not names:
        return plain
    chosen = _excluding(options, [*named, *names])
    if not _can_start(words(chosen)) and _can_start(words(plain)):
        tell(f"not left out, since SLURM has too few other nodes: {describe_left_out(names, bad)}")
        return plain
    tell(f"left out of the job: {describe_left_out(names, bad)}; {how_to_clear(names)}")
    return chosen


def _excluding(options: BatchOptions, names: Sequence[str]) -> BatchOptions:
    given = tuple(option for option in options.given if option[0] != "exclude")
    return options._replace(given=(*given, ("exclude", ",".join(names))) if names else given)


def _bad_nodes(tell: Callable[[str], None]) -> dict[str, HostHistory]:
    """Return the bad nodes of this cluster by name, the worst first."""
    try:
        histories, _ = read_hosts()
    except UserError as error:
        tell(f"warning: which nodes are bad is unknown: {error}")
        return {}
    bad = [one for one in worst_first(histories.values()) if one.key.place == "slurm" and one.is_bad]
    if not bad:
        return {}
    try:
        known = set(ask_slurm("sinfo", "--noheader", "--Node", "--format=%N").split())
    except SlurmError as error:
        tell(f"warning: the bad nodes {fold(one.key.address for one in bad)} are not left out: {error}")
        return {}
    return {one.key.address: one for one in bad if one.key.address in known}


def _can_start(words: Sequence[str]) -> bool:
    """Return whether SLURM confirms that a job with these arguments can start some day."""
    try:
        ask_slurm("sbatch", "--test-only", *words, "--wrap=:")
    except SlurmError:
        return False
    return True

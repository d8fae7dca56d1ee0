"""Decide which process keeps which part of the state in memory, and which checkpoint in memory to restore. PURE.

A part is what the devices of one process hold of the state. Processes with the same devices' share have the same part: all
processes, if the state is not divided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..wording import counted


@dataclass(frozen=True)
class Member:
    """A process of the pod."""

    host: str
    part: int
    """Digest that identifies its part of the state."""


def writers(members: Sequence[Member]) -> list[int]:
    """Return the processes that keep their part in memory: on each host the first process with each part."""
    seen: set[Member] = set()
    return [process for process, member in enumerate(members) if not (member in seen or seen.add(member))]  # type: ignore[func-returns-value]


def copies(members: Sequence[Member]) -> dict[int, int]:
    """Return the process that keeps a copy of each part that only one host has, by the process that writes the part.

    The copy is on the next host, so none is made on a pod of one host.
    """
    hosts: dict[str, list[int]] = {}
    for process, member in enumerate(members):
        hosts.setdefault(member.host, []).append(process)
    names = [*hosts]
    following = {name: hosts[after] for name, after in zip(names, [*names[1:], *names[:1]], strict=True)}
    keepers: dict[int, int] = {}
    for process in writers(members):
        member = members[process]
        if not any(other.part == member.part and other.host != member.host for other in members) and len(names) > 1:
            others = following[member.host]
            keepers[process] = others[hosts[member.host].index(process) % len(others)]
    return keepers


class Held(NamedTuple):
    """A file with a part of the state that a host has in memory."""

    step: int
    attempt: int
    """The attempt that wrote it."""
    writer: int
    """The process that wrote it, in that attempt."""
    host: str
    """The host of that process."""
    part: int
    parts: tuple[int, ...]
    """The parts of all processes in that attempt."""
    keeper: str
    """The host that has the file now."""
    process: int
    """A process on that host now."""


@dataclass(frozen=True)
class InMemory:
    """A checkpoint in memory of which at least one file exists."""

    step: int
    attempt: int
    files: tuple[Held, ...]

    @property
    def lacking(self) -> set[int]:
        """Return the parts that no host has. None of them if the checkpoint is complete."""
        return {part for file in self.files for part in file.parts} - {file.part for file in self.files}

    def sources(self, part: int, host: str, process: int) -> list[Held]:
        """Return the files with a part, in the order in which a process on `host` tries them: those of its host first."""
        files = [file for file in self.files if file.part == part]
        near = [file for file in files if file.keeper == host]
        far = [file for file in files if file.keeper != host]
        turn = process % len(far) if far else 0  # not all from the same host
        return [*near, *far[turn:], *far[:turn]]

    def described(self) -> str:
        """Return `the memory of 3 hosts (1 part from the copy on host-2)`."""
        used = {file.part: file for file in reversed(self.files)}
        used |= {file.part: file for file in reversed(self.files) if file.host == file.keeper}
        others = [file.keeper for file in used.values() if file.host != file.keeper]
        of_copies = (
            f" ({counted(len(others), 'part')} from the copy on {', '.join(sorted(set(others)))})" if others else ""
        )
        return f"the memory of {counted(len({file.keeper for file in self.files}), 'host')}{of_copies}"


def newest_first(held: Sequence[Held]) -> Iterator[InMemory]:
    """Yield the checkpoints in memory, the newest first; of the same step, that of the latest attempt first."""
    files: dict[tuple[int, int], list[Held]] = {}
    for file in held:
        files.setdefault((file.step, file.attempt), []).append(file)
    for step, attempt in sorted(files, reverse=True):
        yield InMemory(step, attempt, tuple(sorted(files[step, attempt])))


class Need(NamedTuple):
    """What a process needs in memory."""

    host: str
    size: int
    """Bytes that it needs."""
    free: int
    """Bytes that are free on its host."""
    others: int
    """Bytes that other runs have in memory there."""


def shortage(needs: Sequence[Need]) -> str | None:
    """Return which host lacks memory, and how much; None if all have enough. `needs`: of each process."""
    for host in dict.fromkeys(need.host for need in needs):
        here = [need for need in needs if need.host == host]
        size, free, others = sum(n.size for n in here), min(n.free for n in here), max(n.others for n in here)
        if size > free:
            leftover = (
                f"; other runs of podrun have {others / 1e6:,.0f} MB there, which `podrun clean` frees if they have ended"
                if others
                else ""
            )
            return f"{host} needs {size / 1e6:,.0f} MB in /dev/shm, and has {free / 1e6:,.0f} MB free{leftover}"
    return None

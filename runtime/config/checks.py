"""Check that a job fits its slice, and that its files exist on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TypeVar

from ..contract import UserError
from .attention import named_conflict
from .base import ReadsFiles, Section, nearest_multiples
from .bucket_url import url
from .job import Config

S = TypeVar("S", bound=Section)


def check_slice(config: Config, devices: int, slices: int = 1, platform: str | None = None, pads: bool = False) -> None:
    """Raise UserError, with values that fit, unless the job can run on a slice.

    Args:
        config: the job.
        devices: number of devices, over which mesh and batch are divided.
        slices: number of equal slices that the devices are in.
        platform: `cpu`, `gpu` or `tpu`, which a kernel may need; None: unknown.
        pads: a batch that the devices do not divide is padded, as podrun's own tasks can be evaluated.
    """
    grid = config.parallel.grid
    divides = devices % grid.model == 0 and not (pads and not config.task_is_users)
    problems = (
        # Without a whole number of rows, a batch cannot be blamed for not being divisible by it.
        _batch_problem(config, devices) if divides else None,
        grid.problem(devices, slices),
        named_conflict(config, platform),
    )
    messages = [problem for problem in problems if problem]
    if messages:
        raise UserError("\n".join(messages))


def shrinking_problem(config: Config, devices: int) -> str | None:
    """Return why a job cannot continue with only `devices` devices, fewer than it began with; None if it can.

    A batch size that `devices` does not divide is padded; only podrun's own tasks handle padding.
    """
    if config.parallel.model_per_device:
        return "each device trains a model of its own, so their number cannot change"
    if config.task_is_users and (problem := _batch_problem(config, devices)):
        return f"{problem}; podrun pads a batch for its own tasks only"
    return config.parallel.grid.problem(devices)


def check_files(config: Config) -> None:
    """Raise UserError if a file that the config names is missing, unreadable or empty on this machine."""
    files_of(config)


@dataclass(frozen=True)
class NamedFiles:
    """A key under `data` that names files, its value, and the paths of the files."""

    key: str
    value: str | Path
    files: tuple[Path, ...]


def files_of(config: Config) -> list[NamedFiles]:
    """Return the files that the job names, except those in a bucket.

    Raises UserError if one is missing, unreadable or empty on this machine.
    """
    return list(_files_of(config, ""))


def _files_of(section: Section, key: str) -> Iterator[NamedFiles]:
    for name, field in type(section).model_fields.items():
        value, path = getattr(section, name), f"{key}{name}"
        for part, inner in _sections(value, path).items():
            yield from _files_of(inner, f"{part}.")
        marks = [mark for mark in field.metadata if isinstance(mark, ReadsFiles)]
        if value is not None and marks and url(PurePath(str(value))) is None:
            yield NamedFiles(path, value, tuple(marks[0].check(value, path)))


def with_files(section: S, download: Callable[[str, str], Path]) -> S:
    """Return the section, or the job, with every URL of a bucket replaced by the path that `download(key, url)` returns."""

    def local(key: str, value: str | Path, mark: ReadsFiles) -> str | Path:
        address = url(PurePath(str(value)))
        return value if address is None else type(value)(download(key, address))

    return _with_changed_files(section, local)


def with_files_beside(section: S, folder: Path, typed: Collection[str]) -> S:
    """Resolve a section's relative paths against `folder`, if the files exist there and not in the current folder.

    A path that exists from the current folder stays as it is. So does a path whose key is in `typed`, that is, given on the
    command line: the shell has completed it from the current folder.
    """

    def beside(key: str, value: str | Path, mark: ReadsFiles) -> str | Path:
        if key in typed or not _is_relative(value):
            return value
        near = type(value)(os.path.relpath(folder / value))
        return near if not _has_files(mark, value, key) and _has_files(mark, near, key) else value

    return _with_changed_files(section, beside)


def with_files_in(section: S, folder: Path) -> S:
    """Return the section, or the job, with its relative paths of files made absolute: they are relative to `folder`."""
    return _with_changed_files(
        section, lambda key, value, mark: type(value)(folder / value) if _is_relative(value) else value
    )


def _with_changed_files(section: S, change: Callable[[str, str | Path, ReadsFiles], str | Path], key: str = "") -> S:
    """Return the section with each value that names files replaced by `change(key, value, mark)`."""
    changes: dict[str, object] = {}
    for name, field in type(section).model_fields.items():
        value, path = getattr(section, name), f"{key}{name}"
        marks = [mark for mark in field.metadata if isinstance(mark, ReadsFiles)]
        if inner := _sections(value, path):
            changed = [_with_changed_files(one, change, f"{part}.") for part, one in inner.items()]
            if changed != [*inner.values()]:  # a key that is not given stays so
                changes[name] = _replaced(value, changed)
        elif value is not None and marks and (after := change(path, value, marks[0])) != value:
            changes[name] = after
    return section.model_copy(update=changes)


def _sections(value: object, key: str) -> dict[str, Section]:
    """Return the sections in a value, by their full keys: the value itself, or those in a dictionary."""
    if isinstance(value, Section):
        return {key: value}
    if not isinstance(value, dict):
        return {}
    return {f"{key}.{name}": one for name, one in value.items() if isinstance(one, Section)}


def _replaced(value: object, sections: list[Section]) -> object:
    """Return `value`, a section or a dictionary of them, with its sections replaced by `sections`, in order."""
    return dict(zip(value, sections, strict=True)) if isinstance(value, dict) else sections[0]


def _is_relative(value: str | Path) -> bool:
    return url(PurePath(str(value))) is None and not (os.path.isabs(value) or str(value).startswith("~"))


def _has_files(mark: ReadsFiles, value: str | Path, key: str) -> bool:
    try:
        mark.check(value, key)
    except UserError:
        return False
    return True


def _batch_problem(config: Config, devices: int) -> str | None:
    size, together = config.batch_size, config.parallel.grid.model
    shares = max(1, devices // together) if config.parallel.divides_batch else 1
    parts = shares * config.accumulate
    if size == "all" or size % parts == 0:
        return None
    by = f"{shares} {'device' if together == 1 else 'row'}{'s' * (shares > 1)}"
    if together > 1:
        by += f" of {together} devices (parallel.mesh.model)"
    if config.accumulate > 1:
        by += f" x accumulate {config.accumulate}"
    if size < parts:
        return (
            f"batch_size {size} is too small for {by}: each takes at least one example; "
            f"the smallest size that fits: batch_size={parts}"
        )
    return f"batch_size {size} is not divisible by {by}; the nearest sizes that are: {nearest_multiples(size, parts)}"

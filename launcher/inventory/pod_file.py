"""Read a pod file; pod_configs/ has examples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..pod.container import Container
from ..pod.pod import Host, Ssh
from ..yamlfile.mistakes import Row, describe_mistakes
from ..yamlfile.near import near_files
from ..yamlfile.yaml_file import read_mapping
from .base import INVENTORIES, Listing
from .pod_schema import PodFile


@dataclass(frozen=True)
class ParsedPodFile:
    """The valid part of a pod file, with the mistakes in the rest."""

    path: Path
    file: PodFile
    """Values of the file; a key with a mistake has its default."""
    lines: Mapping[str, int]
    """Line of each dotted key."""
    mistakes: tuple[Row, ...] = ()
    broken: frozenset[str] = frozenset()
    """Top-level keys that contain a mistake."""

    @property
    def title(self) -> str:
        return f"pod file {self.path}"

    @property
    def inventories(self) -> tuple[str, ...]:
        """Return the keys that name the hosts. More than one is a mistake."""
        return tuple(n for n, i in INVENTORIES.items() if i.is_key and getattr(self.file, n) is not None)

    @property
    def inventory(self) -> str | None:
        """Return the key that names the hosts; None if the file names none."""
        return next(iter(self.inventories), None)

    @cached_property
    def listing(self) -> Listing:
        """Return the hosts that the file names. Raises UserError if a service must be asked for them, and that fails."""
        name = self.inventory
        return Listing(()) if name is None else INVENTORIES[name].from_key(getattr(self.file, name))

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Return the hosts of the file. Raises UserError, as `listing` does."""
        return self.listing.hosts

    @property
    def spares(self) -> tuple[Host, ...]:
        """Return the spare hosts of the file."""
        return tuple(host for entry in self.file.spares for host in entry.hosts())

    @property
    def ssh(self) -> Ssh:
        section = self.file.ssh
        return Ssh(
            user=section.user,
            port=section.port,
            key=self.at(section.key),
            jump=section.jump,
            known_hosts=self.at(section.known_hosts),
            host_keys=section.host_keys,
            config=self.at(section.config),
        )

    @property
    def container(self) -> Container | None:
        section = self.file.container
        return None if section is None else Container(**section.model_dump())

    def at(self, path: Path | None) -> Path | None:
        """Return a path of the file as an absolute path; relative ones are relative to the folder of the pod file."""
        return None if path is None else (self.path.expanduser().absolute().parent / path)


def read_pod_file(path: Path) -> ParsedPodFile:
    """Read a pod file. Mistakes in its values are part of the result.

    Raises:
        UserError: the file is not a YAML mapping.
    """
    values, lines = read_mapping(
        _expanded(path),
        f"pod file {path}",
        "it",
        instead=_instead,
        start="pod_configs/ has examples, and `podrun init` writes one",
    )
    return describe(path, values, lines)


def describe(path: Path, values: dict[str, Any], lines: Mapping[str, int]) -> ParsedPodFile:
    """Validate the values of a pod file at `path`. Mistakes are part of the result."""
    try:
        return ParsedPodFile(path, PodFile.model_validate(values), lines)
    except ValidationError as invalid:
        errors = invalid.errors()
    broken = frozenset(str(error["loc"][0]) for error in errors)
    rest = {key: value for key, value in values.items() if isinstance(key, str) and key not in broken}
    rows = describe_mistakes(PodFile, errors, lines)
    return ParsedPodFile(path, PodFile.model_validate(rest), lines, tuple(rows), broken)


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # no such user; opening the unexpanded path fails as well
        return path


def _instead(path: Path) -> str:
    """Return what to do if the pod file cannot be read: names files with similar names, or the examples."""
    return near_files(path) or "pod_configs/ has examples, and `podrun init` writes one"

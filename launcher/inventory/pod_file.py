"""A pod described in a file: see pod_configs/."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..pod.pod import Host, Ssh
from ..yamlfile.mistakes import Row, describe_mistakes
from ..yamlfile.near import near_files
from ..yamlfile.yaml_file import read_mapping
from .pod_schema import PodFile


@dataclass(frozen=True)
class Described:
    """A pod file as far as it could be read."""

    path: Path
    file: PodFile
    """What the file says; keys with a mistake have their default here."""
    lines: Mapping[str, int]
    """The line of each dotted key."""
    mistakes: tuple[Row, ...] = ()
    broken: frozenset[str] = frozenset()
    """The keys of the file that have a mistake in them."""

    @property
    def title(self) -> str:
        return f"pod file {self.path}"

    @property
    def hosts(self) -> tuple[Host, ...]:
        return tuple(host for entry in self.file.hosts or () for host in entry.hosts())

    @property
    def ssh(self) -> Ssh:
        said = self.file.ssh
        return Ssh(
            user=said.user,
            port=said.port,
            key=self.at(said.key),
            jump=said.jump,
            known_hosts=self.at(said.known_hosts),
            host_keys=said.host_keys,
            config=self.at(said.config),
        )

    def at(self, path: Path | None) -> Path | None:
        """A path of the file, seen from here: those that are not absolute are relative to the pod file."""
        return None if path is None else (self.path.expanduser().absolute().parent / path)


def read_pod_file(path: Path) -> Described:
    """Raises UserError if it is not a file of `key: value` lines; mistakes in keys and values are in the result."""
    values, lines = read_mapping(
        _expanded(path),
        f"pod file {path}",
        "it",
        instead=_instead,
        start="pod_configs/ has examples, and `podrun init` writes one",
    )
    return describe(path, values, lines)


def describe(path: Path, values: dict[str, Any], lines: Mapping[str, int]) -> Described:
    """What the values of a pod file at `path` say, and the mistakes in them."""
    try:
        return Described(path, PodFile.model_validate(values), lines)
    except ValidationError as invalid:
        errors = invalid.errors()
    broken = frozenset(str(error["loc"][0]) for error in errors)
    rest = {key: value for key, value in values.items() if isinstance(key, str) and key not in broken}
    rows = describe_mistakes(PodFile, errors, lines)
    return Described(path, PodFile.model_validate(rest), lines, tuple(rows), broken)


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # no such user: it will not be found under this name either
        return path


def _instead(path: Path) -> str:
    """What the user may have meant by a file that cannot be read."""
    return near_files(path) or "pod_configs/ has examples, and `podrun init` writes one"

"""The schema of a pod file: the type of each key. Checks between keys are in pod_checks.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from podrun.runtime.config import Section, Variable
from podrun.runtime.contract import UserError

from ..agent.base.python_version import KNOWN, is_malformed
from ..pod.container import ENGINES
from ..pod.pod import Host
from ..pod.ranges import LIMIT, count, expand, split_hosts
from ..pod.slices import parse_slice
from ..pod.traits import TRAITS
from ..yamlfile.mistakes import SECRET

_JUMP = re.compile(r"([^@\s:,/-][^@\s:,/]*@)?([^@\s:,/\[\]-][^@\s:,/\[\]]*|\[[0-9A-Fa-f:.]+\])(:\d{1,5})?")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
_PORTS = re.compile(r"(\d+)\s*-\s*(\d+)")


def _slice(name: str) -> str:
    try:
        return parse_slice(name).name
    except UserError as error:
        raise ValueError(str(error).replace("\n", "; ")) from None


def _range(text: str) -> str:
    expand(text)
    return text


def _hosts(value: Any) -> Any:
    """Convert hosts: accept a list of them, or one text of hosts and ranges."""
    if isinstance(value, str):
        value = split_hosts(value)
    if not isinstance(value, (list, tuple)):
        raise ValueError("must be a list of hosts, or one text such as tpu-[0-3]")
    if sum(map(_count, value)) > LIMIT:  # checked before the names are built
        raise ValueError(f"stand for more than {LIMIT} hosts together, which is the limit; shorten the ranges")
    return value


def _count(entry: Any) -> int:
    """Return the number of hosts in an entry: the largest number among its name and addresses."""
    texts = entry.values() if isinstance(entry, dict) else [entry]
    return max((count(text) for text in texts if isinstance(text, str)), default=1)


def _entry(value: Any) -> Any:
    """Convert a host: accept a mapping, or a text as `{name: text}`. Checks ranges here: errors then name the entry."""
    if isinstance(value, str):
        return {"name": _range(value)}
    if isinstance(value, dict):
        return value
    raise ValueError("must be the name or address of a host (in quotes if it looks like a number), or {name, address}")


def _on_the_hosts(path: str) -> str:
    if not path.startswith(("/", "~/")):
        raise ValueError("must be a path on the hosts that begins with / or ~/")
    return path


def _workdir(path: str) -> str:
    """Accept a path on the hosts. A bucket is refused: there podrun could not see that a run belongs to another project."""
    if "://" in path:
        raise ValueError(
            "must be a folder on the hosts; a bucket is given for each job: --workdir gs://BUCKET/PATH, or launch.workdir in "
            "its train.yaml"
        )
    return _on_the_hosts(path)


def _python(path: str) -> str:
    if not path.strip():
        raise ValueError('must be the name or path of a Python 3.11+ on the hosts, or a version, as "3.12" in quotes')
    if is_malformed(path):
        raise ValueError(
            f"is no version of Python that podrun brings ({KNOWN}); write 3.12 or 3.12.4, or the path of an interpreter"
        )
    return _on_the_hosts(path) if "/" in path else path


def _image(text: str) -> str:
    if not text.strip() or text.startswith("-"):
        raise ValueError("must be a name or path")
    return text


def _mount(text: str) -> str:
    """Accept PATH, or PATH:PATH_IN_CONTAINER[:FLAGS]. Rejects commas, by which engines separate mounts."""
    source, _, inside = text.partition(":")
    inside = inside.partition(":")[0]
    if not source.startswith(("/", "~/")) or (inside and not inside.startswith("/")) or "," in text:
        raise ValueError("must be a path on the hosts, or PATH:PATH_IN_CONTAINER, each with / in front, without commas")
    return text


def _option(text: str) -> str:
    if not text.startswith("-"):
        raise ValueError("must be an option that begins with -; write its value with =, as in --overlay=FILE")
    return text


def _user(name: str) -> str:
    if not re.fullmatch(r"[^\s@:/-][^\s@:/]*", name):
        raise ValueError("must be the name of a user on the hosts")
    return name


def _jump(text: str) -> str:
    if not _JUMP.fullmatch(text):
        raise ValueError("must be HOST, USER@HOST or USER@HOST:PORT")
    return text


def _local_path(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise ValueError(str(error).rstrip(".")) from None


def _texts(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _secrets(value: Any) -> Any:
    """Accept a list of names. Messages do not show a wrong value, because it may be a secret."""
    names = _texts(value)
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise PydanticCustomError(SECRET, "must be a list of names; their values belong in secrets_file")
    return names


def _secret(name: str) -> str:
    if not _VARIABLE.fullmatch(name):
        raise PydanticCustomError(
            SECRET, "must be the name of an environment variable; its value belongs in secrets_file"
        )
    return name


def _ports(value: Any) -> Any:
    if isinstance(value, str) and (match := _PORTS.fullmatch(value.strip())):
        value = [int(match[1]), int(match[2])]
    if not (isinstance(value, list) and len(value) == 2 and all(type(port) is int for port in value)):
        raise ValueError("must be the first and last port, for example 41000-41999")
    low, high = value
    if not 1024 <= low <= 65535 or not 1024 <= high <= 65535:
        raise ValueError("must be ports from 1024 to 65535")
    if low > high:
        raise ValueError(f"runs backwards; write {high}-{low}")
    return value


SliceName = Annotated[str, AfterValidator(_slice)]
HostRange = Annotated[str, AfterValidator(_range)]
LocalPath = Annotated[Path, AfterValidator(_local_path)]
HostPath = Annotated[str, AfterValidator(_on_the_hosts)]
Texts = BeforeValidator(_texts)


if TYPE_CHECKING:
    EngineName = str
    TransportName = str
else:
    EngineName = Literal[tuple(ENGINES)]
    TransportName = Literal[tuple(name for name, traits in TRAITS.items() if traits.in_pod_file)]


class HostEntry(Section):
    """One host, or several if it contains ranges."""

    name: HostRange = Field(description="Name in messages and logs: tpu-0, or tpu-[0-3] for four hosts.")
    address: HostRange | None = Field(None, description="Address for this machine. Default: the name.")
    internal: HostRange | None = Field(None, description="Address for the other hosts.")

    @model_validator(mode="after")
    def _check_lengths(self) -> HostEntry:
        self.hosts()
        return self

    def hosts(self) -> list[Host]:
        """Return the hosts. Raises ValueError if name, address and internal name different numbers of hosts."""
        names = expand(self.name)
        addresses = expand(self.address) if self.address else names
        internals = expand(self.internal) if self.internal else [None] * len(names)
        for key, values in (("address", addresses), ("internal", internals)):
            if len(values) != len(names):
                raise ValueError(f"name has {len(names)} hosts, but {key} has {len(values)}; write equally many")
        return [Host(*host) for host in zip(names, addresses, internals, strict=True)]


HostEntries = Annotated[tuple[Annotated[HostEntry, BeforeValidator(_entry)], ...], BeforeValidator(_hosts)]


class SshSection(Section):
    """SSH settings. Values that are not given come from your SSH configuration."""

    user: Annotated[str, AfterValidator(_user)] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    key: LocalPath | None = Field(None, description="Private key.")
    jump: Annotated[str, AfterValidator(_jump)] | None = Field(None, description="Jump host: USER@HOST:PORT.")
    known_hosts: LocalPath | None = Field(None, description="Instead of ~/.ssh/known_hosts.")
    host_keys: Literal["strict", "accept-new"] = Field(
        "strict", description="accept-new trusts and records the key of an unknown host."
    )
    config: LocalPath | None = Field(None, description="Instead of ~/.ssh/config.")


class ContainerSection(Section):
    """The image that the workers run in."""

    engine: EngineName = Field(description="docker, podman, apptainer, singularity; or pyxis, a plug-in of SLURM.")
    image: Annotated[str, AfterValidator(_image)] = Field(
        description="Name of an image, a file or folder on the hosts, or a URL."
    )
    python: Annotated[str, AfterValidator(_image)] = Field("python3", description="Interpreter in the image.")
    mounts: Annotated[tuple[Annotated[str, AfterValidator(_mount)], ...], Texts] = Field(
        (), description="Paths of the hosts to mount: PATH, or PATH:PATH_IN_CONTAINER[:FLAGS]."
    )
    options: Annotated[tuple[Annotated[str, AfterValidator(_option)], ...], Texts] = Field(
        (), description="Further options of the engine, passed on unchanged."
    )


class PodFile(Section):
    """The hosts of a pod, and their settings."""

    slice: SliceName | None = Field(None, description="As --slice: v3-32, gpu-2x8, cpu-2x4.")
    transport: TransportName | None = Field(None, description="local: processes on this machine.")
    hosts: HostEntries | None = None
    spares: HostEntries = Field((), description="Hosts that replace those that are lost or not ready.")
    min_hosts: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Fewest hosts with which a restart may continue if others are lost."
    )
    exclude: Literal["bad"] | None = Field(
        None,
        description="bad: leave out hosts that have failed in earlier runs (`podrun hosts`), if a run can do without.",
    )
    ssh: SshSection = SshSection()
    home: HostPath = Field("~/.podrun", description="podrun's folder on the hosts.")
    python: Annotated[str, AfterValidator(_python)] | None = Field(
        None, description="Interpreter on the hosts, or a version in quotes, which podrun brings where it is missing."
    )
    container: ContainerSection | None = Field(None, description="The image that the workers run in.")
    workdir: Annotated[str, AfterValidator(_workdir)] | None = Field(
        None, description="Folder of the results, one folder in it for each run; on the first host if it is not shared."
    )
    env: dict[Variable, str] = Field(default={}, description="Environment variables of the workers.")
    secrets: Annotated[tuple[Annotated[str, AfterValidator(_secret)], ...], BeforeValidator(_secrets)] = Field(
        (), description="Names of variables whose values are in your environment or in secrets_file."
    )
    secrets_file: LocalPath | None = Field(None, description="Lines of NAME=VALUE; chmod 600.")
    setup: Annotated[tuple[str, ...], Texts] = Field((), description="Shell commands that prepare a host.")
    requirements: LocalPath | None = Field(None, description="A requirements.txt for the workers.")
    offline: bool = Field(
        False,
        description="The hosts reach no package index: your machine downloads the packages of `requirements` and sends them.",
    )
    ports: Annotated[tuple[int, int], BeforeValidator(_ports)] | None = Field(
        None, description="Ports that the coordinator may use: 41000-41999."
    )

"""A pod described in a file: see pod_configs/."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from podrun.runtime.contract import UserError

_KEYS = ("slice", "transport")


@dataclass(frozen=True)
class PodFile:
    """What a pod file says. `transport` is how the hosts are reached: `local` means this machine."""

    slice: str
    transport: str


def read_pod_file(path: Path) -> PodFile:
    """Raises UserError, with what a pod file looks like, for anything else."""
    try:
        values = yaml.safe_load(path.expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"pod file {path}: cannot read it: {error.strerror}; pod_configs/ has examples") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"pod file {path}: not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(values, dict) or "slice" not in values:
        raise UserError(f"pod file {path}: it has no `slice:`; write for example `slice: v3-32` and `transport: local`")
    unknown = sorted(str(key) for key in values.keys() - set(_KEYS))
    if unknown:
        raise UserError(f"pod file {path}: unknown keys {', '.join(unknown)}; allowed: {', '.join(_KEYS)}")
    transport = values.get("transport", "local")
    if transport != "local":
        raise UserError(
            f"pod file {path}: transport {transport!r} is not one of: local (processes on this machine); "
            "this version of podrun reaches no hosts over the network yet"
        )
    return PodFile(str(values["slice"]), transport)

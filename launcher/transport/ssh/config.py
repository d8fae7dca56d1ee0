"""Read the user's ssh_config for fabric."""

from __future__ import annotations

import glob
import re
from pathlib import Path

from fabric import Config
from paramiko import SSHConfig
from paramiko.ssh_exception import ConfigParseError

from podrun.runtime.contract import UserError

_HOME = Path("~/.ssh")
_SYSTEM = Path("/etc/ssh")
_DEPTH = 16  # maximum depth of Includes, as in OpenSSH


def read_ssh_config(path: Path | None) -> Config:
    """Return the Config for all connections, read from `path`; None: from the files that ssh reads. Raises UserError.

    Fabric's own settings (fabric.yml, FABRIC_*) are ignored.
    """
    if path is not None and not path.expanduser().is_file():
        raise UserError(f"ssh: config: there is no file {path}")
    config = SSHConfig()
    for name in (_HOME / "config", _SYSTEM / "ssh_config") if path is None else (path,):
        folder = _SYSTEM if name.parent == _SYSTEM else _HOME
        file = name.expanduser()
        try:
            config.parse(_lines(file, folder))
        except (ConfigParseError, OSError, UnicodeDecodeError) as error:
            if path is None and isinstance(error, FileNotFoundError):
                continue
            raise UserError(f"ssh_config {file}: {error}") from None
    return Config(ssh_config=config, lazy=True)


def _lines(path: Path, folder: Path, depth: int = 0) -> list[str]:
    """Return the lines of a file and of the files that it includes, because paramiko ignores Include.

    `folder`: folder of relative paths in an Include.
    """
    lines, block = [], "Host *"
    for line in path.read_text().splitlines():
        keyword, *rest = re.split(r"[\s=]+", line.strip(), maxsplit=1)
        if keyword.lower() in ("host", "match"):
            block = line
        if keyword.lower() != "include" or depth >= _DEPTH:
            lines.append(line)
            continue
        for pattern in " ".join(rest).split():
            for name in sorted(glob.glob(str(folder.expanduser() / Path(pattern.strip('"')).expanduser()))):
                if Path(name).is_file():
                    lines += [*_lines(Path(name), folder, depth + 1), block]
    return lines

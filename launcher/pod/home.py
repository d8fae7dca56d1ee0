"""Find podrun's folder for run directories, and the source that podrun was installed from."""

from __future__ import annotations

import json
import os
import shlex
import time
from pathlib import Path
from urllib.parse import unquote, urlsplit

from podrun.runtime.contract import UserError

from ..agent.base.private import UnsafeError, private_path


def podrun_home() -> Path:
    """Return the folder of run directories: $PODRUN_HOME, or ~/.podrun."""
    try:
        return Path(os.environ.get("PODRUN_HOME") or "~/.podrun").expanduser().absolute()
    except RuntimeError:
        raise UserError("there is no home directory for podrun's files; set PODRUN_HOME to a folder") from None


def private_folder(*below: str) -> Path:
    """Create a folder in `podrun_home()` that only this user can access.

    Raises:
        UserError: another user could change the folder.
        OSError: the folder could not be created.
    """
    try:
        return Path(private_path(str(podrun_home()), *below))
    except UnsafeError as error:
        raise UserError(str(error)) from None


def private(path: str, flags: int) -> int:
    """Open a file for `open(opener=private)`; a new file gets mode 0600."""
    return os.open(path, flags, 0o600)


def age_of(path: Path) -> float | None:
    """Return the seconds since a file was written or used; None if it does not exist."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return None


def install_command(python: str) -> str:
    """Return the command that installs this podrun for another interpreter.

    It installs from the source folder, because an index may offer another version.
    """
    folder = _source()
    if folder is None:
        return f"{shlex.quote(python)} -m pip install . (in podrun's folder)"
    return f"{shlex.quote(python)} -m pip install {shlex.quote(str(folder))}"


def _source() -> Path | None:
    """Return the folder that podrun was installed from, if it still exists."""
    from importlib.metadata import PackageNotFoundError, distribution  # takes long to import

    try:
        url = urlsplit(json.loads(distribution("podrun").read_text("direct_url.json") or "{}").get("url", ""))
    except (PackageNotFoundError, ValueError):
        return None
    folder = Path(unquote(url.path))
    return folder if url.scheme == "file" and (folder / "setup.py").is_file() else None

"""Projects with git, and what travels of them."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

from podrun.launcher.staging.bundle import Bundle
from podrun.launcher.staging.bundles import project_bundle


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"this is {name}")


def git(folder: Path, *args: str) -> None:
    who = ["-c", "user.name=n", "-c", "user.email=e", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *who, *args], cwd=folder, check=True, capture_output=True)


def members(bundle: Bundle) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(bundle.data), errors="surrogateescape") as archive:
        return {member.name: member for member in archive}


def names(folder: Path) -> set[str]:
    return set(members(project_bundle(folder)[0]))

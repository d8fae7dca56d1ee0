"""Records, logs and files that a run leaves."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from .pod import PodSandbox


def log_of(run_directory: Path, host: str) -> list[str]:
    return (run_directory / "logs" / f"{host}.log").read_text().splitlines()


def newest(pod: PodSandbox) -> Path:
    return max((pod.path / "home" / "runs").iterdir(), key=lambda p: p.name)


def events_of(pod: PodSandbox) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (newest(pod) / "events.jsonl").read_text().splitlines()]


def digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a folder that has a name without a dot in front."""
    return {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not (name := path.relative_to(folder).as_posix()).startswith(".")
    }

"""A child of the test that runs code and is surely ended."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def process(code: str, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """Runs code that writes a byte when it is so far; ended after the block."""
    child = subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE)
    assert child.stdout is not None
    try:
        assert child.stdout.read(1) == b"1"
        yield child
    finally:
        child.kill()
        child.wait()


OPEN = "import sys, time; f = open(sys.argv[1]); print(1, end='', flush=True); time.sleep(60)"


def worker_spec(**changes: Any) -> dict[str, Any]:
    spec = {"process": 0, "argv": ["true"], "env": {}, "path": {}, "threads": None, "cwd": ".", "output": "0.out"}
    env = {"PODRUN_WORKDIR": "~/w", **changes.pop("env", {})}
    return {**spec, "events": "0.events", "beat": "0.beat", "profile": "0.profile", "env": env, **changes}

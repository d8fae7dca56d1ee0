"""A command of the agent refuses a malformed request by name, without a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from podrun.launcher.agent.main import MARK
from podrun.launcher.plan.agent_file import agent_file

START = "import sys; sys.path.insert(0, sys.argv[1]); from podrun_agent.main import main; main(sys.argv[2:])"
PREPARE = (
    b'{"home": "~/x", "python": "python3", "container": null, "requirements": null, "setup": [], "bundles": ["b"], '
    b'"env": {}, "project": null, "subfolder": "", "facts": null}\n'
)
CLEAN = b'{"home": "~", "host": "h", "older_than": "now", "run": null, "remove": null}'
BRING = b'{"home": "~", "set": "s", "secret": "no", "names": [], "files": [], "internal": null, "ports": null}'


def refusal(tmp_path: Path, command: str, lines: bytes) -> str:
    """Return what the command says on stderr about what it reads, and check that it fails."""
    file = tmp_path / agent_file()[0]
    file.write_bytes(agent_file()[1])
    argv = [sys.executable, "-c", START, str(file), *command.split()]
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(argv, input=lines, capture_output=True, timeout=60, env=env)
    assert (done.returncode, done.stdout[: len(MARK)]) == (1, MARK)
    return done.stderr.decode().strip()


@pytest.mark.parametrize(
    ("command", "lines", "why"),
    [
        ("facts", b'{"env": 3}', "env is 3, expected an object"),
        ("execute", b"{}", "argv is missing"),
        ("execute", b'{"argv": [], "env": {}, "cwd": "~"}', "argv is a list, expected a list of 1 or more"),
        ("profile", b'{"dir": "~"}', "order is missing"),
        ("clean", CLEAN, "older_than is 'now', expected a finite number"),
        ("checkpoints", b"[]", "a list, expected an object"),
        ("bucket", b"nonsense", "not JSON: 'nonsense'"),
        ("prepare", b"{}", "home is missing"),
        ("run RUN", b'{"type": "prepare", "python": null}\n{}', "home is missing"),
        ("prepare", PREPARE + b'{"bundle": "b", "bytes": -1}', "bytes is -1, expected an integer, 0 or more"),
        ("files", b'{"type": "list"}', "folder is missing"),
        ("files", b'{"folder": "~"}\n{"type": "put"}', "unknown type 'put'"),
        ("files", b'{"folder": "~"}\n{"type": "get"}', "path is missing"),
        ("bring", BRING, "secret is not hexadecimal digits"),
        ("rest .", b'{"type": "ping"}', "unknown type 'ping'"),
        ("rest .", b'{"type": "attach", "next": 0}', "attach: offsets is missing"),
    ],
)
def test_a_malformed_request_is_refused(tmp_path: Path, command: str, lines: bytes, why: str) -> None:
    assert refusal(tmp_path, command, lines + b"\n") == f"malformed request: {why}"

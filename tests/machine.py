"""A network namespace for runs with `--local`: a machine has one run at a time, and which one is known by its network."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_UP = """
import fcntl, os, socket, struct, sys
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
os.execvp(sys.argv[1], sys.argv[1:])
"""


@contextmanager
def own_network() -> Iterator[list[str]]:
    """Yield what runs a command in a network of its own, put before it; the command keeps its pid. Raises RuntimeError."""
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    command = ["unshare", "--net", *as_root, sys.executable, "-c", _UP, "sh", "-c", "echo up; exec cat"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as holder:
        assert holder.stdin and holder.stdout and holder.stderr
        if holder.stdout.readline() != "up\n":
            raise RuntimeError(f"no network of its own: {holder.stderr.read().strip()[-200:]}")
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        try:
            yield ["nsenter", f"--target={holder.pid}", "--net", *user]
        finally:
            holder.stdin.close()

"""Pythons for hosts to install, as servers and mirrors offer them: archives of versions on this machine, served over HTTP."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.base.from_agent import WheelTarget
from podrun.launcher.staging.managed_python import fetch_python
from podrun.runtime.contract import UserError

from .pythons import other_python

HERE: WheelTarget = {"version": "3.11.0", "implementation": "cpython", "machine": os.uname().machine, "libc": "2.36"}
_LEFT_OUT = {"site-packages", "__pycache__", "test", "idlelib", "tkinter", "turtledemo", "lib2to3"}


def keep_uv(home: Path) -> None:
    """Have uv among what a launcher with this PODRUN_HOME keeps; skip the test where no index has it."""
    before = os.environ.get("PODRUN_HOME")
    os.environ["PODRUN_HOME"] = str(home)
    try:
        fetch_python("3.12", HERE, archive=False, tell=lambda text: None)
    except UserError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))
    finally:
        if before is None:
            del os.environ["PODRUN_HOME"]
        else:
            os.environ["PODRUN_HOME"] = before


@dataclass
class Mirror:
    """A folder with the archive of one Python, and what uv must know of it."""

    folder: Path
    version: str
    """Such as 3.12.1."""
    digest: str
    name: str

    @property
    def archive(self) -> Path:
        return self.folder / self.name

    def write_list(self, server: str, **changed: Any) -> str:
        """Write the list of Pythons of a server, and return its URL."""
        machine = HERE["machine"]
        major, minor, patch = map(int, self.version.split("."))
        about = {
            "name": "cpython",
            "arch": {"family": machine, "variant": None},
            "os": "linux",
            "libc": "gnu",
            "major": major,
            "minor": minor,
            "patch": patch,
            "prerelease": "",
            "variant": None,
            "build": "1",
            "url": f"{server}/{self.name}",
            "sha256": self.digest,
            **changed,
        }
        key = f"cpython-{self.version}-linux-{machine}-gnu"
        (self.folder / "list.json").write_text(json.dumps({key: about}))
        return f"{server}/list.json"


def make_mirror(folder: Path, minor: str) -> Mirror:
    """Pack a Python of this machine as a publisher does; skip the test where there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    prefix = Path(other_python(minor)).resolve().parents[1]
    version = prefix.name
    path = folder / f"cpython-{version}.tar.gz"

    def fit(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if _LEFT_OUT.intersection(info.name.split("/")) or info.name.endswith(".a") else info

    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name in ("bin", "include", "lib"):
            archive.add(prefix / name, f"python/{name}", filter=fit)
    return Mirror(folder, version, hashlib.sha256(path.read_bytes()).hexdigest(), path.name)


@dataclass
class Server:
    """An HTTP server of a folder."""

    url: str
    asked: list[str] = field(default_factory=list)
    """Paths that were asked for."""
    open: threading.Event = field(default_factory=threading.Event)
    """While it is not set, archives are not sent."""

    @property
    def archives(self) -> int:
        """Return how many archives were asked for."""
        return sum(path.endswith(".tar.gz") for path in self.asked)


@contextmanager
def served(folder: Path, address: str = "127.0.0.1") -> Iterator[Server]:
    """Serve a folder over HTTP, in the network in which this is called."""
    server = Server("")
    server.open.set()

    class Handler(SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            server.asked.append(self.path)
            if self.path.endswith(".tar.gz"):
                server.open.wait(60)
            super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((address, 0), partial(Handler, directory=str(folder))) as http:
        http.daemon_threads = True
        threading.Thread(target=http.serve_forever, daemon=True).start()
        server.url = f"http://{address}:{http.server_port}"
        try:
            yield server
        finally:
            server.open.set()
            http.shutdown()


def stock_programs(folder: Path, python: str) -> Path:
    """Make a folder for PATH with the programs of this machine, and with `python` as its only Python."""
    folder.mkdir(parents=True)
    for source in ("/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        for path in Path(source).iterdir():
            if not path.name.startswith(("python", "pip", "uv")) and not (folder / path.name).exists():
                (folder / path.name).symlink_to(path)
    for name in ("python3", f"python{'.'.join(Path(python).resolve().parents[1].name.split('.')[:2])}"):
        (folder / name).symlink_to(python)
    return folder


def copy_kept(source: Path, home: Path) -> None:
    """Give a launcher's home what another one keeps."""
    shutil.copytree(source / "wheels", home / "wheels", copy_function=os.link)
    os.chmod(home, 0o700)

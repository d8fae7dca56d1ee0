"""`podrun data`: data sets from a real web server, on this machine."""

from __future__ import annotations

import hashlib
import re
import resource
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from podrun.launcher.datasets import fetch
from podrun.launcher.datasets.table import DATA_SETS, INCLUDED, RemoteFile
from podrun.launcher.request.train_file import read_config
from podrun.runtime.config import Config, check_files
from podrun.runtime.config.files import IDX_FILES

from .conftest import Podrun

TEXT = b"Speak, speak.\n" * 20_000


@dataclass
class Web:
    """A web server, and the files that it has."""

    port: int
    files: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    promised: int = 0
    """Bytes that it says it will send beyond those it does."""

    def offer(self, monkeypatch: pytest.MonkeyPatch, name: str, **contents: bytes) -> None:
        """Make the server that of a data set, with other files under the names of its own."""
        data = DATA_SETS[name]
        files = []
        for file in data.files:
            content = contents.get(file.name.partition("-")[0].partition(".")[0], file.name.encode())
            self.files[file.name] = content
            algorithm = file.digest.partition(":")[0]
            digest = hashlib.new(algorithm, content).hexdigest()
            files.append(RemoteFile(file.name, len(content), f"{algorithm}:{digest}"))
        base = f"http://127.0.0.1:{self.port}/"
        monkeypatch.setitem(DATA_SETS, name, replace(data, base=base, files=tuple(files)))


@pytest.fixture
def web() -> Iterator[Web]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.lstrip("/")
            here.asked.append(name)
            content = here.files.get(name)
            self.send_response(200 if content is not None else 404)
            self.send_header("Content-Length", str(len(content or b"") + here.promised))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    here = Web(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield here
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder: an empty one. No proxy stands before the server on this machine."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return folder


def test_a_text(podrun: Podrun, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written at the end can be copied into a train.yaml. Again, nothing is asked of the server."""
    web.offer(monkeypatch, "tinyshakespeare", input=TEXT)
    done = podrun("data", "tinyshakespeare", "--to", "my texts")
    assert (done.code, done.err) == (0, "")
    assert [path.name for path in Path("my texts").iterdir()] == ["input.txt"]
    assert Path("my texts/input.txt").read_bytes() == TEXT
    line = done.out.splitlines()[-1].strip()
    assert line == 'data: {name: text, path: "my texts/input.txt"}'
    Path("train.yaml").write_text(f"steps: 1\nbatch_size: 1\n{line}\n")
    check_files(read_config(Path("train.yaml")))
    again = podrun("data", "tinyshakespeare", "--to", "my texts")
    assert (again.code, web.asked) == (0, ["input.txt"])
    assert "is there already" in again.out


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_images(podrun: Podrun, web: Web, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The four files of MNIST, where data idx looks for them; after a failure only what is missing."""
    web.offer(monkeypatch, name)
    missing = web.files.pop("t10k-labels-idx1-ubyte.gz")
    done = podrun("data", name)
    assert done.code == 69
    assert "127.0.0.1: answers 404 Not Found for" in done.err and "t10k-labels-idx1-ubyte.gz" in done.err
    web.files["t10k-labels-idx1-ubyte.gz"] = missing
    web.asked.clear()
    done = podrun("data", name)
    assert (done.code, web.asked) == (0, ["t10k-labels-idx1-ubyte.gz"])
    assert sorted(path.name for path in Path(name).iterdir()) == sorted(f"{file}.gz" for file in IDX_FILES)
    data = {"name": "idx", "path": name}
    check_files(Config.model_validate({"task": "classification", "data": data, "steps": 1, "batch_size": 1}))
    assert done.out.splitlines()[-1].strip() == f"data: {{name: idx, path: {name}}}"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            TEXT.replace(b"S", b"T"),
            r"is not the file that it was: its digest is sha256:\w+, expected sha256:\w+; it was",
        ),
        (TEXT + b"!", f"is not the file that it was: it has more than {len(TEXT)} bytes; it was removed"),
    ],
    ids=["other bytes", "more bytes"],
)
def test_another_file(
    podrun: Podrun, web: Web, monkeypatch: pytest.MonkeyPatch, folder: Path, content: bytes, message: str
) -> None:
    """It is removed, and said to be."""
    web.offer(monkeypatch, "tinyshakespeare", input=TEXT)
    web.files["input.txt"] = content
    done = podrun("data", "tinyshakespeare")
    assert done.code == 1
    assert re.search(message, done.err), done.err
    assert [*folder.rglob("*.*")] == []


@pytest.mark.parametrize("promised", [0, 5], ids=["all that it promised", "less"])
def test_a_connection_that_ends_early(
    podrun: Podrun, web: Web, monkeypatch: pytest.MonkeyPatch, folder: Path, promised: int
) -> None:
    web.offer(monkeypatch, "tinyshakespeare", input=TEXT)
    web.files["input.txt"], web.promised = TEXT[:-5], promised
    done = podrun("data", "tinyshakespeare")
    assert done.code == 69
    url = f"http://127.0.0.1:{web.port}/input.txt"
    assert f"127.0.0.1: has ended the download of {url} after {len(TEXT) - 5} of {len(TEXT)}" in done.err
    assert [*folder.rglob("*.*")] == []


def test_a_server_that_is_not_there(podrun: Podrun, web: Web, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """It refuses, or it never says a word."""
    web.offer(monkeypatch, "tinyshakespeare", input=TEXT)
    monkeypatch.setattr(fetch, "_SILENCE", 0.2)
    with socket.socket() as closed, socket.create_server(("127.0.0.1", 0)) as silent:
        closed.bind(("127.0.0.1", 0))
        servers = {
            f"127.0.0.1:{closed.getsockname()[1]}": "127.0.0.1: cannot be reached for .*: Connection refused; check the",
            f"127.0.0.1:{silent.getsockname()[1]}": "127.0.0.1: .* timed out; .*copy the file here",
        }
        for server, message in servers.items():
            data = replace(DATA_SETS["tinyshakespeare"], base=f"http://{server}/")
            monkeypatch.setitem(DATA_SETS, "tinyshakespeare", data)
            done = podrun("data", "tinyshakespeare")
            assert done.code == 69, server
            assert re.search(message, done.err), done.err
    assert [*folder.iterdir()] == []


def test_a_full_disk(podrun: Podrun, web: Web, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Here, a file that may not grow so large."""
    web.offer(monkeypatch, "tinyshakespeare", input=TEXT)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(TEXT) // 2, hard))
    try:
        done = podrun("data", "tinyshakespeare")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert done.code == 1
    assert re.search(r"cannot write tinyshakespeare/.*: File too large; free some space", done.err), done.err
    assert [*folder.rglob("*.*")] == []


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("minst",), "no data set 'minst'; did you mean mnist"),
        (("--to", "x"), "--to is for a data set"),
        (("tinyshakespeare", "--to", "file"), "cannot write file/input.txt: .*; give a folder that you may write in"),
        (("tinyshakespeare", "--to", "/proc/none"), "cannot write /proc/none/input.txt: No such file or directory"),
        (("tinyshakespeare", "--to", "mine"), "mine/input.txt exists already, and is another file; remove it, or give"),
        (("tinyshakespeare", "--to", "odd"), "cannot read odd/input.txt: Is a directory; remove it"),
    ],
)
def test_mistakes(
    podrun: Podrun, web: Web, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], message: str
) -> None:
    """Nothing of the user's is written over."""
    web.offer(monkeypatch, "tinyshakespeare", input=TEXT)
    Path("file").touch()
    Path("odd/input.txt").mkdir(parents=True)
    Path("mine").mkdir()
    Path("mine/input.txt").write_text("mine")
    done = podrun("data", *args)
    assert done.code == 2
    assert re.search(message, done.err), done.err
    assert Path("mine/input.txt").read_text() == "mine"


def test_what_needs_no_server(podrun: Podrun) -> None:
    """The list has all data sets; some come with podrun's own packages, and are data sources."""
    listed = podrun("data").out
    assert [line.split()[0] for line in listed.splitlines()[: len(DATA_SETS) + len(INCLUDED)]] == [
        *DATA_SETS,
        *INCLUDED,
    ]
    for name in INCLUDED:
        done = podrun("data", name)
        assert (done.code, done.out.splitlines()[-1]) == (0, f"  data: {name}")
        task = {"python_source": "language_model", "sine": "regression"}.get(name, "classification")
        Config.model_validate({"task": task, "data": name, "steps": 1, "batch_size": 1})


def test_the_table() -> None:
    """Find in it what has the form that is looked for."""
    for data in DATA_SETS.values():
        assert re.fullmatch(r"https://[\w.-]+/([\w.-]+/)*", data.base)
        for file in data.files:
            assert re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", file.digest) and file.size > 1000
    for name in ("mnist", "fashion-mnist"):
        assert [file.name for file in DATA_SETS[name].files] == [f"{file}.gz" for file in IDX_FILES]

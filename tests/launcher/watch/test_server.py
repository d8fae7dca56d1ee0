"""Answer whom, and with what: over real connections, on runs that are being recorded."""

from __future__ import annotations

import socket

import pytest

from podrun.launcher.watch.server import WatchServer

from .conftest import LIMIT, Client, LiveRun

NOT_ASCII = b"GET /\xe9\xff/ HTTP/1.1\r\nHost: localhost\r\n\r\n"


def test_it_listens_on_loopback_only(client: Client) -> None:
    """The kernel's own list of listening sockets says so."""
    rows = [line.split() for line in open("/proc/self/net/tcp")][1:]
    port, listening = f"{client.server.port:04X}", "0A"
    assert [row[1] for row in rows if row[3] == listening and row[1].endswith(f":{port}")] == [f"0100007F:{port}"]
    rows6 = [line.split() for line in open("/proc/self/net/tcp6")][1:]
    assert not [row for row in rows6 if row[3] == listening and row[1].endswith(f":{port}")]


@pytest.mark.parametrize("path", ["", "run/{run}", "run/{run}/news", "overlay", "nothing"])
@pytest.mark.parametrize("token", ["", "wrong", "%C3%A9", "%00"])
def test_the_token_is_needed(client: Client, run: LiveRun, path: str, token: str) -> None:
    for method in ("GET", "POST"):
        answer = client.ask(path.format(run=run.directory.run_id), method, token)
        assert answer.status == 403 and answer.text.startswith("podrun watch: this address lacks the token")
    assert client.stopped == []


def test_each_server_has_a_token_of_its_own(client: Client) -> None:
    other = WatchServer(0, print)
    other.server_close()
    assert other.token != client.server.token and len(other.token) >= 32


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(("127.0.0.1", 200), ("localhost", 200), ("127.0.0.1:9", 200), ("localhost:8080", 200)),
        *(
            ("evil.example", 403),
            ("127.0.0.1.evil.example", 403),
            ("evil.example:80", 403),
            ("", 403),
            ("[::1]:1", 403),
        ),
    ],
)
def test_other_names_of_this_machine_are_refused(client: Client, run: LiveRun, host: str, status: int) -> None:
    """A site whose name leads to 127.0.0.1 all of a sudden has no way in, even with the token."""
    answer = client.ask(f"run/{run.directory.run_id}", Host=host)
    assert answer.status == status
    assert status == 200 or answer.text.startswith("podrun watch: this server is only known as 127.0.0.1")


def test_a_page_is_not_kept_and_not_framed(client: Client, run: LiveRun) -> None:
    answer = client.ask(f"run/{run.directory.run_id}")
    assert answer.status == 200 and "<h2>Running</h2>" in answer.text
    assert answer.headers["Cache-Control"] == "no-store" and answer.headers["Referrer-Policy"] == "no-referrer"
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
    assert "Python" not in answer.headers["Server"]


@pytest.mark.parametrize("path", ["run/nowhere", "run/nowhere/news", "run/%2e%2e", "run/..%2f..%2fetc"])
def test_an_unknown_run_is_refused_as_elsewhere(client: Client, run: LiveRun, path: str) -> None:
    answer = client.ask(path)
    assert answer.status == 404 and "there is no run" in answer.text and run.directory.run_id in answer.text


def test_a_run_is_stopped_by_post_only(client: Client, run: LiveRun) -> None:
    path = f"run/{run.directory.run_id}/stop"
    assert client.ask(path).status == 405 and client.stopped == []
    assert client.ask(path, "POST").status == 202
    assert client.stopped == [run.directory.run_id]


TARGETS = (b"foo", b"*", b"http://[", b"//[x/", b"?", b"/?" + b"a=1&" * 5000, b"/%ff%00/run/x", b"http://localhost/x")
MALFORMED = [
    *(b"\x00\xff\r\n\r\n", b"GET / HTTP/1.1\r\n", b"BREW /x HTTP/1.1\r\n\r\n", NOT_ASCII, b"", b"\r\n", b" \r\n\r\n"),
    *(b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n" for target in TARGETS),
    *(b"GET foo\r\n", b"GET foo HTTP/0.9\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET / HTTP/x\r\n\r\n"),
    *(
        b"POST foo HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    ),
    b"GET /" + b"x" * 70000 + b" HTTP/1.1\r\n\r\n",
]
REFUSED = (b"400", b"403", b"414", b"431", b"501", b"505")


def test_a_request_that_is_none_ends_quietly(client: Client, capfd: pytest.CaptureFixture[str]) -> None:
    """Neither it nor a browser that goes away in the middle leaves a word in the terminal; it is refused if it is whole."""
    for request in MALFORMED:
        with socket.create_connection(("127.0.0.1", client.server.port), LIMIT) as connection:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while data := connection.recv(1 << 16):
                answer += data
        status = answer.partition(b"\r\n")[0]
        assert not status.startswith(b"HTTP/") or status[9:12] in REFUSED, (request[:50], status)
    assert capfd.readouterr() == ("", "")

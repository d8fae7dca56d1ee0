"""Serve the pages to browsers on this machine. Every request needs the token of the address."""

from __future__ import annotations

import secrets
import select
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from podrun.runtime.contract import UserError

from ..rundir.runs import find_run
from .feed import Feed
from .pages import Pages

ADDRESS = "127.0.0.1"
_NAMES = {ADDRESS, "localhost"}  # also seen through an SSH tunnel, with any port
_SILENCE = 30.0  # seconds after which an idle connection is closed
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_NO_TOKEN = "podrun watch: this address lacks the token; open the address that `podrun watch` has printed\n"
_NO_REQUEST = "podrun watch: this is not a request that it answers\n"
_WRONG_HOST = "podrun watch: this server is only known as 127.0.0.1 and localhost\n"


class WatchServer(ThreadingHTTPServer):
    """HTTP server of the pages. Its function `stop` ends a run by its id, and raises UserError if that fails."""

    daemon_threads = True

    def __init__(self, port: int, stop: Callable[[str], object]) -> None:
        """Listen on `port` of the loopback address; 0 selects a free port. Raises OSError."""
        self.token = secrets.token_urlsafe(24)
        self.pages = Pages()
        self._stop = stop
        self._stopping: set[str] = set()
        super().__init__((ADDRESS, port), _Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.port}/{self.token}/"

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's version would look up this machine's name

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: the browser disconnected, or a client without the token sent garbage; see `_Handler._answer`."""

    def begin_stop(self, run: str) -> None:
        """Stop the run as `podrun stop` does, in a thread. A failure is shown on the run's page."""
        if run not in self._stopping:
            self._stopping.add(run)
            threading.Thread(target=self._stop_run, args=(run,), name=f"stop {run}", daemon=True).start()

    def _stop_run(self, run: str) -> None:
        try:
            self._stop(run)
        except UserError as error:
            self.pages.of_run(run).tell({"notice": f"The run has not been stopped: {error}"})
        finally:
            self._stopping.discard(run)


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer
    server_version, sys_version = "podrun", ""
    timeout = _SILENCE

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *arguments: Any) -> None:
        """Print nothing: every address contains the token."""

    def _answer(self) -> None:
        try:
            address = urlsplit(self.path)
            token, *words = address.path.removeprefix("/").split("/")
            words = [unquote(word) for word in words]
            query = parse_qs(address.query)
        except ValueError:  # malformed IPv6 brackets, or too many fields
            self._send(HTTPStatus.BAD_REQUEST, _NO_REQUEST)
            return
        if _name(self.headers.get("Host", "")) not in _NAMES:
            self._send(HTTPStatus.FORBIDDEN, _WRONG_HOST)
        elif not secrets.compare_digest(token.encode(errors="replace"), self.server.token.encode()):
            self._send(HTTPStatus.FORBIDDEN, _NO_TOKEN)
        else:
            self._answer_known(words, query)

    def _answer_known(self, words: list[str], query: dict[str, list[str]]) -> None:
        """Answer a request that has the token. An internal error is printed on the terminal."""
        try:
            self._route(self.command, words, query)
        except UserError as error:
            self._send(HTTPStatus.NOT_FOUND, f"podrun: {error}\n")
        except OSError:  # the browser disconnected
            raise
        except Exception as error:
            print(f"podrun: watch: a request failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            raise

    def _route(self, method: str, words: list[str], query: dict[str, list[str]]) -> None:
        pages = self.server.pages
        match method, words:
            case "GET", []:
                self._redirect(f"/{self.server.token}/")
            case "GET", [""]:
                self._page(pages.index)
            case "GET", ["news"]:
                self._send_events(pages.index, query)
            case "GET", ["overlay"]:
                self._page(pages.of_runs(query.get("run", [])))
            case "GET", ["overlay", "news"]:
                self._send_events(pages.of_runs(query.get("run", [])), query)
            case "GET", ["run", name]:
                self._page(pages.of_run(name))
            case "GET", ["run", name, "news"]:
                self._send_events(pages.of_run(name), query)
            case "POST", ["run", name, "stop"]:
                run = find_run(name).run_id
                self.server.begin_stop(run)
                self._send(HTTPStatus.ACCEPTED, "Stopping: the run saves a checkpoint, and ends.\n")
            case _, ["run", _, "stop"]:
                self._send(HTTPStatus.METHOD_NOT_ALLOWED, "podrun watch: a run is stopped by POST\n")
            case _:
                self._send(HTTPStatus.NOT_FOUND, "podrun watch: there is no such page\n")

    def _page(self, feed: Feed) -> None:
        self._send(HTTPStatus.OK, feed.page(), "text/html")

    def _redirect(self, to: str) -> None:
        self._head(HTTPStatus.FOUND, {"Location": to, "Content-Length": "0"})

    def _send_events(self, feed: Feed, query: dict[str, list[str]]) -> None:
        """Send server-sent events until the browser disconnects."""
        after = self.headers.get("Last-Event-ID") or query.get("after", ["0"])[0]
        self._head(HTTPStatus.OK, {"Content-Type": "text/event-stream"})
        for messages in feed.messages(int(after) if after.isdecimal() else 0, self._is_connected):
            self.wfile.write(messages)

    def _is_connected(self) -> bool:
        connection: socket.socket = self.connection
        readable, _, _ = select.select([connection], [], [], 0)
        return not readable or bool(connection.recv(1, socket.MSG_PEEK))

    def _send(self, status: HTTPStatus, body: str | bytes, kind: str = "text/plain") -> None:
        data = body.encode() if isinstance(body, str) else body
        self._head(status, {"Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(data))})
        self.wfile.write(data)

    def _head(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (_HEADERS | headers).items():
            self.send_header(name, value)
        self.end_headers()


def _name(host: str) -> str:
    """Return the host name in a Host header, without the port."""
    return host.rpartition(":")[0] if ":" in host else host

"""An HTTP proxy before a server of buckets, which breaks requests at random, but never those that try it again."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

FAULTS = ("503", "429", "refused", "lost answer", "cut", "slow", "wrong bytes", "expired", "skewed")
"""`expired` and `skewed` are what a server says of credentials and of a clock. `short` is not among them: half of an object's
content, as if that was all, which no library notices."""
_SPARED = (
    3  # requests of an object that are passed on after one that was broken: what asks again asks for its state, too
)
_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}
_CODES = {
    "expired": ("ExpiredToken", "The provided token has expired."),
    "skewed": ("RequestTimeTooSkewed", "too large"),
}


class Faults:
    """Decide what happens to the next requests, of which a share is broken."""

    def __init__(
        self,
        seed: int = 0,
        share: float = 0.0,
        always: str | None = None,
        after: int = 0,
        kinds: tuple[str, ...] = FAULTS,
        methods: tuple[str, ...] = (),
        body: bytes = b"",
    ) -> None:
        """Draw them by `seed` from `kinds`.

        From the request `after` on, answer each, or those of `methods`, with the fault `always`; a status has `body`.
        """
        self._always, self._after = always, after
        self._kinds = kinds
        self._methods = methods
        self.body = body
        self._chance = random.Random(seed)
        self._share = share
        self._spared: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._requests = 0
        self.count: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()
        """Bytes of the contents of objects that were sent, by the end of the object's name."""
        self.broken_after: int | None = None
        """Number of these bytes after which all requests are refused, as if the network was gone."""

    @property
    def lasted(self) -> bool:
        """True if requests have been broken for good."""
        return self._always is not None and self._requests > self._after

    def next(self, path: str, method: str = "") -> str | None:
        """Return the fault of a request; None if it is passed on."""
        with self._lock:
            self._requests += 1
            if self.broken_after is not None and self.sent.total() > self.broken_after:
                return "refused"
            if self._always is not None and self._requests > self._after:
                if self._methods and method not in self._methods:
                    return None
                self.count[self._always] += 1
                return self._always
            if self._spared[path] or self._chance.random() > self._share:
                self._spared[path] = max(0, self._spared[path] - 1)
                return None
            self._spared[path] = _SPARED
            fault = self._chance.choice(self._kinds)
            self.count[fault] += 1
            return fault


@contextlib.contextmanager
def fault_proxy(server: str, faults: Faults) -> Iterator[str]:
    """Yield the URL of a proxy before `server`."""
    address = urlsplit(server).netloc
    one_by_one = threading.Lock()  # moto looks at a condition, and then writes

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = faults.next(urlsplit(self.path).path, self.command)
            if fault is not None and fault.isdigit():
                self._answer(int(fault), [("Retry-After", "1")], faults.body)
                return
            if fault in _CODES:
                self._refuse(*_CODES[fault])
                return
            if fault == "refused":
                self.close_connection = True
                return
            if fault == "slow":
                time.sleep(2)
            if fault == "wrong bytes" and self.command in ("PUT", "POST"):
                body = _changed(body, str(self.headers.get("Content-Type")))
            connection = http.client.HTTPConnection(address, timeout=60)
            with contextlib.closing(connection), one_by_one:
                connection.request(self.command, self.path, body, dict(self.headers.items()))
                answer = connection.getresponse()
                content = answer.read()
            if fault == "lost answer":
                self.close_connection = True
                return
            if fault == "wrong bytes" and self._is_of_object() and answer.status < 300 and content:
                content = _changed(content, "")
            if fault == "short" and self._is_of_object():
                content = content[: len(content) // 2]
            if self.command == "GET" and self._is_of_object():
                faults.sent[unquote(urlsplit(self.path).path).rpartition("/")[2]] += len(content)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
            if fault == "cut" and self.command == "GET":
                content = content[: len(content) // 2]
                self.close_connection = True
            headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP]
            self._answer(answer.status, headers, content, length)

        def _answer(
            self, status: int, headers: list[tuple[str, str]], content: bytes, length: str | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", length or str(len(content)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def _refuse(self, code: str, message: str) -> None:
            """Refuse as GCS does, whose requests bear no time, or as S3."""
            if "/storage/v1/" in self.path or "/download/" in self.path:
                error = {"error": {"code": 401, "message": "Invalid Credentials"}}
                self._answer(401, [("Content-Type", "application/json")], json.dumps(error).encode())
                return
            text = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
            self._answer(400 if code == "ExpiredToken" else 403, [("Content-Type", "application/xml")], text.encode())

        def _is_of_object(self) -> bool:
            """Return whether the answer is the content of an object, and no listing."""
            path, query = urlsplit(self.path).path, urlsplit(self.path).query
            if "/storage/v1/" in path:
                return "alt=media" in query or "/download/" in path
            return self.command == "GET" and path.count("/") > 1 and "list-type" not in query

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Proxy(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """Say nothing of clients that have left, which is what faults make them do."""

    with Proxy(("127.0.0.1", 0), Handler) as proxy:
        proxy.daemon_threads = True
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_address[1]}"
        finally:
            proxy.shutdown()
            thread.join()


def _changed(body: bytes, kind: str) -> bytes:
    """Change the last byte of what is sent, before the end of a body in several parts."""
    boundary = re.search(r'boundary="?([^";]+)', kind)
    at = len(body) - (len(boundary[1]) + 6 if boundary else 1)
    return body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :] if 0 <= at < len(body) else body

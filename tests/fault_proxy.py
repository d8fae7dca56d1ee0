"""An HTTP proxy before a server of buckets, which breaks requests at random, but never two in a row of one object."""

from __future__ import annotations

import contextlib
import http.client
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

FAULTS = ("503", "429", "refused", "lost answer", "slow")
_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive"}


class Faults:
    """What happens to the next requests; a share of them is broken."""

    def __init__(
        self,
        seed: int = 0,
        share: float = 0.0,
        always: str | None = None,
        methods: tuple[str, ...] = (),
        body: bytes = b"",
    ) -> None:
        """Draw them by `seed`; or answer each request, or those of `methods`, with the status `always` and `body`."""
        self._always = always
        self._methods = methods
        self.body = body
        self._chance = random.Random(seed)
        self._share = share
        self._broken: str | None = None
        self._lock = threading.Lock()
        self.count: Counter[str] = Counter()

    def next(self, path: str, method: str = "") -> str | None:
        """Return the fault of a request; None if it is passed on."""
        if self._always is not None:
            return self._always if not self._methods or method in self._methods else None
        with self._lock:
            if path == self._broken or self._chance.random() > self._share:
                self._broken = None
                return None
            self._broken = path
            fault = self._chance.choice(FAULTS)
            self.count[fault] += 1
            return fault


@contextlib.contextmanager
def fault_proxy(server: str, faults: Faults) -> Iterator[str]:
    """Yield the URL of a proxy before `server`."""
    address = urlsplit(server).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = faults.next(urlsplit(self.path).path, self.command)
            if fault is not None and fault.isdigit():
                self.send_response(int(fault))
                self.send_header("Retry-After", "1")
                self.send_header("Content-Length", str(len(faults.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(faults.body)
                return
            if fault == "refused":
                self.close_connection = True
                return
            if fault == "slow":
                time.sleep(1)
            connection = http.client.HTTPConnection(address, timeout=60)
            with contextlib.closing(connection):
                connection.request(self.command, self.path, body, dict(self.headers.items()))
                answer = connection.getresponse()
                content = answer.read()
            if fault == "lost answer":
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _HOP:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else str(len(content))
            self.send_header("Content-Length", length or "0")
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = forward

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as proxy:
        proxy.daemon_threads = True
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_address[1]}"
        finally:
            proxy.shutdown()
            thread.join()

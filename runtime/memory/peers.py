"""Send files of checkpoints in memory from host to host.

Every process serves the folder of its host to the other processes of the attempt. Both ends prove that they know the
attempt's secret. A manifest is sent with a code that depends on the secret, and has the digests of the data. So a
stranger can neither request a part nor change one. The bytes are not encrypted: those that
JAX sends between hosts are not, either.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from .files import NAME

T = TypeVar("T")

_NONCE = 32
_HANDSHAKE = 5.0  # seconds for the whole handshake
_SILENCE = 30.0  # seconds without a byte after which the other end is given up
_IDLE = 600.0  # seconds without a request after which a connection is closed
_PAUSE = 0.1  # seconds until connections are accepted, or tried, again after an error
AGAIN = 10.0  # seconds for which a host that cannot be reached is tried again
_MOST = 64  # connections at once that have not yet proved that they know the secret
_REQUEST = struct.Struct(">64sQQ")  # name of the file, offset, bytes; 0 bytes: all from the offset on
_SIZE = struct.Struct(">Q")
_MISSING = (1 << 64) - 1
_LARGEST = 64 << 20  # bytes of a manifest


class PeerError(Exception):
    """The other host cannot send the file; the message says why."""


class LackingError(PeerError):
    """The other host answers, and does not have the file."""


class Server:
    """Serves the files of a folder until the process ends."""

    def __init__(self, folder: Path, address: str, secret: bytes) -> None:
        """Listen on a port that the system chooses. Raises OSError."""
        self._folder = folder
        self._secret = secret
        self._strangers: list[socket.socket] = []  # connections that have not yet proved that they know the secret
        self._changing = threading.Lock()
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._listener.bind((address, 0))
            self._listener.listen(_MOST)
        except OSError:
            self._listener.close()
            raise
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._is_closed = False
        threading.Thread(target=self._accept, name="memory-server", daemon=True).start()

    def close(self) -> None:
        """Accept no more connections."""
        self._is_closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(_PAUSE)  # of open files there are too many, for example
                continue
            with self._changing:
                self._strangers.append(connection)
                if len(self._strangers) > _MOST:  # a peer takes milliseconds
                    with contextlib.suppress(OSError):
                        self._strangers.pop(0).shutdown(socket.SHUT_RDWR)  # wakes its thread
            threading.Thread(target=self._serve, args=(connection,), name="memory-peer", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                try:
                    key = _accepted(connection, self._secret)
                finally:
                    self._forget(connection)
                while True:
                    name, offset, size = _REQUEST.unpack(_receive(connection, _REQUEST.size, _IDLE))
                    self._answer(connection, key, name.rstrip(b"\0").decode(), offset, size)
        except (OSError, PeerError, ValueError):
            pass

    def _forget(self, connection: socket.socket) -> None:
        with self._changing:
            if connection in self._strangers:
                self._strangers.remove(connection)

    def _answer(self, connection: socket.socket, key: bytes, name: str, offset: int, size: int) -> None:
        try:
            if NAME.fullmatch(name) is None:
                raise FileNotFoundError
            file = (self._folder / name).open("rb")
        except OSError:
            connection.sendall(_SIZE.pack(_MISSING))
            return
        with file:
            left = max(0, os.fstat(file.fileno()).st_size - offset)
            count = min(size, left) if size else left
            connection.settimeout(_SILENCE)
            if name.endswith(".json"):
                text = file.read(_LARGEST)
                connection.sendall(_SIZE.pack(len(text)) + text + _code(key, b"manifest", text))
                return
            connection.sendall(_SIZE.pack(count), socket.MSG_MORE)
            if count:
                connection.sendfile(file, offset, count)


class Peer:
    """A connection to the server of another process."""

    def __init__(self, address: tuple[str, int], secret: bytes) -> None:
        """Connect. Raises PeerError."""
        with _explained():
            self._connection = socket.create_connection(address, _HANDSHAKE)
            try:
                self._key = _connected(self._connection, secret)
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def manifest(self, name: str) -> bytes | None:
        """Return a manifest; None if the host does not have it (yet). Raises PeerError."""
        with _explained():
            size = self._ask(f"{name}.json", 0, 0)
            if size is None:
                return None
            if size > _LARGEST:
                raise PeerError("it sent too large a description")
            text = _receive(self._connection, size, _SILENCE)
            if not hmac.compare_digest(_receive(self._connection, 32, _SILENCE), _code(self._key, b"manifest", text)):
                raise PeerError("it sent a description that was changed on the way")
            return text

    def read(self, name: str, offset: int, size: int) -> np.ndarray:
        """Return bytes of a data file, uint8[size]; the caller compares their digest. Raises PeerError."""
        data = np.empty(size, np.uint8)
        with _explained():
            if size:
                self._begin(name, offset, size)
                _receive_into(self._connection, data.data, _SILENCE)
        return data

    def download(self, name: str, size: int, descriptor: int) -> None:
        """Copy a data file to a file that is open here; the caller compares the digests. Raises PeerError, OSError."""
        buffer = memoryview(bytearray(1 << 20))
        at = 0
        if size:
            with _explained():
                self._begin(name, 0, size)
        while at < size:
            part = buffer[: size - at]
            with _explained():
                _receive_into(self._connection, part, _SILENCE)
            while len(part):
                count = os.pwrite(descriptor, part, at)
                part, at = part[count:], at + count

    def _begin(self, name: str, offset: int, size: int) -> None:
        count = self._ask(f"{name}.data", offset, size)
        if count != size:
            raise LackingError("it does not have the data any more")

    def _ask(self, name: str, offset: int, size: int) -> int | None:
        self._connection.sendall(_REQUEST.pack(name.encode(), offset, size))
        count = int(_SIZE.unpack(_receive(self._connection, _SIZE.size, _SILENCE))[0])
        return None if count == _MISSING else count


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise PeerError("it does not answer") from None
    except OSError as error:
        raise PeerError(error.strerror or str(error)) from None


def _accepted(connection: socket.socket, secret: bytes) -> bytes:
    """Verify that the other end knows the secret, prove the same, and return the key of the connection."""
    nonce = os.urandom(_NONCE)
    connection.settimeout(_HANDSHAKE)
    connection.sendall(nonce)
    answer = _receive(connection, 2 * _NONCE, _HANDSHAKE)
    key = nonce + answer[:_NONCE]
    if not hmac.compare_digest(answer[_NONCE:], _code(secret, b"asks", key)):
        raise PeerError("it does not know the secret")
    connection.sendall(_code(secret, b"serves", key))
    return _code(secret, b"key", key)


def _connected(connection: socket.socket, secret: bytes) -> bytes:
    """Prove that this process knows the secret, verify the same, and return the key of the connection."""
    theirs, nonce = _receive(connection, _NONCE, _HANDSHAKE), os.urandom(_NONCE)
    key = theirs + nonce
    connection.sendall(nonce + _code(secret, b"asks", key))
    if not hmac.compare_digest(_receive(connection, 32, _HANDSHAKE), _code(secret, b"serves", key)):
        raise PeerError("it does not know the secret")
    return _code(secret, b"key", key)


def _code(secret: bytes, role: bytes, text: bytes) -> bytes:
    return hmac.new(secret, b"podrun memory " + role + b" " + text, hashlib.sha256).digest()


def _receive(connection: socket.socket, size: int, seconds: float) -> bytes:
    """Return exactly `size` bytes. Raises PeerError if the connection ends, OSError after `seconds` without a byte."""
    data = bytearray(size)
    _receive_into(connection, memoryview(data), seconds)
    return bytes(data)


def _receive_into(connection: socket.socket, view: memoryview, seconds: float) -> None:
    deadline = time.monotonic() + max(seconds, len(view) / 1e5)  # a peer that sends single bytes is given up, too
    while len(view):
        connection.settimeout(min(seconds, max(0.01, deadline - time.monotonic())))
        count = connection.recv_into(view)
        if not count or time.monotonic() > deadline:
            raise PeerError("the connection ended")
        view = view[count:]


class PeerLink:
    """A process of another host, to which a connection is made when it is needed. Requests take turns."""

    def __init__(self, address: tuple[str, int], secret: bytes, patience: float = AGAIN) -> None:
        """Make no connection yet. `patience`: seconds for which one that fails is tried again."""
        self._address = address
        self._secret = secret
        self._patience = patience
        self._turn = threading.Lock()
        self._peer: Peer | None = None

    def ask(self, request: Callable[[Peer], T]) -> T:
        """Return the result of a request. Raises PeerError once the host could not be reached for too long."""
        with self._turn:
            deadline: float | None = None
            while True:
                try:
                    if self._peer is None:
                        self._peer = Peer(self._address, self._secret)
                    return request(self._peer)
                except LackingError:
                    raise
                except PeerError:
                    self._drop()
                    if deadline is None:
                        deadline = time.monotonic() + self._patience
                    if time.monotonic() >= deadline:
                        self._patience = 0.0  # otherwise each block of the state would wait
                        raise
                    time.sleep(_PAUSE)

    def fetch_when_ready(self, name: str, seconds: float) -> bytes:
        """Return a manifest that the other process is about to write. Raises PeerError if it is not there in time."""
        deadline = time.monotonic() + seconds
        while (text := self.ask(lambda peer: peer.manifest(name))) is None:
            if time.monotonic() > deadline:
                raise PeerError("its part was not complete in time")
            time.sleep(0.05)
        return text

    def close(self) -> None:
        """Close the connection, if there is one."""
        with self._turn:
            self._drop()

    def _drop(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

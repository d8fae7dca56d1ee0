"""Send data from host to host: a host (the parent) listens for others of its pod (children) and sends them pieces.

Both ends prove that they know the secret of this transfer, which they have from the launcher. The child requests the pieces
that it lacks; the parent sends each as soon as it has it, and a keepalive every few seconds. Pieces are not encrypted; the
child checks each by its digest.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
import threading
import time
from typing import Callable, Dict, Iterator, List, Optional, Tuple

from .data_files import DataFiles

_NONCE = 32
_HEADER = struct.Struct(">QI")  # number of the piece, bytes that follow
_ALIVE = (1 << 64) - 1  # number of a keepalive
_HANDSHAKE = 5.0  # seconds for the whole handshake
_REQUEST = 30.0  # seconds for a request, from a host that knows the secret
_SILENCE = 30.0  # seconds without data after which a parent is given up
_KEEPALIVE = 5.0  # seconds between two keepalives
_SEND = 120.0  # seconds for a child to take a piece
_STALLED = 120.0  # seconds without a whole piece after which a parent is given up in spite of keepalives
_MOST = 64  # children served at once
_MOST_UNVERIFIED = 256  # connections at once that have not proved yet that they know the secret ...
_MOST_OF_ADDRESS = 8  # ... and of those, connections from one address
_RANGE = 32  # most bytes of a range in a request


class BrokenError(Exception):
    """The other host cannot be used; the message says why."""


# --- parent -----------------------------------------------------------------------------------------------------------


class Server:
    """Sends pieces to children until it is closed."""

    def __init__(self, listener: socket.socket, secret: bytes, files: DataFiles) -> None:
        self._listener = listener
        self._secret = secret
        self._files = files
        self._places = threading.Semaphore(_MOST)
        self._unverified = _UnverifiedConnections()
        threading.Thread(target=self._accept, name="peers", daemon=True).start()

    def close(self) -> None:
        try:
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        except OSError:
            pass
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, address = self._listener.accept()
            except OSError:  # closed
                return
            self._unverified.add(connection, address[0])
            threading.Thread(target=self._serve, args=(connection,), name="peer", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                self._authenticate_child(connection)
            except (OSError, BrokenError):
                return
            finally:
                self._unverified.remove(connection)
            if not self._places.acquire(blocking=False):
                return  # the child tries another parent
            try:
                self._send_pieces(connection, _read_request(connection, len(self._files.pieces)))
                connection.settimeout(_HANDSHAKE)
                connection.recv(1)  # let the child close first: TIME_WAIT at this end would block the port
            except (OSError, BrokenError):
                pass
            finally:
                self._places.release()

    def _authenticate_child(self, connection: socket.socket) -> None:
        """Verify that the child knows the secret, and prove the same. Raises BrokenError, OSError."""
        deadline = time.monotonic() + _HANDSHAKE
        connection.settimeout(_HANDSHAKE)
        nonce = os.urandom(_NONCE)
        connection.sendall(nonce)
        answer = receive(connection, 2 * _NONCE, deadline)
        theirs, proof = answer[:_NONCE], answer[_NONCE:]
        if not hmac.compare_digest(proof, _proof(self._secret, b"child", nonce, theirs)):
            raise BrokenError("it does not know the secret")
        connection.sendall(_proof(self._secret, b"parent", nonce, theirs))

    def _send_pieces(self, connection: socket.socket, wanted: List[int]) -> None:
        left = set(wanted)
        known = 0
        connection.settimeout(_SEND)
        while left:
            arrived = self._files.wait_for_pieces(known, _KEEPALIVE)
            known += len(arrived)
            if not arrived:
                if self._files.ended:
                    raise BrokenError("no more pieces will come")
                connection.sendall(_HEADER.pack(_ALIVE, 0))
            for number in arrived:
                if number in left:
                    left.remove(number)
                    self._send(connection, number)

    def _send(self, connection: socket.socket, number: int) -> None:
        piece = self._files.pieces[number]
        connection.sendall(_HEADER.pack(number, piece.size), socket.MSG_MORE)
        with open(self._files.open_piece(number), "rb") as file:
            connection.sendfile(file, piece.offset, piece.size)


class _UnverifiedConnections:
    """Connections that have not proved yet that they know the secret. Closes the oldest of too many."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._connections: Dict[socket.socket, str] = {}

    def add(self, connection: socket.socket, address: str) -> None:
        with self._changing:
            self._connections[connection] = address
            same = [other for other, place in self._connections.items() if place == address]
            oldest = same if len(same) > _MOST_OF_ADDRESS else list(self._connections)
            if len(same) > _MOST_OF_ADDRESS or len(oldest) > _MOST_UNVERIFIED:
                del self._connections[oldest[0]]
                try:
                    oldest[0].shutdown(socket.SHUT_RDWR)  # wakes the thread that reads from it
                except OSError:
                    pass

    def remove(self, connection: socket.socket) -> None:
        with self._changing:
            self._connections.pop(connection, None)


def _read_request(connection: socket.socket, pieces: int) -> List[int]:
    """Return the numbers of the pieces that the child requests, of `pieces` that exist. Raises BrokenError, OSError."""
    deadline = time.monotonic() + _REQUEST
    size = struct.unpack(">I", receive(connection, 4, deadline))[0]
    if size > _RANGE * (pieces + 1):
        raise BrokenError("its request is too long")
    wanted: List[int] = []
    try:
        for first, last in json.loads(receive(connection, size, deadline)):
            if not (type(first) is type(last) is int and (wanted[-1:] or [-1])[0] < first <= last < pieces):
                raise BrokenError("it requests pieces that do not exist")
            wanted.extend(range(first, last + 1))
    except (ValueError, TypeError, RecursionError):
        raise BrokenError("its request cannot be read")
    return wanted


# --- child ------------------------------------------------------------------------------------------------------------


def fetch(
    address: str, secret: bytes, wanted: List[int], size_of: Callable[[int], int]
) -> Iterator[Tuple[int, memoryview]]:
    """Fetch pieces from the parent at `address`, `host:port`, and yield (number, bytes) in any order. Raises BrokenError.

    The bytes are valid until the next piece. `wanted`: numbers of the pieces.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _HANDSHAKE) as connection:
            _authenticate(connection, secret)
            request = json.dumps(_ranges(wanted)).encode()
            connection.sendall(struct.pack(">I", len(request)) + request)
            connection.settimeout(_SEND)
            yield from _pieces(connection, set(wanted), size_of)
    except socket.timeout:
        raise BrokenError("it does not answer")
    except OSError as error:
        raise BrokenError(error.strerror or str(error))
    except (ValueError, OverflowError):
        raise BrokenError("that is not an address")


def _authenticate(connection: socket.socket, secret: bytes) -> None:
    """Prove that this host knows the secret, and verify that the parent does. Raises BrokenError, OSError."""
    deadline = time.monotonic() + _HANDSHAKE
    connection.settimeout(_HANDSHAKE)
    theirs, nonce = receive(connection, _NONCE, deadline), os.urandom(_NONCE)
    connection.sendall(nonce + _proof(secret, b"child", theirs, nonce))
    if not hmac.compare_digest(receive(connection, _NONCE, deadline), _proof(secret, b"parent", theirs, nonce)):
        raise BrokenError("it does not know the secret")


def _pieces(
    connection: socket.socket, wanted: "set[int]", size_of: Callable[[int], int]
) -> Iterator[Tuple[int, memoryview]]:
    buffer = memoryview(bytearray(max(map(size_of, wanted), default=0)))  # reused, because allocating memory costs time
    deadline = time.monotonic() + _STALLED
    while wanted:
        number, size = _HEADER.unpack(receive(connection, _HEADER.size, deadline))
        if number == _ALIVE and not size:
            continue
        if number not in wanted or size != size_of(number):
            raise BrokenError("it sent a piece that was not requested")
        wanted.remove(number)
        receive_into(connection, buffer[:size], deadline)
        yield number, buffer[:size]
        deadline = time.monotonic() + _STALLED


def _ranges(numbers: List[int]) -> List[Tuple[int, int]]:
    """Return sorted numbers as (first, last) ranges without gaps."""
    ranges: List[Tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges


# --- both -------------------------------------------------------------------------------------------------------------


def receive(connection: socket.socket, size: int, deadline: float) -> bytes:
    """Return exactly `size` bytes. Raises OSError, and BrokenError if the connection ends or the deadline passes first."""
    data = bytearray(size)
    receive_into(connection, memoryview(data), deadline)
    return bytes(data)


def receive_into(connection: socket.socket, view: memoryview, deadline: float) -> None:
    """Fill `view` with received bytes, as `receive` does."""
    while view:
        left = deadline - time.monotonic()
        if left <= 0:
            raise BrokenError("it does not send the requested data in time")
        connection.settimeout(min(_SILENCE, left))
        count = connection.recv_into(view)
        if not count:
            raise BrokenError("the connection ended")
        view = view[count:]


def _proof(secret: bytes, role: bytes, parents_nonce: bytes, childs_nonce: bytes) -> bytes:
    message = b"podrun data " + role + parents_nonce + childs_nonce
    return hmac.new(secret, message, hashlib.sha256).digest()


def listen(address: Optional[str], ports: Optional[List[int]]) -> Optional[socket.socket]:
    """Return a socket that listens at this host's address; None if the address is unknown or no port is free."""
    from ..host.port import RefusedError, reserve_port

    if not address:
        return None
    try:
        return reserve_port(ports, address)
    except (RefusedError, OSError):
        return None

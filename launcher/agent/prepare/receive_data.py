"""`agent bring`: receive data from other hosts or the launcher, and send it to other hosts.

The launcher sends a request, then the role, then the sources, then the pieces that this host requests, each after its head,
and an end when no host needs this one any more. The command ends when its stdin ends. Pieces that have arrived stay, and the
next transfer resumes with them.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Deque, Dict, List, Set, Union

from ..base.address import only_address, peer_address
from ..base.disk import ROOM
from ..base.places import data_set_folder
from ..base.private import UnsafeError
from ..base.problem import Problem, cannot_write
from ..base.stdin import GoneError, Part, Stdin, end_with_signals
from ..base.to_agent import BRING_REQUEST, PIECE_OR_END, ROLE, SOURCES
from .data_files import DataFiles, DigestError, store_id
from .data_set import File
from .launcher import Launcher
from .old_data import prune_data
from .peers import BrokenError, Server, fetch, listen

if TYPE_CHECKING:
    from ..base.to_agent import BringRequest, End, PieceHead, Source

_IN_FLIGHT = 4  # pieces requested from the launcher at once
_TICK = 1.0  # seconds between two reports
LAUNCHER = "the launcher"
"""Name of the launcher among the sources."""


def receive_data() -> None:
    end_with_signals()
    code = 1
    try:
        Transfer(Launcher(Stdin())).run()
        code = 0
    except GoneError:
        pass
    os._exit(code)  # threads may wait for other hosts


def _problem(error: Exception) -> Problem:
    """Return the problem to report for an error."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, DigestError):
        return Problem("the data did not arrive as it was sent: %s" % error, "run podrun again")
    if isinstance(error, UnsafeError):
        return Problem(*str(error).split("; ", 1))
    if not isinstance(error, OSError):
        return Problem("the transfer ended with %s: %s" % (type(error).__name__, error), "run podrun again")
    problem = cannot_write(str(error.filename or "the data"), error)
    if error.errno == errno.ENOSPC:
        problem.remedy = ROOM
    return problem


class Transfer:
    """One transfer of data to this host, and from it to others."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._request: BringRequest = launcher.stdin.frame(BRING_REQUEST)
        request = self._request
        self._home = os.path.abspath(os.path.expanduser(request["home"]))
        self._secret = bytes.fromhex(request["secret"])
        files = [File(f["sha256"], f["size"], tuple(f["pieces"])) for f in request["files"]]
        self._files = DataFiles(self._home, request["set"], [(n, s) for n, s in request["names"]], files)
        self._received: Dict[str, int] = {}
        self._source = LAUNCHER

    def run(self) -> None:
        """Receive the data, and serve other hosts until the launcher ends the transfer. Raises GoneError."""
        try:
            self._run()
        except (Problem, OSError, DigestError) as error:
            self._give_up(error)
            raise GoneError()

    def _give_up(self, error: Exception) -> None:
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            self._files.discard()
        self._launcher.report(_problem(error))

    def _run(self) -> None:
        self._files.open()
        self._launcher.answer({"type": "store", "id": store_id(self._home)})
        if self._launcher.stdin.frame(ROLE)["role"] != "wait":
            self._scan()
            server = self._serve()
            sources: List[Source] = self._launcher.stdin.frame(SOURCES)["sources"]
            threading.Thread(target=self._fetch, args=(sources,), name="fetch", daemon=True).start()
            threading.Thread(target=self._report_progress, name="progress", daemon=True).start()
            self._take_pieces()
            self._files.end()
            if server:
                server.close()
        else:
            self._take_pieces()
        keep = data_set_folder(self._home, self._request["set"])
        self._launcher.answer({"type": "done", "pruned": prune_data(self._home, [keep])})

    def _scan(self) -> None:
        """Find the pieces that are present, and report changed files."""
        self._files.scan(self._launcher.alive)
        for message in self._files.changed:
            self._launcher.answer({"type": "changed", "message": message})
        if not self._files.missing():
            self._files.complete()

    def _serve(self) -> "Server | None":
        """Listen for other hosts, and tell the launcher the address and the number of missing bytes."""
        internal = self._request["internal"]
        listener = listen(only_address(internal) or peer_address(internal), self._request["ports"])
        address = None
        if listener:
            host, port = listener.getsockname()[:2]
            address = "%s:%d" % ("[%s]" % host if ":" in host else host, port)
        pieces = self._files.pieces
        missing = sum(pieces[number].size for number in self._files.missing())
        total = sum(piece.size for piece in pieces)
        self._launcher.answer({"type": "holds", "missing": missing, "total": total, "address": address})
        return Server(listener, self._secret, self._files) if listener else None

    def _take_pieces(self) -> None:
        """Write the pieces that the launcher sends, until it sends {"end"}."""
        while True:
            frame: Union[PieceHead, End] = self._launcher.stdin.frame(PIECE_OR_END)
            if "end" in frame:
                return
            part = Part(self._launcher.stdin, frame["bytes"])
            data = b"".join(iter(part.read, b""))
            self._write(frame["piece"], data, LAUNCHER)

    # --- the thread that fetches the missing pieces ---

    def _fetch(self, sources: List[Source]) -> None:
        try:
            for source in sources:
                self._fetch_from(source)
            self._source = LAUNCHER
            self._fetch_from_launcher()
            if self._received:
                self._files.complete()
            self._launcher.answer({"type": "complete", "received": self._received})
        except GoneError:
            pass
        except Exception as error:  # any error must end this command, which otherwise sends `alive` forever
            self._give_up(error)

    def _fetch_from(self, source: Source) -> None:
        """Fetch missing pieces from another host. A failure is only reported: other sources follow."""
        missing = self._files.missing()
        if not missing:
            return
        self._source = source["host"]
        try:
            for number, data in fetch(source["address"], self._secret, missing, lambda n: self._files.pieces[n].size):
                self._write(number, data, source["host"])
        except (BrokenError, DigestError) as error:
            what = "cannot get data from %s at %s: %s" % (source["host"], source["address"], error)
            self._launcher.answer({"type": "note", "message": what})

    def _fetch_from_launcher(self) -> None:
        wanted: Deque[int] = deque(self._files.missing())
        asked: Set[int] = set()
        known = 0
        while wanted or asked:
            batch = [wanted.popleft() for _ in range(min(len(wanted), _IN_FLIGHT - len(asked)))]
            if batch:
                self._launcher.answer({"type": "want", "pieces": batch})
                asked.update(batch)
            arrived = self._files.wait_for_pieces(known, _TICK)
            known += len(arrived)
            asked.difference_update(arrived)
            if self._files.ended:
                raise GoneError()

    def _write(self, number: int, data: Any, source: str) -> None:
        self._files.write(number, data)
        self._received[source] = self._received.get(source, 0) + len(data)

    def _report_progress(self) -> None:
        """Report received bytes once a second; the launcher considers a silent host dead."""
        reported = -1
        while not self._files.wait_for_end(_TICK):
            got = sum(self._received.values())
            try:
                if got != reported:
                    self._launcher.answer({"type": "got", "bytes": got, "source": self._source})
                    reported = got
                self._launcher.alive()
            except GoneError:
                return

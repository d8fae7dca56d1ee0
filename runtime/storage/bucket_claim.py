"""Claim a workdir in a bucket for one run: an object that the run renews while it lives, and marks as ended afterwards.

Every write of the object is conditional: it must be absent, or still have the version that was read. So of several runs that
claim a workdir at the same time exactly one succeeds, and a run that was taken for dead notices that another run has it now.
"""

from __future__ import annotations

import json
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ..contract import UserError, WorkerEnv
from .bucket_client import Bucket, BucketError, RefusedError, Stored, explained

CLAIM = ".podrun-claim"
CLOCK = ".podrun-clock-"
"""Prefix of objects that are written to read the server's clock."""
RENEWED = 5.0  # seconds between two renewals
STALE = 30.0  # seconds without a renewal after which a run counts as dead
_SPOOL = ".podrun-spool"
_ROUNDS = 20  # attempts, in each of which another run may be faster

_LARGEST = 1 << 53
_NAME = re.compile(r"[\w.:-]{1,255}", re.ASCII)  # of a run or a host

Facts = dict[str, object]


class Claim:
    """A claim that this process holds."""

    def __init__(self, bucket: Bucket, env: WorkerEnv, spool: Path) -> None:
        """Prepare a claim; `take` makes it. The caller holds the lock of the folder `spool`."""
        self.bucket = bucket
        self._spool = spool
        self._facts: Facts = {
            "run": env.run_id,
            "attempt": env.attempt,
            "host": socket.gethostname(),
            "nonce": secrets.token_hex(8),
        }
        self._version = ""
        self._renewed = 0.0
        self._renewing = threading.Lock()
        self._stop = threading.Event()
        self._lost: BucketError | None = None
        self._thread = threading.Thread(target=self._keep, daemon=True, name="claim")

    def take(self, note: Callable[[str], None]) -> None:
        """Claim the workdir if it is free, or if its claim is of this run or of a dead run.

        May wait `STALE` seconds to find out.

        Raises:
            UserError: another run has it, or the bucket refuses access.
            UnavailableError: the bucket cannot be reached.
        """
        try:
            self._facts["spool"] = _id_of(self._spool)
            for _ in range(_ROUNDS):
                held = self.bucket.stat(CLAIM)
                if held is not None and not self._await_end(held, note):
                    continue
                self._renewed = time.monotonic()
                version = self.bucket.replace(CLAIM, self._content(), held.version if held else "")
                if version is not None:
                    self._version = version
                    self._thread.start()
                    return
        except OSError as error:
            raise explained(error) from error
        raise UserError(f"workdir {self.bucket.url}: other runs keep claiming it; choose another with --workdir")

    def check(self) -> None:
        """Raise BucketError if another run has claimed the workdir, which can happen while this process is suspended."""
        if self._lost is None and time.monotonic() - self._renewed > STALE / 2:
            self._renew()
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Mark the claim as ended, so that the next run need not wait. Raises BucketError."""
        self._stop.set()
        self._thread.join()
        self.check()
        self._renew(ended=True)
        self.check()

    def _await_end(self, held: Stored, note: Callable[[str], None]) -> bool:
        """Wait until the holder has ended or is stale, and return True. Return False if the claim must be read again.

        Raises UserError if the holder is alive.
        """
        holder = _facts(self.bucket.read(CLAIM))
        if self._is_over(holder):
            return True
        wait = min(STALE, STALE - (self._now() - held.time))
        name = f"{holder.get('run')} (on {holder.get('host')})"
        if wait > 0:
            note(f"run {name} has claimed {self.bucket.url}: waiting up to {wait:.0f} s to see whether it is alive")
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline:
            time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))
            now = self.bucket.stat(CLAIM)
            if now is None or now.version != held.version:
                after = _facts(self.bucket.read(CLAIM))
                if not after or after.get("ended"):
                    return False
                raise UserError(_in_use(self.bucket.url, after))
        return True

    def _is_over(self, holder: Facts) -> bool:
        """Return whether the holder has ended.

        It has if it is marked as ended, is an earlier attempt of this run, or used a spool folder whose lock this process
        holds.
        """
        mine = self._facts
        earlier = holder.get("run") == mine["run"] and int(str(holder["attempt"])) <= int(str(mine["attempt"]))
        same_folder = "spool" in holder and all(holder.get(key) == mine[key] for key in ("host", "spool"))
        return bool(holder.get("ended")) or earlier or same_folder

    def _now(self) -> float:
        """Return the time by the server's clock, in seconds since 1970. Hosts' clocks may differ."""
        name = f"{CLOCK}{self._facts['nonce']}"
        self.bucket.put(name, b"")
        item = self.bucket.stat(name)
        self.bucket.delete(name)
        return 0.0 if item is None else item.time  # a time that is too early only makes the wait longer

    def _keep(self) -> None:
        while self._lost is None and not self._stop.wait(RENEWED):
            self._renew()

    def _renew(self, ended: bool = False) -> None:
        with self._renewing:
            began = time.monotonic()
            try:
                version = self.bucket.replace(CLAIM, self._content(ended), self._version)
                if version is None and self.bucket.stat(CLAIM) is None:  # deleted by somebody; runs never delete it
                    version = self.bucket.replace(CLAIM, self._content(ended), "")
            except OSError:
                return  # uploads report that the bucket cannot be reached
            if version is None:
                self._lost = RefusedError(f"{self.bucket.url}: another run has taken this workdir meanwhile")
            else:
                self._version, self._renewed = version, began

    def _content(self, ended: bool = False) -> bytes:
        facts = {**self._facts, "time": time.time(), "renewal": secrets.token_hex(4)}
        return json.dumps({**facts, "ended": True} if ended else facts).encode()


def _in_use(url: str, holder: Facts) -> str:
    return (
        f"workdir {url} is in use by run {holder.get('run')} (on {holder.get('host')}); `podrun stop "
        f"{holder.get('run')}` ends it where it was started, or choose another with --workdir"
    )


def _id_of(spool: Path) -> str:
    """Return the unique id of a spool folder, which is stored in it. Makes one if there is none. Raises OSError."""
    path = spool / _SPOOL
    if not path.is_file():
        path.write_text(secrets.token_hex(8))
    return path.read_text()


def _facts(content: bytes | None) -> Facts:
    """Parse a claim. Returns an empty one if it is not valid, since anybody with access to the bucket may have written it."""
    try:
        facts = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(facts, dict) or type(facts.get("attempt")) is not int or not 0 <= facts["attempt"] < _LARGEST:
        return {}
    names = (facts.get("run"), facts.get("host"))
    return facts if all(isinstance(name, str) and _NAME.fullmatch(name) for name in names) else {}

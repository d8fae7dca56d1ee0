"""Claim a workdir in a bucket for one run: an object, created only if absent, and renewed while the run lives."""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from collections.abc import Callable

from ..contract import UserError, WorkerEnv
from .bucket_client import Bucket, BucketError, RefusedError, explained

CLAIM = ".podrun-claim"
RENEWED = 5.0  # seconds
STALE = 30.0  # seconds in which a claim did not change, by this host's clock: clocks of hosts are not compared
_SETTLE = 2.0  # seconds after a takeover in which another one may show


class Claim:
    """A claim that this process holds."""

    def __init__(self, bucket: Bucket, env: WorkerEnv) -> None:
        """Describe it; `take` takes it."""
        self.bucket = bucket
        self._facts = {
            "run": env.run_id,
            "attempt": env.attempt,
            "host": socket.gethostname(),
            "nonce": secrets.token_hex(8),
        }
        self._stop = threading.Event()
        self._lost: BucketError | None = None
        self._thread = threading.Thread(target=self._renew, daemon=True, name="claim")

    def take(self, note: Callable[[str], None]) -> None:
        """Take it from nobody, from this run, or from a run that is dead.

        Raises UserError if another run has it, or the bucket refuses; UnavailableError if the bucket cannot be reached.
        """
        try:
            while not self.bucket.create(CLAIM, self._content()):
                self._wait_for_end(note)
                self.bucket.delete(CLAIM)
                if self.bucket.create(CLAIM, self._content()):
                    time.sleep(_SETTLE)
                    if self._is_mine(self.bucket.read(CLAIM)):
                        break
        except OSError as error:
            raise explained(error) from error
        self._thread.start()

    def check(self) -> None:
        """Raise BucketError if another run has taken it."""
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Delete it, so that the next run need not wait. Raises BucketError."""
        self._stop.set()
        self._thread.join()
        self.check()
        self.bucket.delete(CLAIM)

    def _wait_for_end(self, note: Callable[[str], None]) -> None:
        """Return when the claim is of this run, or has not changed for long. Raises UserError if it is renewed."""
        before = self.bucket.read(CLAIM)
        holder = _facts(before)
        if before is None or holder.get("run") == self._facts["run"]:
            return
        name = f"{holder.get('run')} (on {holder.get('host')})"
        note(f"run {name} has claimed {self.bucket.url}: waiting up to {STALE:g} s to see whether it lives")
        deadline = time.monotonic() + STALE
        while time.monotonic() < deadline:
            time.sleep(1)
            now = self.bucket.read(CLAIM)
            if now is None:
                return
            if now != before:
                raise UserError(
                    f"workdir {self.bucket.url} is in use by run {name}; `podrun stop {holder.get('run')}` ends it where "
                    "it was started, or choose another with --workdir"
                )

    def _renew(self) -> None:
        while not self._stop.wait(RENEWED):
            try:
                if not self._is_mine(self.bucket.read(CLAIM)):
                    self._lost = RefusedError(f"{self.bucket.url}: another run has taken this workdir meanwhile")
                    return
                self.bucket.put(CLAIM, self._content())
            except OSError:
                continue  # uploads tell of a bucket that cannot be reached

    def _content(self) -> bytes:
        return json.dumps({**self._facts, "time": time.time()}).encode()

    def _is_mine(self, content: bytes | None) -> bool:
        return _facts(content).get("nonce") == self._facts["nonce"]


def _facts(content: bytes | None) -> dict[str, object]:
    try:
        facts = json.loads(content or b"{}")
    except ValueError:
        return {}
    return facts if isinstance(facts, dict) else {}

"""A workdir in a bucket belongs to one run: which claims count, and who gets it if several want it at once."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from podrun.runtime.contract import UserError, WorkerEnv
from podrun.runtime.storage import bucket_claim
from podrun.runtime.storage.bucket_claim import CLAIM, Claim
from podrun.runtime.storage.bucket_client import Bucket, BucketError


def claim(url: str, run: str, spool: Path, attempt: int = 0) -> Claim:
    spool.mkdir(exist_ok=True)
    return Claim(Bucket(url), WorkerEnv(run, attempt, "host-0", 0, 1, (0,), "cpu-1x1", Path("unused")), spool)


def kill(holder: Claim) -> None:
    """Leave the claim as a process does that was killed: no longer renewed, never released."""
    holder._stop.set()
    holder._thread.join()


def quiet(text: str) -> None:
    raise AssertionError(f"nothing is to be waited for: {text}")


def test_a_claim_that_is_over_is_taken_at_once(url: str, tmp_path: Path) -> None:
    """It was released, is of an earlier attempt, or of a run that had the same spool folder, which is locked now."""
    first = claim(url, "run-1", tmp_path / "one")
    first.take(quiet)
    first.release()
    second = claim(url, "run-2", tmp_path / "two")
    second.take(quiet)
    kill(second)
    again = claim(url, "run-2", tmp_path / "other", attempt=1)
    again.take(quiet)
    kill(again)
    neighbour = claim(url, "run-3", tmp_path / "other")
    neighbour.take(quiet)
    neighbour.release()


@pytest.mark.long
def test_a_claim_that_is_renewed_is_respected(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_claim, "RENEWED", 0.2)
    first = claim(url, "run-1", tmp_path / "one")
    first.take(quiet)
    with pytest.raises(UserError, match="in use by run run-1"):
        claim(url, "run-2", tmp_path / "two").take(lambda _: None)
    first.release()


def test_the_age_of_a_claim_is_told_by_the_clock_of_the_server(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = claim(url, "run-1", tmp_path / "one")
    first.take(quiet)
    kill(first)
    notes: list[str] = []
    monkeypatch.setattr(bucket_claim, "STALE", 2.0)
    second = claim(url, "run-2", tmp_path / "two")
    second.take(notes.append)
    kill(second)
    now = Claim._now
    monkeypatch.setattr(Claim, "_now", lambda self: now(self) + 100)
    third = claim(url, "run-3", tmp_path / "three")
    third.take(quiet)
    second._renewed = float("-inf")  # it was stopped, and goes on
    with pytest.raises(BucketError, match="another run has taken this workdir"):
        second.check()
    third.release()
    assert set(Bucket(url).objects()) == {CLAIM}


def test_of_several_at_once_exactly_one_takes_it(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them have seen that the run which had it is dead."""
    first = claim(url, "run-0", tmp_path / "first")
    first.take(quiet)
    kill(first)
    meeting = threading.Barrier(4, timeout=60)
    monkeypatch.setattr(Claim, "_await_end", lambda *_: meeting.wait() >= 0)
    monkeypatch.setattr(bucket_claim, "_ROUNDS", 1)
    claims = [claim(url, f"run-{n}", tmp_path / str(n)) for n in range(1, 5)]
    refused: list[str] = []

    def take(one: Claim) -> None:
        try:
            one.take(quiet)
        except UserError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=take, args=(one,)) for one in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    holders = [one for one in claims if one._version]
    assert len(holders) == 1 and len(refused) == 3
    assert json.loads(Bucket(url).read(CLAIM) or b"")["run"] == holders[0]._facts["run"]
    holders[0].release()


@pytest.mark.parametrize(
    "content",
    [
        b"[1",
        b'{"run": "run-1", "host": "h", "attempt": 1e999}',
        b'{"run": "run-1", "host": "h", "attempt": 1%s}' % (b"0" * 6000),
        b"[" * 100_000,
        b'{"run": "run-1\\n", "host": [], "attempt": 0}',
    ],
    ids=["half", "infinite", "digits", "deep", "names"],
)
def test_a_claim_that_cannot_be_read_counts_by_its_age(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    Bucket(url).put(CLAIM, content)
    monkeypatch.setattr(bucket_claim, "STALE", 0.2)
    texts: list[str] = []
    one = claim(url, "run-1", tmp_path / "one")
    one.take(lambda text: texts.append(text))
    one.release()
    assert all(text.isprintable() for text in texts)


def test_a_claim_that_was_deleted_is_made_again(url: str, tmp_path: Path) -> None:
    """Unless another run was faster, which is told as what it is."""
    one = claim(url, "run-1", tmp_path / "one")
    one.take(quiet)
    Bucket(url).delete(CLAIM)
    one._renew()
    one.check()
    assert json.loads(Bucket(url).read(CLAIM) or b"")["run"] == "run-1"
    Bucket(url).put(CLAIM, b'{"run": "run-2", "host": "h", "attempt": 0}')
    one._renew()
    with pytest.raises(BucketError, match="another run has taken this workdir"):
        one.check()
    kill(one)

"""Whoever can write to a bucket, or plays a host, chooses names and claims: no traceback, and no file outside the folder."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import strategies as st

from podrun.launcher.agent.base.from_agent import FROM_BRING
from podrun.launcher.agent.base.protocol import Malformed, parse
from podrun.launcher.agent.base.safe_name import UnsafeNameError
from podrun.launcher.agent.prepare.named_data import make_set
from podrun.runtime.storage.bucket_claim import _facts, _in_use

from ..runtime.storage.objects import restore
from .cases import NUMBERS, damaged, fuzz, junk, raw_lines

parts = st.one_of(
    st.text(max_size=3),
    st.sampled_from(
        ["", ".", "..", "checkpoints", "5", "²", "podrun-manifest.json", "link", "a", "b", "x" * 256, "\ud800"]
    ),
)
names = st.one_of(
    st.lists(parts, max_size=5).map("/".join),
    st.sampled_from(["5", "7"]).map("checkpoints/{}/podrun-manifest.json".format),
    st.lists(parts, max_size=3).map(lambda inner: "/".join(["checkpoints", "5", *inner])),
)
CLAIM = {
    "run": "run-1",
    "attempt": 0,
    "host": "h",
    "nonce": "0",
    "spool": "s",
    "time": 1.0,
    "renewal": "0",
    "ended": True,
}


@pytest.mark.parametrize("number", NUMBERS)
def test_claims(number: int) -> None:
    """Names of claims that count can be printed, and their attempts compared."""

    def check(content: bytes) -> None:
        facts = _facts(content)
        if facts:
            assert 0 <= int(str(facts["attempt"])) < 1 << 53
            assert _in_use("gs://b", facts).isprintable()

    fuzz(st.one_of(damaged(st.just(CLAIM)), raw_lines), check, number)


@pytest.mark.parametrize("number", NUMBERS)
def test_listings_of_a_bucket(number: int) -> None:
    """Nothing is written outside the spool, and nothing of a checkpoint without a manifest is kept."""

    def check(keys: list[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            spool = Path(folder, "spool")
            notes = restore(spool, dict.fromkeys(keys, b"x"))
            assert all(note.isprintable() for note in notes)
            assert os.listdir(folder) == ["spool"]
            files = {path.relative_to(spool).as_posix() for path in spool.rglob("*") if path.is_file()}
            assert files <= {*keys}
            assert not any(path.is_symlink() for path in spool.rglob("*"))

    fuzz(st.lists(names, max_size=6), check, number)


@pytest.mark.parametrize("number", NUMBERS)
def test_names_in_a_transfer(number: int) -> None:
    """A set of data has its files in its folder, or is not made."""

    def check(drawn: list[str]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            content = os.path.join(folder, "content")
            Path(content).write_bytes(b"x")
            try:
                make_set(os.path.join(folder, "set"), [(name, "0") for name in drawn], lambda _: content)
            except (UnsafeNameError, OSError):
                assert os.listdir(folder) == ["content"]
            else:
                assert {*os.listdir(folder)} <= {"content", "set"}
            assert os.stat(content).st_nlink <= 1 + len(drawn)

    fuzz(st.lists(names, max_size=4), check, number)


@pytest.mark.parametrize("number", NUMBERS)
def test_addresses_of_a_transfer(number: int) -> None:
    def check(address: object) -> None:
        line = json.dumps({"type": "holds", "missing": 0, "total": 0, "address": address}).encode()
        why = ""
        try:
            parse(line, FROM_BRING)
        except Malformed as error:
            why = str(error)
        assert not why or why.isprintable()

    fuzz(st.one_of(junk, st.from_regex(r"\[?[0-9a-f.:]{0,12}\]?:[0-9]{0,6}")), check, number)

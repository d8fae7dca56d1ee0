"""The guards of the fuzzers can fail: each here sees what it is there for."""

from __future__ import annotations

import os
import threading
import time

import pytest
from hypothesis import strategies as st

from .cases import fuzz
from .tested_process import FailedCase, Limits

CASES = st.integers(0, 2**60)
LIMITS = Limits(cpu=0.2, waiting=0.2, growth=4 << 20)
_kept: list[object] = []


@pytest.fixture(autouse=True)
def _own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PODRUN_FUZZ_CASES", raising=False)
    _kept.clear()


def test_sound_cases_pass() -> None:
    fuzz(CASES, lambda case: bytes(100_000), 40, LIMITS)


def test_memory_that_is_kept() -> None:
    with pytest.raises(AssertionError, match="growth"):
        fuzz(CASES, lambda case: _kept.append(os.urandom(200_000)), 40, LIMITS)


def test_memory_that_hypothesis_keeps_is_not_counted() -> None:
    fuzz(CASES.map(lambda case: _kept.append(os.urandom(200_000))), lambda case: None, 40, LIMITS)


def test_files_that_stay_open() -> None:
    with pytest.raises(AssertionError, match="files are left open"):
        fuzz(CASES, lambda case: _kept.append(os.open("/", os.O_RDONLY)), 20, LIMITS)


def test_a_case_that_computes() -> None:
    def check(case: int) -> None:
        end = time.process_time() + 0.25
        while time.process_time() < end:
            pass

    with pytest.raises(FailedCase, match="CPU time"):
        fuzz(st.none(), check, 1, LIMITS)


def test_a_case_that_waits() -> None:
    with pytest.raises(FailedCase, match="a wait"):
        fuzz(st.none(), lambda case: threading.Event().wait(60), 1, LIMITS)


def test_a_case_that_raises() -> None:
    with pytest.raises(FailedCase, match="ZeroDivisionError"):
        fuzz(CASES, lambda case: 1 // (case % 2), 20, LIMITS)


def test_a_case_that_ends_the_process() -> None:
    with pytest.raises(FailedCase, match="ended the process"):
        fuzz(st.none(), lambda case: os._exit(3), 1, LIMITS)

"""Shared by the fuzzers: how many cases, hostile values, and the guards of time and memory.

PODRUN_FUZZ_CASES sets the number of cases, PODRUN_FUZZ_SEED another series of them; the seed of a failure is printed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, TypeVar

import hypothesis
import pytest
from hypothesis import strategies as st

from .tested_process import Limits, TestedProcess

T = TypeVar("T")
SEED = int(os.environ.get("PODRUN_FUZZ_SEED", "0"))
SHORT, MEDIUM, MANY = 20, 100, 500
_LIMIT = 36_000 if "PODRUN_FUZZ_CASES" in os.environ else 300
NUMBERS = [
    pytest.param(SHORT, marks=pytest.mark.timeout(_LIMIT)),
    pytest.param(MEDIUM, marks=[pytest.mark.long, pytest.mark.timeout(_LIMIT)]),
    pytest.param(MANY, marks=[pytest.mark.nightly, pytest.mark.timeout(36_000)]),
]
LIMITS = Limits()

HUGE = [2**31, -(2**31), 2**53, 2**63, 2**64, 10**30, -1, 0, 1, 1e308, -1e308]
_texts = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            "",
            "\0",
            "\ud800",
            "\udc80",
            "\x1b[31m\x1b]52;c;AA\x07",
            "[/red]",
            "../..",
            "host-0",
            "0.out",
            "a\nb",
            "9" * 400,
        ]
    ),
)
junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 300), st.sampled_from(HUGE), st.floats(), _texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_texts, inner, max_size=3)),
    max_leaves=8,
)
"""Any JSON value, and such as JSON has not: NaN, halves of surrogate pairs, numbers beyond all limits."""

raw_lines = st.one_of(
    st.binary(max_size=40).map(lambda data: data.replace(b"\n", b"")),
    junk.map(lambda value: json.dumps(value).encode()),
    st.sampled_from(
        [
            b"",
            b"{",
            b"\xff\xfe{}",
            b'{"type":1e999}',
            b'{"event":"step","time":1e999}',
            b"[" * 3000,
            b'{"a":' * 3000,
            b"[" * 60 + b"]" * 60,
            b"9" * 6000,
            b'{"type": "wake"}',
            b'{"type": "lost", "reason": "x", "left": null, "silent": false}',
        ]
    ),
)
"""Lines that are no frame at all, nor an event."""


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[dict[str, Any]]) -> bytes:
    """Draw a line with a sound object, or one of which a field is missing, is something else, or is one too many."""
    value = dict(draw(whole))
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(sorted(value) or ["x"]))
        if draw(st.booleans()):
            value[name] = draw(junk)
        elif draw(st.booleans()):
            value.pop(name, None)
        else:
            value[draw(_texts)] = draw(junk)
    return json.dumps(value).encode()


def fuzz(cases: st.SearchStrategy[T], check: Callable[[T], object], number: int, limits: Limits = LIMITS) -> None:
    """Call `check` with `number` cases, one after the other. It fails with the smallest case that fails."""
    number = int(os.environ.get("PODRUN_FUZZ_CASES", number))
    done = 0
    with TestedProcess(check, limits) as tested:
        before = tested.usage()

        def measured(case: T) -> None:
            nonlocal done, before
            tested.run(case)
            done += 1
            if done == max(number // 4, 10):  # by now everything is imported, and caches are full
                before = tested.usage()

        run = hypothesis.given(cases)(measured)
        run = hypothesis.settings(
            max_examples=number,
            deadline=None,
            database=None,
            print_blob=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )(run)
        hypothesis.seed(SEED)(run)()
        after = tested.usage()
    growth = after.memory - before.memory
    print(
        f"{done} cases (seed {SEED}), longest {tested.longest:.2f} s (CPU {tested.longest_cpu:.2f} s, "
        f"asleep {tested.longest_wait:.2f} s), growth {growth / 2**20:.1f} MB"
    )
    assert done >= number
    assert growth < limits.growth, f"a growth of {growth / 2**20:.1f} MB"
    assert after.threads == before.threads, f"{after.threads - before.threads} threads are left"
    assert after.files == before.files, f"{after.files - before.files} files are left open"

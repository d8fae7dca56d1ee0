"""Secrets in what a program says are hidden, however it writes them."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest

from podrun.launcher.pod.masking import HIDDEN, Mask

VALUE = "s3cr3t/to'ken \"\\n+é"
FORMS = (
    *(VALUE, repr(VALUE), ascii(VALUE), json.dumps(VALUE), repr(repr(VALUE)), json.dumps(json.dumps(VALUE))),
    *(quote(VALUE), quote(VALUE, safe=""), VALUE[:5] + "\n" + VALUE[5:], VALUE[:9] + "\r\n    " + VALUE[9:]),
)


@pytest.mark.parametrize("form", FORMS)
def test_a_value_is_hidden_in_each_form(form: str) -> None:
    shown = Mask([VALUE, "12"]).text(f"KeyError: 12 {form} (train.py:3)")
    assert HIDDEN in shown and "s3cr" not in shown and "ken" not in shown
    assert shown.startswith("KeyError: 12 ") and shown.endswith(" (train.py:3)")


def test_the_longest_value_first() -> None:
    """One may be a part of another; each line of a value of several lines is hidden."""
    assert Mask(["abcd", "abcdefgh"]).text("abcdefgh abcd") == f"{HIDDEN} {HIDDEN}"
    assert Mask(["-----BEGIN\nAAAA\n"]).text("AAAA") == HIDDEN


def test_lines() -> None:
    assert Mask(["hunter2"]).lines(["a hun", "ter2 b", "c"]) == [f"a {HIDDEN} b", "c"]


def test_fields_of_an_event() -> None:
    """Texts at any depth; not the host's name, nor numbers."""
    event = {
        "event": "error",
        "host": "hunter2",
        "message": "no hunter2",
        "rows": [{"a": "hunter2", "b": 1.5}],
        "n": None,
    }
    masked = Mask(["hunter2"]).fields(event)
    assert masked == {**event, "message": f"no {HIDDEN}", "rows": [{"a": HIDDEN, "b": 1.5}]}
    assert Mask([]).fields(event) is event

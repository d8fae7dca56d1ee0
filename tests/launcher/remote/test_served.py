"""The values that a session consists of are made from a plan, without connections or threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.remote.served import Closing, ServedAttempt

from ..attempts import plan_of
from .pretended import FakeChannel

(HOST,) = plan_of("cpu-1x1", Path("/home/nobody"), "true").hosts


def test_a_new_connection_repeats_what_the_agent_must_not_miss() -> None:
    """The newest of each kind, in the order of the first; a probe or a ping has its time."""
    served = ServedAttempt(HOST)
    served.note_sent({"type": "go", "env": {"A": "1"}}, 0.0)
    served.note_sent({"type": "ping"}, 1.0)
    served.note_sent({"type": "standby", "count": 2}, 2.0)
    served.note_sent({"type": "go", "env": {"A": "2"}}, 3.0)
    assert served.repeated(9.0) == [{"type": "go", "env": {"A": "2"}}, {"type": "standby", "count": 2}]
    assert served.repeated(9.0, "stop") == []


@pytest.mark.parametrize(("seconds", "left"), [(0.0, 7.0), (5.0, 2.0), (60.0, 0.0)])
def test_a_repeated_stop_has_the_rest_of_its_grace(seconds: float, left: float) -> None:
    served = ServedAttempt(HOST)
    served.note_sent({"type": "stop", "grace": 7.0}, 100.0)
    for _ in range(2):  # repeating it does not begin it again
        assert served.repeated(100.0 + seconds, "stop") == [{"type": "stop", "grace": left}]


@pytest.mark.parametrize(
    ("must_be_told", "code", "is_cut", "finished"),
    [
        (True, 0, False, True),
        (True, 1, False, False),  # the connection broke
        (True, 0, True, False),  # the session itself has closed it
        (False, 1, True, True),  # its agent may be gone; it ends with its lease
    ],
)
def test_a_session_ends_when_its_agent_knows(must_be_told: bool, code: int, is_cut: bool, finished: bool) -> None:
    channel = FakeChannel(code=code)
    closing = Closing()
    closing.note_end(channel)  # before `close`, an end is none of the session's
    assert not closing.is_told
    closing.is_closed, closing.must_be_told = True, must_be_told
    closing.cut = channel if is_cut else None
    closing.note_end(channel)
    assert closing.is_finished == finished

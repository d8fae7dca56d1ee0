"""Messages for the supervisor: frames wait for room, other messages never do."""

from __future__ import annotations

import threading

from podrun.launcher.attempt.inbox import Inbox
from podrun.launcher.attempt.messages import Opened, Step


def test_messages_come_in_order() -> None:
    inbox = Inbox()
    assert inbox.take(0.0) is None
    inbox.put(Step.INTERRUPTED)
    inbox.put_frame(Opened("host-0", None))
    assert [inbox.take(0.0) for _ in range(3)] == [Step.INTERRUPTED, Opened("host-0", None), None]


def test_other_messages_have_room_when_frames_have_none() -> None:
    """A Ctrl-C comes from a signal handler, in the thread that would make room."""
    inbox = Inbox(1)
    inbox.put_frame(Opened("host-0", None))
    for _ in range(5):
        inbox.put(Step.INTERRUPTED)
    assert inbox.take(0.0) == Opened("host-0", None)
    inbox.put_frame(Opened("host-1", None))  # in its place; would wait for ever without it
    assert [inbox.take(0.0) for _ in range(6)] == [*[Step.INTERRUPTED] * 5, Opened("host-1", None)]


def test_frames_wait_for_room() -> None:
    """Only frames free room in the inbox for further frames."""
    inbox = Inbox(1)
    inbox.put(Step.INTERRUPTED)
    inbox.put_frame(Opened("host-0", None))
    sent = threading.Event()

    def send() -> None:
        inbox.put_frame(Opened("host-1", None))
        sent.set()

    threading.Thread(target=send, daemon=True).start()
    assert inbox.take(0.0) == Step.INTERRUPTED and not sent.wait(0.2)
    assert inbox.take(0.0) == Opened("host-0", None) and sent.wait(20)


def test_a_closed_inbox_keeps_no_sender() -> None:
    """Neither one that waits already, nor one that comes later."""
    inbox = Inbox(0)
    sender = threading.Thread(target=inbox.put_frame, args=[Opened("host-0", None)], daemon=True)
    sender.start()
    inbox.close(1)
    sender.join(20)
    assert not sender.is_alive()
    while inbox.take(0.0) is not None:
        pass
    inbox.put_frame(Opened("host-1", None))
    assert inbox.take(0.0) is None

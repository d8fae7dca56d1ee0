"""Messages for the supervisor from other threads. Hosts that send faster than it handles them wait."""

from __future__ import annotations

import queue
import threading

from .messages import Message

MAX_PENDING_FRAMES = 256  # frames that wait to be handled; then the hosts wait


class Inbox:
    """A queue of messages, with a limit for the frames of hosts."""

    def __init__(self, most_frames: int = MAX_PENDING_FRAMES) -> None:
        self._messages: queue.SimpleQueue[tuple[Message, bool]] = queue.SimpleQueue()
        self._slots = threading.Semaphore(most_frames)
        self._is_closed = False

    def put(self, message: Message) -> None:
        """Add a message. Never waits, so that a signal handler may call it."""
        self._messages.put((message, False))

    def put_frame(self, message: Message) -> None:
        """Add a message with a frame, once there is room. Drops it if the inbox is closed."""
        if self._is_closed:
            return
        self._slots.acquire()
        self._messages.put((message, True))

    def take(self, timeout: float) -> Message | None:
        """Return the oldest message; None if none comes within `timeout` seconds."""
        try:
            message, has_slot = self._messages.get(timeout=timeout)
        except queue.Empty:
            return None
        if has_slot:
            self._slots.release()
        return message

    def close(self, senders: int) -> None:
        """Take no more frames. `senders`: number of threads that may wait in `put_frame`, and go on now."""
        self._is_closed = True
        self._slots.release(senders)

"""PURE: find the reason why a process ended in the last lines of its output."""

from __future__ import annotations

import re

from .cause import is_peer_loss

_FRAME = re.compile(r'^ +File "(?P<file>[^"\n]+)", line (?P<line>\d+)', re.MULTILINE)
_TRACEBACK = "Traceback (most recent call last):\n"
_LIBRARIES = re.compile(r"/(site|dist)-packages/|/lib/python3\.\d+/|^<")
_SHUTDOWN_LIMIT = "Barrier timed out. Id: Shutdown"  # JAX's words
_CRASH = "Fatal Python error: "
_NO_FRAME = "<no Python frame>"
_MOST = 300  # characters of a message


def failure_summary(output: bytes) -> str | None:
    """Return why a process ended: `ValueError: boom (train.py:12)` from the last traceback in its output.

    Returns `in train.py:12` for a crash in native code, and None if neither is in the output. The format of the second
    is described in https://docs.python.org/3/library/faulthandler.html.
    """
    text = output.decode(errors="replace")
    crash = text.rfind(_CRASH)
    begin = text.rfind(_TRACEBACK)
    if crash > begin:
        where = _users_frame(text[crash:], innermost=0)
        late = "the processes did not end within JAX's shutdown_timeout_seconds of each other"
        words = [*([late] if _SHUTDOWN_LIMIT in text else []), *([f"in {where}"] if where else [])]
        return ", ".join(words) or None
    if begin < 0:
        return None
    frames, message = _split(text[begin + len(_TRACEBACK) :])
    where = _users_frame(frames, innermost=-1)
    return f"{message[:_MOST]}{f' ({where})' if where else ''}" if message else None


def abort_reason(output: bytes) -> str:
    """Return why native code ended a process by SIGABRT, as far as its output says so."""
    if is_peer_loss(output):
        return "native code gave up after the loss of another process"
    crash = output.decode(errors="replace").rpartition(_CRASH)[2]
    if _NO_FRAME in crash and not _FRAME.search(crash) and "torch._C" in crash:  # the program itself has ended
        return (
            "native code gave up at exit, after the program's last line; torch does so without "
            "torch.distributed.destroy_process_group(), and now and then with it; os._exit(0) as the last line prevents it"
        )
    return "native code gave up"


def _split(text: str) -> tuple[str, str]:
    """Return the frames of a traceback, and the first line with words of the exception that follows them."""
    lines = text.splitlines()
    end = next((number for number, line in enumerate(lines) if line[:1] not in (" ", "")), len(lines))
    message = lines[end].strip() if end < len(lines) else ""
    if message.endswith(":"):  # as torchrun's, which begins with a row of `=`
        message += next((f" {line.strip()}" for line in lines[end + 1 :] if any(map(str.isalnum, line))), "")
    return "\n".join(lines[:end]), message


def _users_frame(text: str, innermost: int) -> str | None:
    """Return `file:line` of the first (`innermost` 0) or last (-1) frame outside of libraries, or of any frame."""
    frames = list(_FRAME.finditer(text))
    chosen = [frame for frame in frames if not _LIBRARIES.search(frame["file"])] or frames
    return f"{chosen[innermost]['file']}:{chosen[innermost]['line']}" if chosen else None

"""The last words of a program, for one that could not report why it failed."""

from __future__ import annotations

import pytest

from podrun.launcher.attempt.failure_summary import abort_reason, failure_summary

TRACEBACK = b"""epoch 1
Traceback (most recent call last):
  File "/jobs/train.py", line 12, in <module>
    main()
  File "/jobs/train.py", line 8, in main
    step()
    ~~~~^^
  File "/venv/lib/python3.11/site-packages/jax/_src/api.py", line 300, in step
    raise ValueError
ValueError: boom: bang
and more of it
"""
CRASH = b"""Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/jobs/train.py", line 41 in fail
  File "/jobs/train.py", line 80 in main

Extension modules: numpy._core (total: 1)
"""


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (TRACEBACK, "ValueError: boom: bang (/jobs/train.py:8)"),
        (TRACEBACK + b"logger: closed\n", "ValueError: boom: bang (/jobs/train.py:8)"),
        (TRACEBACK + b"\nDuring handling of the above exception, another exception occurred:\n\n" + TRACEBACK.replace(
            b"ValueError: boom", b"KeyError: 'x'"), "KeyError: 'x': bang (/jobs/train.py:8)"),
        (CRASH, "in /jobs/train.py:41"),
        (TRACEBACK + CRASH, "in /jobs/train.py:41"),
        (b"Fatal Python error: Aborted\n", None),
        (b"Barrier timed out. Id: Shutdown::1::0.\n" + CRASH,
         "the processes did not end within JAX's shutdown_timeout_seconds of each other, in /jobs/train.py:41"),
        (b"Traceback (most recent call last):\n  File \"<string>\", line 1, in <module>\nZeroDivisionError\n",
         "ZeroDivisionError (<string>:1)"),
        (b"Traceback (most recent call last):\n", None),
        (b"Traceback (most recent call last):\n  File \"cut o", None),
        (b"error: no such file\n", None),
        (b"", None),
        (TRACEBACK.replace(b"boom: bang", b"keys:\n\n---\n  a, b"), "ValueError: keys: a, b (/jobs/train.py:8)"),
        (TRACEBACK[: TRACEBACK.index(b"boom")] + b"", "ValueError: (/jobs/train.py:8)"),
        (b"\xff\xfe" + TRACEBACK, "ValueError: boom: bang (/jobs/train.py:8)"),
    ],
)  # fmt: skip
def test_failure_summary(output: bytes, words: str | None) -> None:
    """Type, message and the innermost line outside of libraries; nothing where there is nothing to say."""
    assert failure_summary(output) == words


AT_EXIT = b"""terminate called without an active exception
Fatal Python error: Aborted

Thread 0x00007f (most recent call first):
  <no Python frame>

Extension modules: numpy._core._multiarray_umath, torch._C, torch._C._dynamo.eval_frame (total: 12)
"""
IN_A_LINE = b"""Fatal Python error: Aborted

Current thread 0x00007f (most recent call first):
  File "/jobs/train.py", line 41 in fail

Extension modules: torch._C (total: 1)
"""


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (AT_EXIT, "os._exit(0) as the last line prevents it"),
        (IN_A_LINE, "native code gave up"),
        (AT_EXIT.replace(b"torch", b"mine"), "native code gave up"),
        (
            b"Terminating process because the JAX distributed service detected fatal errors\n" + AT_EXIT,
            "the loss of another",
        ),
        (b"[gloo] Connection closed by peer\n" + IN_A_LINE, "native code gave up after the loss of another process"),
        (b"", "native code gave up"),
    ],
)
def test_why_native_code_gave_up(output: bytes, reason: str) -> None:
    """JAX is named for nothing that its output does not show."""
    assert abort_reason(output).endswith(reason) or f"{reason} process" in abort_reason(output)
    assert "JAX" not in abort_reason(output)


def test_they_are_short() -> None:
    """The last line of podrun holds them."""
    words = failure_summary(b"Traceback (most recent call last):\nValueError: " + b"x" * 10**6)
    assert words is not None
    assert len(words) == 300

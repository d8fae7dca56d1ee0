"""podrun's own frames in a traceback that is shown."""

from __future__ import annotations

import pytest

import podrun.runtime.train
from podrun.launcher.view.folded_frames import fold_frames

OWN = [
    f'  File "{podrun.runtime.train.__file__}", line 12, in train',
    "    trainer.run()",
    "    ^^^^^^^^^^^^^",
    '  File "/home/me/.podrun/code/1f/podrun/loop.py", line 7, in __iter__',
    "    self._save()",
]
USERS = ['  File "/home/me/podrun/loop.py", line 3, in <module>', "    for step in train:"]
BEGIN = "Traceback (most recent call last):"
CAUSE = "The above exception was the direct cause of the following exception:"


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        (
            [BEGIN, *OWN, *USERS, "ValueError: boom"],
            [BEGIN, "  ... 2 frames of podrun, the last one in loop.py:7", *USERS, "ValueError: boom"],
        ),
        (
            [BEGIN, *USERS, *OWN[:3], "TypeError: no"],
            [BEGIN, *USERS, "  ... 1 frame of podrun, the last one in train.py:12", "TypeError: no"],
        ),
        ([BEGIN, *OWN, "KeyError: a bug of podrun"], [BEGIN, *OWN, "KeyError: a bug of podrun"]),
        (
            [BEGIN, *OWN, "OSError: x", "", CAUSE, "", BEGIN, *USERS, *OWN, "ValueError: y"],
            [
                *(BEGIN, *OWN, "OSError: x", "", CAUSE, ""),
                *(BEGIN, *USERS, "  ... 2 frames of podrun, the last one in loop.py:7", "ValueError: y"),
            ],
        ),
        (["step 3/10", "    indented text", "killed"], ["step 3/10", "    indented text", "killed"]),
    ],
)
def test_frames_of_podrun_are_one_line(lines: list[str], shown: list[str]) -> None:
    assert fold_frames(lines) == shown

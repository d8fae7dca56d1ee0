"""Describe the run that holds a host, and say how to end it."""

from __future__ import annotations

import re
from typing import Optional

from .private import user_name

_IS_RUN = re.compile(r"run ([\w.-]+) of ")


def describe_holder(run: str, uid: Optional[int], pid: int) -> str:
    """Return the text for a message: `run R of alice (uid 1001, agent pid 7)`. An empty `run` and 0 as `pid` are unknown."""
    name = "run %s" % run if run else "a run that does not answer"
    if uid is None:
        return "%s of another user" % name
    return "%s of %s (uid %d%s)" % (name, user_name(uid), uid, ", agent pid %d" % pid if pid else "")


def how_to_end(holder: str) -> str:
    """Return what ends the run of a text of `describe_holder`, as a clause: with the command, if the run is known."""
    run = _IS_RUN.match(holder)
    return "`podrun stop %s` ends it where it was started" % run.group(1) if run else "wait for its end"

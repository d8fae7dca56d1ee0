"""`agent checkpoints`: list and verify the checkpoints of a workdir, or change some."""

from __future__ import annotations

import difflib
import errno
import fcntl
import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, List

from ..base.disk import names_in
from ..base.stdin import read_request
from .checkpoint_files import NAME, PINNED, has_manifest, list_checkpoints, names_of, step_of, verify

if TYPE_CHECKING:
    from ..base.from_agent import Checkpoints
    from ..base.to_agent import CheckpointsRequest

REMOVED = ".podrun-removed"
FOLDER = "checkpoints"
LOCK = ".podrun-lock"
"""Names in a workdir, as in `runtime.contract` and `runtime.checkpoint.retention`."""
_SHOWN = 5  # most names in a message


class RequestError(Exception):
    """The request cannot be carried out; the message says why and what to do."""


def checkpoints() -> None:
    request: CheckpointsRequest = read_request("checkpoints")
    workdir = os.path.abspath(os.path.expanduser(request["workdir"]))
    answer: Checkpoints = {"error": None, "workdir": workdir, "done": [], "rows": []}
    try:
        folder = _folder(workdir)
        if request["action"] is not None:
            with Lock(workdir):
                answer["done"] = _act(folder, request["action"], request["names"])
        answer["rows"] = list_checkpoints(folder)
    except RequestError as error:
        answer["error"] = str(error)
    except OSError as error:
        answer["error"] = "%s: %s" % (error.filename or workdir, error.strerror)
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _folder(workdir: str) -> str:
    """Return the folder of the checkpoints. Raises RequestError without checkpoints."""
    folder = os.path.join(workdir, FOLDER)
    if os.path.isfile(workdir):
        raise RequestError("%s is a file; a workdir is the folder that a run writes to" % workdir)
    if not os.path.isdir(workdir):
        above, name = os.path.split(workdir)
        near = difflib.get_close_matches(name, names_in(above), n=1)
        meant = "; did you mean %s?" % os.path.join(above, near[0]) if near else "; is it on another machine (--pod)?"
        raise RequestError("there is no folder %s%s" % (workdir, meant))
    if not os.path.isdir(folder) or not names_of(folder):
        raise RequestError("%s has no checkpoints; a workdir is the folder that a run writes to" % workdir)
    return folder


class Lock:
    """The lock of a workdir, which a run also holds. Entering it raises RequestError during a run."""

    def __init__(self, workdir: str) -> None:
        self._workdir = workdir
        self._fd = os.open(os.path.join(workdir, LOCK), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)

    def __enter__(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                return  # a file system without locks
            words = os.pread(self._fd, 200, 0).decode(errors="replace").split()
            owner = " ".join(filter(str.isprintable, words))  # any program may have written it
            run = owner.partition(" ")[0]
            remedy = "run %s; `podrun stop %s` ends it where it was started" % (owner, run) if owner else "another run"
            raise RequestError("%s is in use by %s" % (self._workdir, remedy))

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


# --- changes ----------------------------------------------------------------------------------------------------------


def _act(folder: str, action: str, names: List[str]) -> List[str]:
    """Resolve all names, then carry out the action. Returns a text for each change. Raises RequestError, OSError."""
    chosen = [_resolve(folder, name, aside=action == "restore") for name in names]
    if action == "restore":
        return _restore(folder, chosen[0])
    return [{"drop": _drop, "keep": _pin, "unpin": _unpin}[action](folder, name) for name in chosen]


def _resolve(folder: str, name: str, aside: bool) -> str:
    """Return the checkpoint of a name. With `aside`, a step also means one that was set aside. Raises RequestError."""
    names = names_of(folder)
    if name in names:
        return name
    same = [other for other in names if NAME.fullmatch(name) and step_of(other) == step_of(name)]
    if same and aside and "." not in name:
        return same[0]  # `aside` before `damaged`
    if NAME.fullmatch(name):
        near = sorted(names, key=lambda other: abs(step_of(other) - step_of(name)))[:_SHOWN]
        raise RequestError("there is no checkpoint %s in %s; the nearest: %s" % (name, folder, ", ".join(near)))
    raise RequestError("%s is not a step; checkpoints there: %s" % (json.dumps(name[:40]), ", ".join(names[-_SHOWN:])))


def _drop(folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    shutil.rmtree(path + REMOVED, ignore_errors=True)
    os.rename(path, path + REMOVED)
    shutil.rmtree(path + REMOVED, ignore_errors=True)
    return "removed %s" % name


def _pin(folder: str, name: str) -> str:
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    os.close(os.open(os.path.join(folder, name, PINNED), flags, 0o644))
    return "%s is kept, however many newer ones there are" % name


def _unpin(folder: str, name: str) -> str:
    try:
        os.unlink(os.path.join(folder, name, PINNED))
    except FileNotFoundError:
        return "%s was not kept before" % name
    return "%s is no longer kept: newer checkpoints will replace it" % name


def _restore(folder: str, name: str) -> List[str]:
    """Make a checkpoint the newest: set newer ones aside, and rename it to its step if it was set aside itself."""
    problem = verify(os.path.join(folder, name))[1]
    if problem is not None:
        raise RequestError("checkpoint %s in %s is damaged: %s" % (name, folder, problem))
    step, done = step_of(name), []
    for other in names_of(folder):
        if "." not in other and (step_of(other) > step or (step_of(other) == step and other != name)):
            aside = _unused(folder, "%s.aside" % other)
            os.rename(os.path.join(folder, other), os.path.join(folder, aside))
            done.append("%s is set aside as %s" % (other, aside))
    if "." in name:
        os.rename(os.path.join(folder, name), os.path.join(folder, str(step)))
        done.append("%s is %d again" % (name, step))
    if not has_manifest(os.path.join(folder, str(step))):
        others = [other for other in names_of(folder) if "." not in other and step_of(other) < step]
        if listed := [other for other in others if has_manifest(os.path.join(folder, other))]:
            done.append("%d has no manifest to verify it by, so a start prefers an older one that has" % step)
            step = step_of(listed[-1])
    return [*done, "the next start resumes from step %d" % step]


def _unused(folder: str, start: str) -> str:
    number = 1
    while os.path.lexists(os.path.join(folder, "%s-%d" % (start, number))):
        number += 1
    return "%s-%d" % (start, number)

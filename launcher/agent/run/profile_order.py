"""`agent profile`: ask a worker on this host for a profiler trace, or cancel the request.

Between two steps, a worker of podrun's runtime checks whether there is a request. It reports the outcome as events.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import TYPE_CHECKING, Optional

from ..base.places import SOCKET
from ..base.stdin import read_request

if TYPE_CHECKING:
    from ..base.to_agent import ProfileRequest


def profile() -> None:
    request: ProfileRequest = read_request("profile")
    folder = os.path.expanduser(request["dir"])
    try:
        os.chdir(folder)
        error = None
        if request["steps"]:
            error = _order(request)
        else:
            _cancel(request, folder)
    except OSError as failure:
        error = "%s: %s" % (failure.filename or folder, failure.strerror)
    sys.stdout.write(json.dumps({"error": error}) + "\n")
    sys.stdout.flush()


def _order(request: ProfileRequest) -> Optional[str]:
    """Write the order, unless there is one already. Returns the error, or None."""
    if not os.path.exists(SOCKET):
        return "the run has no agent on this host any more"
    part = request["trace"] + ".order"
    try:
        with open(part, "x") as file:
            json.dump({"id": request["id"], "steps": request["steps"]}, file)
        os.link(part, request["order"])  # atomic, and never replaces another order
    except FileExistsError:
        return "it is being profiled already; try again when that is done"
    finally:
        _remove(part)
    return None


def _cancel(request: ProfileRequest, folder: str) -> None:
    """Remove the request's own order and its trace, then the run's folder if it is empty, as after the end of the run."""
    try:
        with open(request["order"]) as file:
            is_mine = json.load(file)["id"] == request["id"]
    except (OSError, ValueError, KeyError):
        is_mine = False
    if is_mine:
        _remove(request["order"])
    shutil.rmtree(request["trace"], ignore_errors=True)
    os.chdir("/")
    for _ in range(3):  # the folder and the two above it, which `run_folder` made
        try:
            os.rmdir(folder)
        except OSError:
            return  # not empty: the run goes on
        folder = os.path.dirname(folder)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass

"""`agent profile`: ask a worker of this host for a trace, or take that back. One JSON line in, one out.

The request: {"dir", "order", "trace", "id", "steps"}: the run's folder, and the names of a file and a folder in it. Without
steps the order is taken back, and the trace is removed. The answer: {"error"}. A worker of podrun's runtime looks for the
order between its steps, and reports by events.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any, Dict, Optional

from ..base.run_folder import SOCKET
from ..base.stdin import read_line


def profile() -> None:
    request = json.loads(read_line(0)[0])
    folder = os.path.expanduser(request["dir"])
    try:
        os.chdir(folder)
        error = None
        if request["steps"]:
            error = _order(request)
        else:
            _take_back(request, folder)
    except OSError as failure:
        error = "%s: %s" % (failure.filename or folder, failure.strerror)
    sys.stdout.write(json.dumps({"error": error}) + "\n")
    sys.stdout.flush()


def _order(request: Dict[str, Any]) -> Optional[str]:
    """Write the order, unless there is one. Return what is wrong."""
    if not os.path.exists(SOCKET):
        return "the run has no agent on this host any more"
    part = request["trace"] + ".order"
    try:
        with open(part, "x") as file:
            json.dump({"id": request["id"], "steps": request["steps"]}, file)
        os.link(part, request["order"])  # whole, and never over another
    except FileExistsError:
        return "it is being profiled already; try again when that is done"
    finally:
        _remove(part)
    return None


def _take_back(request: Dict[str, Any], folder: str) -> None:
    """Remove the order, if it is this one, and the trace; and the folder if a run that is over has left it for that."""
    try:
        with open(request["order"]) as file:
            is_mine = json.load(file)["id"] == request["id"]
    except (OSError, ValueError, KeyError):
        is_mine = False
    if is_mine:
        _remove(request["order"])
    shutil.rmtree(request["trace"], ignore_errors=True)
    os.chdir("/")
    for _ in range(3):  # the folder, and the two above, as in `run_folder`
        try:
            os.rmdir(folder)
        except OSError:
            return  # the run goes on
        folder = os.path.dirname(folder)


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass

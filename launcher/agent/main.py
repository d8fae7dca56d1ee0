"""Entry point of the agent: `agent COMMAND`."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import List

from .base.private import keep_private
from .base.protocol import FORKSERVER, MARK
from .base.watchdog import end_with_connection

_REQUESTS = {
    "prepare": ("prepare.prepare", "prepare"),
    "bring": ("prepare.receive_data", "receive_data"),
    "execute": ("run.execute", "execute"),
    "clean": ("run.clean", "clean"),
    "checkpoints": ("results.checkpoints", "checkpoints"),
    "bucket": ("results.bucket", "try_bucket"),
    "files": ("results.send_files", "send_files"),
    "profile": ("run.profile_order", "profile"),
}
"""Commands that read a request from stdin, with the module and function of each. The module is imported when it is needed."""
_QUERIES = {"facts": 0, "listen": 2, "reach": 1, "share": 1, "see": 1}
"""Commands of `query`, with their number of arguments."""


def main(argv: List[str]) -> None:
    keep_private()
    if argv == [FORKSERVER]:
        from .run.forkserver import forkserver

        argv = forkserver()
    os.write(1, MARK)
    command, args = argv[0] if argv else "", argv[1:]
    if command == "run" and len(args) == 1:
        from .run.relay import run

        run()
        os._exit(0)  # a regular exit would write to, and so copy, all the memory shared with the forkserver
    elif command == "attach" and len(args) == 1:
        from .run.relay import relay

        relay(os.path.expanduser(args[0]), b"")
        os._exit(0)
    elif command == "sweep" and len(args) == 2:
        from .run.sweep import sweep

        sweep(*args)
    elif command == "rest" and len(args) == 1:
        from .run.unsent_output import send_unsent_output

        end_with_connection()
        send_unsent_output(*args)
    elif not args and command in _REQUESTS:
        end_with_connection()
        module, function = _REQUESTS[command]
        sys.exit(getattr(import_module("." + module, __package__), function)())
    elif _QUERIES.get(command) == len(args):
        from .query import COMMANDS

        end_with_connection()
        COMMANDS[command](*args)
    else:
        sys.exit("agent: unknown command %r" % argv)

"""Entry point of the agent: `agent COMMAND`."""

from __future__ import annotations

import os
import sys
from typing import List

from .private import keep_private
from .protocol import MARK, NURSERY

_ANSWERS = {"facts": 0, "listen": 2, "reach": 1, "share": 1, "see": 1}
"""Commands of `answer`, with their number of arguments."""


def main(argv: List[str]) -> None:
    keep_private()
    if argv == [NURSERY]:
        from .nursery import nursery

        argv = nursery()
    os.write(1, MARK)
    command, args = argv[0] if argv else "", argv[1:]
    if command == "run" and len(args) == 1:
        from .relay import run

        run()
        os._exit(0)  # taking the interpreter apart would touch, and so copy, all the memory that copies share
    elif command == "attach" and len(args) == 1:
        from .relay import relay

        relay(os.path.expanduser(args[0]), b"")
        os._exit(0)
    elif command == "sweep" and len(args) == 2:
        from .sweep import sweep

        sweep(*args)
    elif command == "rest" and len(args) == 1:
        from .rest import rest

        rest(*args)
    elif command == "prepare" and not args:
        from .prepare import prepare

        prepare()
    elif command == "bring" and not args:
        from .bring import bring

        bring()
    elif command == "execute" and not args:
        from .execute import execute

        sys.exit(execute())
    elif command == "clean" and not args:
        from .clean import clean

        clean()
    elif command == "checkpoints" and not args:
        from .checkpoints import checkpoints

        checkpoints()
    elif command == "profile" and not args:
        from .profile import profile

        profile()
    elif command == "bucket" and not args:
        from .bucket import try_bucket

        try_bucket()
    elif command == "files" and not args:
        from .send_files import send_files

        send_files()
    elif _ANSWERS.get(command) == len(args):
        from .answer import COMMANDS

        COMMANDS[command](*args)
    else:
        sys.exit("agent: unknown command %r" % argv)

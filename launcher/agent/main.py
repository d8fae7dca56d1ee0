"""`agent COMMAND`: what runs first on a host."""

from __future__ import annotations

import os
import sys
from typing import List

MARK = b"podrun-agent\n"
"""The first words on stdout. What a login script printed before them is not ours."""


def main(argv: List[str]) -> None:
    os.write(1, MARK)
    command, args = argv[0] if argv else "", argv[1:]
    if command == "run" and len(args) == 1:
        from .relay import run

        run()
    elif command == "attach" and len(args) == 1:
        from .relay import relay

        relay(os.path.expanduser(args[0]), b"")
    elif command == "sweep" and len(args) == 2:
        from .sweep import sweep

        sweep(*args)
    else:
        sys.exit("agent: unknown command %r" % argv)

"""`agent rest DIR`: sends what an agent that is gone could not send any more, as the frames that it would have sent."""

from __future__ import annotations

import json
import os
import sys

from . import protocol
from .connection import CHUNK
from .relay import read_line


def rest(directory: str) -> None:
    """Read an `attach` frame, which says what the launcher has, and write all `output` beyond that.

    Nobody writes to the files any more: what the agent had started must have been ended before.
    """
    request = protocol.parse(read_line(0)[0], protocol.TO_AGENT)
    try:
        os.chdir(os.path.expanduser(directory))
        streams = sorted(name for name in os.listdir(".") if name.endswith((".events", ".out")))
    except OSError as error:
        sys.exit("cannot read %s: %s" % (directory, error.strerror))
    for stream in streams:
        _send(stream, request["offsets"].get(stream, 0))


def _send(stream: str, offset: int) -> None:
    with open(stream, "rb") as file:
        file.seek(offset)
        while True:
            data = file.read(CHUNK)
            if not data:
                return
            text = data.decode("utf-8", "surrogateescape")
            frame = {"type": "output", "stream": stream, "offset": offset, "data": text}
            sys.stdout.buffer.write(json.dumps(frame).encode() + b"\n")
            sys.stdout.buffer.flush()
            offset += len(data)

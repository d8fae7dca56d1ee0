"""`agent rest DIR`: send the output that an agent had not sent when it died, in the same frames."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from ..base.connection import CHUNK
from ..base.protocol import Malformed, parse
from ..base.stdin import read_line
from ..base.to_agent import ATTACH
from .outbox import open_stream

if TYPE_CHECKING:
    from ..base.to_agent import Attach


def send_unsent_output(directory: str) -> None:
    """Read an `attach` frame from stdin, and write all output beyond its offsets to stdout in `output` frames.

    All processes of the agent must have ended, so that the files no longer grow.
    """
    try:
        request: Attach = parse(read_line(0)[0], ATTACH)
    except Malformed as why:
        sys.exit("malformed request: %s" % why)
    try:
        os.chdir(os.path.expanduser(directory))
        streams = sorted(name for name in os.listdir(".") if name.endswith((".events", ".out")))
    except OSError as error:
        sys.exit("cannot read %s: %s" % (directory, error.strerror))
    for stream in streams:
        try:
            _send(stream, request["offsets"].get(stream, 0))
        except OSError as error:  # send the other streams
            print("cannot read %s: %s" % (stream, error.strerror), file=sys.stderr)


def _send(stream: str, offset: int) -> None:
    with open_stream(stream) as file:
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

"""TensorBoard's event files, read."""

from __future__ import annotations

import struct
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event


def tensorboard_events(folder: Path) -> list[Event]:
    """Return what is in the event files: records of length, checksum, data and checksum."""
    events = []
    for file in sorted(folder.iterdir()):
        data = file.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            events.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return events

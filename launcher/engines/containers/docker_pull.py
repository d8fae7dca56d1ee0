"""Shorten what `docker pull` and `podman pull` print: several lines for each layer of an image, and for each host. PURE."""

from __future__ import annotations

import re

_LAYER = re.compile(rb"[0-9a-f]{12}: (.*)")
_BEGUN, _DONE = (b"Pulling fs layer", b"Already exists"), (b"Pull complete", b"Already exists")


class PullLines:
    """The lines that are worth showing, among them one for each layer that is complete."""

    def __init__(self) -> None:
        self._rest = b""
        self._layers = 0
        self._complete = 0

    def feed(self, data: bytes) -> bytes:
        """Return the complete lines to show after more output; empty if there are none."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return b"".join(shown + b"\n" for line in lines if (shown := self._shorten(line.rstrip())))

    def _shorten(self, line: bytes) -> bytes:
        if line.startswith(b"Copying blob"):  # podman does not say when it is copied
            return b""
        layer = _LAYER.fullmatch(line)
        if layer is None:
            return line
        self._layers += layer[1] in _BEGUN
        self._complete += layer[1] in _DONE
        return b"%d of %d layers of the image" % (self._complete, self._layers) if layer[1] in _DONE else b""

"""Compile the agent when it is stored: compiling at every start would double its start time."""

from __future__ import annotations

import importlib.util
import io
import marshal
import zipfile

_UNCHECKED = (1).to_bytes(4, "little")  # PEP 552: identified by the source's hash, which Python does not check


def with_compiled(data: bytes) -> bytes:
    """Return the agent's zip with compiled code for this Python added to each module.

    Another version of Python, which may share the folder, ignores that code and compiles the sources.
    """
    buffer = io.BytesIO(data)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
        for name in archive.namelist():
            source = archive.read(name)
            code = marshal.dumps(compile(source, name, "exec", dont_inherit=True))
            header = importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source)
            archive.writestr(name + "c", header + code)
    return buffer.getvalue()

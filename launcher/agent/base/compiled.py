"""Compile the agent once, when it is stored: otherwise every start would spend half of its time on it."""

from __future__ import annotations

import importlib.util
import io
import marshal
import zipfile

_UNCHECKED = (1).to_bytes(4, "little")  # PEP 552: identified by the source's hash, which is not looked at again


def with_compiled(data: bytes) -> bytes:
    """Return the agent's zip with each module's code for this Python added.

    Another version of Python, which may share the folder, ignores the code and compiles the sources that are still there.
    """
    buffer = io.BytesIO(data)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as archive:
        for name in archive.namelist():
            source = archive.read(name)
            code = marshal.dumps(compile(source, name, "exec", dont_inherit=True))
            header = importlib.util.MAGIC_NUMBER + _UNCHECKED + importlib.util.source_hash(source)
            archive.writestr(name + "c", header + code)
    return buffer.getvalue()

"""Pack the project and podrun into bundles. A bundle is named by its content, so each host receives it only once."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
import zlib
from collections.abc import Collection, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from podrun.runtime.contract import UserError
from podrun.runtime.safe_name import why_unsafe

from ..agent.prepare.extract import stays_inside
from .bundle import GZIP, Bundle
from .packed import keep_packed, key_of, packed
from .private_files import is_private_content
from .project_files import IGNORE_FILE, MAX_BYTES, find_project, shown, unreadable

_FAST = 1  # gzip level; compressing must not take longer than sending


def project_bundle(cwd: Path) -> tuple[Bundle, str]:
    """Pack the project that contains `cwd`. Returns the bundle, and the path of `cwd` in it (`.` for its root).

    The project is the git work tree without ignored files; outside of a work tree it is the folder. Files with keys or
    passwords are left out. Raises UserError if it is too large, or contains a file that cannot be read.
    """
    project = find_project(cwd)
    pack = _Pack(project.private, project.asked_for)
    for name in project.files:
        pack.add(project.root / name, name)
    if project.subfolder != "." and not any(name.startswith(f"{project.subfolder}/") for name in project.files):
        pack.add_folder(project.subfolder)
    return pack.bundle("project"), project.subfolder


def podrun_bundle() -> Bundle:
    """Pack podrun without its launcher, or return the stored bundle if no file has changed.

    Workers import podrun from the folder of the bundle, which is in their PYTHONPATH. Raises UserError if podrun was
    installed in an older layout.
    """
    api, runtime = _folder("podrun"), _folder("podrun.runtime")
    files = {
        **{f"podrun/{path.name}": path for path in [*api.glob("*.py"), api / "py.typed"]},
        **{f"podrun/runtime/{path.relative_to(runtime).as_posix()}": path for path in runtime.rglob("*.py")},
        "podrun/runtime/py.typed": runtime / "py.typed",
    }
    key = key_of(files)
    if (bundle := packed(key)) is not None:
        return bundle
    pack = _Pack(asked_for=files.keys())
    for name in sorted(files):
        pack.add(files[name], name)
    bundle = pack.bundle("podrun")
    keep_packed(key, bundle)
    return bundle


def executables_bundle(files: Mapping[str, Path]) -> Bundle:
    """Pack stored executables and their list. Raises UserError if they are too large."""
    pack = _Pack(asked_for=files.keys())
    for name in sorted(files):
        pack.add(files[name], name)
    return pack.bundle("programs")


def _folder(package: str) -> Path:
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise UserError(
            f"{package} is not completely installed; install podrun again, in its folder: pip install --editable ."
        )
    return Path(spec.origin).parent


class _Pack:
    """An archive that is being made. It has only name, content and executable bit of each file."""

    def __init__(self, private: Iterable[str] = (), asked_for: Collection[str] = ()) -> None:
        """Begin an archive.

        Args:
            private: files that were already left out because their names say that they contain keys.
            asked_for: files to include even if they contain keys.
        """
        self._private = list(private)
        self._asked_for = asked_for
        self._data = bytearray()
        # zlib in gzip's format, without time or name; an abandoned GzipFile complains on stderr since Python 3.12
        self._gzip = zlib.compressobj(_FAST, wbits=GZIP)
        self._hash = hashlib.sha256()
        sink: Any = self  # tarfile only writes to it
        # names in GNU format are plain bytes of any length
        self._tar = tarfile.open(
            fileobj=sink, mode="w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
        )
        self._bytes = 0
        self._files = 0
        self._left_out: list[str] = []

    def tell(self) -> int:
        """Return 0. tarfile calls this once, and ignores the result when it only writes."""
        return 0

    def write(self, data: bytes) -> int:
        """Hash and compress the data that tarfile writes."""
        self._hash.update(data)
        self._data += self._gzip.compress(data)
        return len(data)

    def add(self, path: Path, name: str) -> None:
        """Add a file or a link. A file that was deleted meanwhile is skipped. Raises UserError."""
        if why_unsafe(name, any_characters=True):  # a path that is too long for hosts
            self._left_out.append(name)
            return
        try:
            if stat.S_ISLNK(os.lstat(path).st_mode):
                self._add_link(name, os.readlink(path))
            else:
                self._add_file(path, name)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise unreadable(path, error) from None

    def add_folder(self, name: str) -> None:
        info = _info(name, 0o755)
        info.type = tarfile.DIRTYPE
        self._tar.addfile(info)

    def _add_link(self, name: str, target: str) -> None:
        if not stays_inside(name, target):
            self._left_out.append(name)
            return
        info = _info(name, 0o777)
        info.type = tarfile.SYMTYPE
        info.linkname = _tar_name(target)
        self._tar.addfile(info)
        self._files += 1

    def _add_file(self, path: Path, name: str) -> None:
        # the file may have changed since it was listed: do not wait for a fifo, do not follow a link
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                return
            content = file.read(MAX_BYTES + 1)  # read before the size is recorded, because the file may change
        self._bytes += len(content)
        if self._bytes > MAX_BYTES:
            raise UserError(
                f"{shown(str(path))} is growing while it is packed for the hosts, beyond the limit of "
                f"{MAX_BYTES // 10**6} MB; name it in {IGNORE_FILE}"
            )
        if name not in self._asked_for and is_private_content(content):
            self._private.append(name)
            return
        info = _info(name, 0o755 if mode & stat.S_IXUSR else 0o644)
        info.size = len(content)
        self._tar.addfile(info, io.BytesIO(content))
        self._files += 1

    def bundle(self, kind: str) -> Bundle:
        self._tar.close()
        self._data += self._gzip.flush()
        name = f"{kind}-{self._hash.hexdigest()[:16]}"
        return Bundle(name, bytes(self._data), self._files, tuple(self._left_out), tuple(sorted(self._private)))


def _info(name: str, mode: int) -> tarfile.TarInfo:
    """Return a tar entry without time, owner and user names, which differ between machines."""
    info = tarfile.TarInfo(_tar_name(name))
    info.mode = mode
    return info


def _tar_name(name: str) -> str:
    """Return the name as tarfile encodes it, independent of the locale."""
    return os.fsencode(name).decode("utf-8", "surrogateescape")

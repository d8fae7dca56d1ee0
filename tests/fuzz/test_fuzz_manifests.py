"""A damaged manifest over files that may be damaged: every reader refuses it in one line, or has compared all files."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import strategies as st

from podrun.launcher.agent.results.checkpoint_files import list_checkpoints
from podrun.launcher.commands.checkpoints import as_table
from podrun.launcher.pod.errors import HostError
from podrun.launcher.remote.download import Listing
from podrun.launcher.results.folder import DownloadFolder
from podrun.launcher.results.selection import Selection
from podrun.launcher.results.transfer import Downloaded, Transfer
from podrun.runtime.checkpoint.damage import DamagedCheckpointError
from podrun.runtime.checkpoint.manifest import Verification, verify
from podrun.runtime.contract import CHECKPOINT_MANIFEST

from .cases import NUMBERS, fuzz, junk

FILES = {"meta/metadata": b'{"config": {}}', "state/d/a": b"weights", "state/_METADATA": b"{}", "other": b""}
TABLE = {name: [len(data), hashlib.sha256(data).hexdigest()] for name, data in FILES.items()}
SOUND = {"algorithm": "sha256", "files": TABLE}
TEXT = json.dumps(SOUND).encode()
PIECES = [
    b"e6849",
    b"1e999",
    b"-",
    b".5",
    b"\\u0000",
    b"\\ud800",
    b"\xff",
    b"../",
    b"/",
    b'"',
    b"{",
    b"9" * 5000,
    b"[" * 3000,
]
names = st.one_of(
    st.sampled_from([*FILES, "../x", "/dev/zero", "state/d", "state/d/a/b", "", "a\0", "\ud800", CHECKPOINT_MANIFEST]),
    st.text(max_size=5),
)
entries = st.one_of(st.sampled_from([*TABLE.values()]), junk, st.tuples(junk, junk).map(list))


@st.composite
def manifests(draw: st.DrawFn) -> bytes:
    """Draw a manifest of which a few characters, a value or an entry are something else."""
    kind = draw(st.integers(0, 3))
    if kind == 0:
        at, length = draw(st.integers(0, len(TEXT))), draw(st.integers(0, 3))
        return TEXT[:at] + draw(st.one_of(st.binary(max_size=3), st.sampled_from(PIECES))) + TEXT[at + length :]
    if kind == 1:
        return json.dumps({**SOUND, draw(st.sampled_from(["files", "algorithm", "x"])): draw(junk)}).encode()
    table = dict(TABLE)
    for _ in range(draw(st.integers(0, 2))):
        if draw(st.booleans()):
            table[draw(names)] = draw(entries)
        else:
            table.pop(draw(st.sampled_from(sorted(FILES))), None)
    return json.dumps({"files": table}).encode()


damages = st.sampled_from([None, None, None, *FILES, "state/more", "state/d/more"])
"""The file that is damaged, or is one more."""


class LocalSource:
    """A workdir on this machine, from which results are brought."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder)
        self.folder = folder

    def list_files(self) -> Listing:
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return Listing({path.relative_to(self.folder).as_posix(): path.stat().st_size for path in found}, 0)

    def get(self, path: str, have: int = 0, digest: str = "") -> LocalFile:
        return LocalFile((self.folder / path).read_bytes())

    def refuse(self, why: str) -> HostError:
        return HostError("here", why)

    def close(self) -> None: ...


class LocalFile:
    """A file of it, which comes whole."""

    offset = 0

    def __init__(self, data: bytes) -> None:
        self.size, self._data = len(data), data
        self.digest = hashlib.sha256(data).hexdigest()

    def pieces(self) -> Iterator[bytes]:
        yield self._data


def make(workdir: Path, manifest: bytes, damaged: str | None) -> Path:
    """Make checkpoint 1, which is sound, and checkpoint 2 with the manifest; return its folder."""
    for step in (1, 2):
        folder = workdir / "checkpoints" / str(step)
        for name, data in FILES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(data)
        (folder / CHECKPOINT_MANIFEST).write_bytes(TEXT if step == 1 else manifest)
    if damaged is not None:
        (folder / damaged).write_bytes(FILES.get(damaged, b"").swapcase() + b"x")
    return folder


def verdicts(workdir: Path, folder: Path) -> dict[str, str | None]:
    """Return what each reader says of checkpoint 2: the problem, or None."""
    problems: dict[str, str | None] = dict.fromkeys(("restore", "export", "list", "pull"))
    for name, check in (
        ("restore", lambda: Verification(2, folder, full=True).finish()),
        ("export", lambda: verify(2, folder, full=True)),
    ):
        try:
            check()
        except DamagedCheckpointError as error:
            problems[name] = str(error)
    rows = list_checkpoints(str(workdir / "checkpoints"))
    assert [row["problem"] for row in rows][:1] == [None] and len(as_table(rows).splitlines()) == 3
    problems["list"] = rows[1]["problem"]
    home = DownloadFolder(workdir.parent / "home", "here")
    try:
        downloaded = Downloaded()
        source = LocalSource(workdir)
        Transfer(source, "here", home, downloaded, lambda _: None, lambda *_: None).run(
            source.list_files(), Selection()
        )
    finally:
        home.close()
    assert 1 in downloaded.checkpoints
    problems["pull"] = next(iter(downloaded.problems), None)
    return problems


@pytest.mark.parametrize("number", NUMBERS)
def test_a_manifest_and_its_files(number: int) -> None:
    """No reader passes what another refuses, nor a state of which a file is not what it was; none writes elsewhere."""

    def check(case: tuple[bytes, str | None]) -> None:
        with tempfile.TemporaryDirectory() as temporary:
            workdir = Path(temporary, "workdir")
            problems = verdicts(workdir, make(workdir, *case))
            assert sorted(path.name for path in Path(temporary).iterdir()) == ["home", "workdir"]
            refused = {name for name, problem in problems.items() if problem is not None}
            assert refused in (set(), set(problems)), problems
            assert all(len(problem.splitlines()) == 1 for problem in problems.values() if problem is not None), problems
            if case[1] is not None and case[1] != "other":
                assert refused
            if case == (TEXT, None):
                assert not refused

    fuzz(st.tuples(st.one_of(st.just(TEXT), manifests(), manifests()), damages), check, number)

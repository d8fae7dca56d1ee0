"""Archives are unpacked into their folder and nowhere else."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from podrun.launcher.agent.prepare.extract import DamagedError, extract

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("../escaped", None)], "outside its folder"),
        ([("/tmp/podrun-escaped", None)], "outside its folder"),
        ([("a/../../escaped", None)], "outside its folder"),
        ([("link", "..")], "leads out"),
        ([("link", "/tmp")], "leads out"),
        ([("deep/link", "../../x")], "leads out"),
        ([("up", "."), ("link", "up/../..")], "leads out"),
        ([("link", "inside"), ("link/file", None)], "behind a link"),
        ([("link", "inside"), ("link", None)], "behind a link"),
    ],
)
def test_an_archive_never_writes_outside(tmp_path: Path, members: list[tuple[str, str | None]], message: str) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, target in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = (tarfile.SYMTYPE, target) if target else (tarfile.REGTYPE, "")
            archive.addfile(info)
    folder = tmp_path / "parent" / "folder"
    folder.mkdir(parents=True)
    with pytest.raises(DamagedError, match=message):
        extract(io.BytesIO(gzip.compress(buffer.getvalue())), str(folder), "")
    assert {path.name for path in tmp_path.rglob("*")} <= {"parent", "folder", "link", "up", "deep"}


def test_a_file_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    """Not even by the same archive: what somebody put into the folder may be a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("file"))
    with pytest.raises(FileExistsError):
        extract(io.BytesIO(gzip.compress(buffer.getvalue())), str(tmp_path), "")


def test_a_link_that_is_in_the_folder_already_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to("../outside")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("link/file"))
    with pytest.raises(DamagedError, match="behind a link: 'link/file'"):
        extract(io.BytesIO(gzip.compress(buffer.getvalue())), str(tmp_path / "folder"), "")
    assert list((tmp_path / "outside").iterdir()) == []

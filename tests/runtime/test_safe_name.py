"""A name from elsewhere becomes a path inside its folder, or is refused; the file system is looked at, not only the text."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from podrun.launcher.agent.base import safe_name as agents
from podrun.runtime import safe_name
from podrun.runtime.safe_name import UnsafeNameError, as_files, open_inside, path_inside, why_unsafe

parts = st.one_of(
    st.text(max_size=4),
    st.text(alphabet="ab.\\~-", max_size=3),
    st.sampled_from(["", ".", "..", "...", "~", "link", "folder", "pipe", "a\0", "C:", "\udc80", "\ud800", "x" * 256]),
)
names = st.one_of(st.lists(parts, max_size=5).map("/".join), st.text(max_size=12))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a link out of it, a pipe and a folder, beside a secret."""
    (tmp_path / "secret").write_text("of somebody else")
    folder = tmp_path / "folder"
    (folder / "folder").mkdir(parents=True)
    (folder / "link").symlink_to("..")
    (folder / "folder" / "link").symlink_to("../../secret")
    os.mkfifo(folder / "pipe")
    return folder


@settings(max_examples=300, deadline=None)
@given(names, st.booleans())
@example("/etc/cron.d/y", False)
@example("x//etc/cron.d/y", True)
def test_a_name_stays_in_its_folder_or_is_refused(name: str, any_characters: bool) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = os.path.join(temporary, "folder")
        os.makedirs(folder)
        os.symlink("..", os.path.join(folder, "link"))
        for root in (folder, os.fsencode(folder)):
            try:
                path = path_inside(root, name, any_characters)
            except UnsafeNameError:
                continue
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w") as file:
                file.write("x")
            inside = os.path.relpath(os.path.realpath(os.fsencode(path)), os.path.realpath(os.fsencode(folder)))
            assert inside == name.encode("utf-8", "surrogateescape")
        assert os.listdir(temporary) == ["folder"]
        if not any_characters and why_unsafe(name) is None:
            assert len(name.splitlines()) == 1 and "\\" not in name and name.isprintable() >= name.isascii()


@settings(max_examples=300, deadline=None)
@given(st.lists(names, max_size=8))
def test_a_reason_can_be_printed(drawn: list[str]) -> None:
    files, refused = as_files(drawn)
    assert all(why.isascii() and why.isprintable() and why.startswith("names ") for why in refused)
    assert all(file.encode() for file in files)


@settings(max_examples=300, deadline=None)
@given(st.lists(names, max_size=8))
def test_names_that_are_accepted_can_all_be_files_of_one_folder(drawn: list[str]) -> None:
    files, refused = as_files(drawn)
    assert len(files) + len(refused) == len(drawn) or len({*drawn}) < len(drawn)
    with tempfile.TemporaryDirectory() as folder:
        for name in files:
            path = path_inside(folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "x"):
                pass


@pytest.mark.parametrize("name", ["a", "a/b.txt", "..a", "a..", "~", "-rf", "ünï/☃", "deep/" * 40 + "x", "a b"])
def test_plain_names_are_accepted(name: str) -> None:
    assert why_unsafe(name) is None


@pytest.mark.parametrize("name", ["line\nbreak", os.fsdecode(b"latin-\xe9"), "back\\slash", "\u202egpj.exe"])
def test_only_the_users_own_files_may_have_any_characters(name: str) -> None:
    assert why_unsafe(name) and why_unsafe(name, any_characters=True) is None


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "../x", "x" * 256, "", "/x", "a//b", "a/"])
def test_what_no_file_system_has_is_refused_always(name: str) -> None:
    assert why_unsafe(name) and why_unsafe(name, any_characters=True)


@pytest.mark.parametrize("name", ["link/secret", "folder/link", "pipe", "folder", "../secret", "link"])
def test_nothing_but_a_regular_file_of_the_folder_is_read(folder: Path, name: str) -> None:
    """Not even while it is changed: a link is not followed, and a pipe not waited for."""
    with pytest.raises(UnsafeNameError):
        open_inside(str(folder), name)


def test_a_file_of_the_folder_is_read(folder: Path) -> None:
    (folder / "folder" / "file").write_text("x")
    with open(open_inside(str(folder), "folder/file")) as file:
        assert file.read() == "x"
    with pytest.raises(FileNotFoundError):
        open_inside(str(folder), "folder/none")


def test_the_agent_has_the_same_file() -> None:
    """It is a link in the repository, and a copy where podrun is installed."""
    assert Path(agents.__file__).read_bytes() == Path(safe_name.__file__).read_bytes()

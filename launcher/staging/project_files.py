"""List the files of a project: files that git tracks or would add; without git, all but generated files.

Files with keys or passwords are left out, even if git tracks them, unless `.podrunignore` includes them with `!`.
"""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from podrun.runtime.contract import UserError
from podrun.runtime.wording import megabytes

from ..pod.home import podrun_home
from .private_files import is_private_name

IGNORE_FILE = ".podrunignore"
MAX_BYTES = 100_000_000
MAX_FILES = 20_000
_LOOK = 2.0  # seconds to scan a project that is too large, so that the message can name its large folders
_JUNK = {
    *(".git", ".hg", ".svn", "__pycache__", ".venv", "venv", "node_modules", ".tox", ".ipynb_checkpoints"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache"),
}
_JUNK_ENDINGS = (".pyc", ".egg-info")
_WORKDIR_MARK = ".podrun-lock"  # file that marks the workdir of a run
PULLED_MARK = ".podrun-pull"
"""Name of a subfolder that marks a folder as one of downloaded results."""

Verdict = Callable[[str], bool | None]
"""Returns whether a path is ignored: True, or False if `!` includes it, or None if no pattern matches.

The path is relative to the root. That of a folder ends with a slash.
"""


class Project(NamedTuple):
    """A project and its files: sorted paths of regular files and links, relative to the root of the project."""

    root: Path
    subfolder: str
    """The folder in which podrun was called, relative to the root; `.` for the root itself."""
    files: tuple[str, ...]
    private: tuple[str, ...] = ()
    """Files that are left out because their names say that they contain keys or passwords."""
    asked_for: frozenset[str] = frozenset()
    """Files that the ignore file includes with `!`, even if they contain keys."""


def find_project(cwd: Path) -> Project:
    """Return the project of `cwd`. Raises UserError if it is too large, or cannot be read."""
    cwd = cwd.resolve()
    top = _git_top(cwd)
    root = cwd if top is None else top
    verdict = _read_ignore_file(root / IGNORE_FILE)
    names = _walk(root, verdict) if top is None else _git_files(top)
    private: list[str] = []
    asked_for: set[str] = set()

    def sent() -> Iterator[str]:
        for name in names:
            ignored = verdict(name)
            if ignored is False:
                asked_for.add(name)
            if ignored is None and is_private_name(name):
                private.append(name)
            elif not ignored:
                yield name

    files = _within_limits(root, sent())
    return Project(root, cwd.relative_to(root).as_posix(), tuple(sorted(files)), tuple(private), frozenset(asked_for))


def shown(name: str) -> str:
    """Return a file name for messages, with unprintable characters escaped."""
    return name if name.isprintable() else ascii(name)


def unreadable(path: Path, error: OSError) -> UserError:
    return UserError(
        f"cannot read {shown(str(path))}, which belongs to the project: {error.strerror}; make it readable, or name it "
        f"in {IGNORE_FILE}"
    )


def _within_limits(root: Path, names: Iterator[str]) -> list[str]:
    """Return those names that are regular files or links. Raises UserError if they are too many or too large."""
    files: list[str] = []
    sizes: Counter[str] = Counter()
    deadline = time.monotonic() + _LOOK
    total = 0
    for name in names:
        try:
            status = os.lstat(root / name)
        except OSError:
            continue  # just removed, or deleted from the tree but not from git's index
        if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            files.append(name)
            sizes[name] = status.st_size
            total += status.st_size
            if (total > MAX_BYTES or len(files) > MAX_FILES) and time.monotonic() > deadline:
                break
    if total > MAX_BYTES or len(files) > MAX_FILES:
        raise _too_large(root, sizes)
    return files


def _too_large(root: Path, sizes: Counter[str]) -> UserError:
    """Return the error for a project that is too large; it names the largest folders and files."""
    by_bytes = sum(sizes.values()) > MAX_BYTES
    weights: Counter[str] = Counter()
    for name, size in sizes.items():
        folder, _, rest = name.partition("/")
        second = rest.partition("/")
        if not by_bytes:
            weights[f"{folder}/" if rest else "files at the top"] += 1
        elif second[1]:
            weights[f"{folder}/{second[0]}/"] += size
        else:
            weights[name] += size
    unit: Callable[[int], str] = megabytes if by_bytes else lambda n: f"{n} files"
    largest = ", ".join(f"{shown(name)} ({unit(weight)})" for name, weight in weights.most_common(5))
    return UserError(
        f"the project {shown(str(root))} is too large to be sent to every host: at least {megabytes(sum(sizes.values()))} "
        f"in {len(sizes)} files, where {megabytes(MAX_BYTES)} and {MAX_FILES} files are the limit; the largest parts: "
        f"{largest}; name what the hosts do not need in {shown(str(root / IGNORE_FILE))} (the syntax is that of "
        ".gitignore), or call podrun in the project's own folder"
    )


def _read_ignore_file(path: Path) -> Verdict:
    """Return a function that decides by the patterns of an ignore file. Raises UserError."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return lambda name: None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text; write it with the syntax of .gitignore") from None

    from pathspec import GitIgnoreSpec

    for number, line in enumerate(lines, 1):
        try:
            GitIgnoreSpec.from_lines([line])
        except ValueError:
            raise UserError(f"{path}, line {number}: {line!r} is not a pattern of .gitignore's syntax") from None
    spec = GitIgnoreSpec.from_lines(lines)
    return lambda name: spec.check_file(name).include


# --- without git ------------------------------------------------------------------------------------------------------


def _walk(root: Path, verdict: Verdict) -> Iterator[str]:
    """Yield the files below the root, without generated ones. Does not enter ignored folders."""
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            entries = sorted(os.scandir(root / folder), key=lambda e: e.name)
        except OSError as error:
            raise unreadable(root / folder, error) from None
        for entry in entries:
            name = folder + entry.name
            if _is_junk(entry.name):
                continue
            if not entry.is_dir(follow_symlinks=False):
                yield name
            elif not verdict(f"{name}/") and not _is_generated(entry.path):
                folders.append(f"{name}/")


def _is_junk(name: str) -> bool:
    return name in _JUNK or name.endswith(_JUNK_ENDINGS)


def _is_generated(folder: str) -> bool:
    """Return True for a virtual environment, a run's workdir, downloaded results, or podrun's own folder."""
    if os.path.abspath(folder) == os.fspath(podrun_home()):
        return True
    return any(os.path.lexists(os.path.join(folder, mark)) for mark in ("pyvenv.cfg", _WORKDIR_MARK, PULLED_MARK))


# --- with git ---------------------------------------------------------------------------------------------------------


def _git_top(cwd: Path) -> Path | None:
    """Return the top of the git work tree that contains `cwd`; None without a work tree or git, or if git ignores `cwd`.

    Raises UserError if git refuses to run, as in a folder of another user.
    """
    try:
        result = _git(cwd, "rev-parse", "--show-toplevel")
    except OSError:
        return None
    if result.returncode != 0:
        stderr = result.stderr.decode(errors="replace").strip()
        if "not a git repository" in stderr or "must be run in a work tree" in stderr:
            return None
        raise UserError(f"git cannot say which files belong to the project in {cwd}: {stderr}")
    top = Path(os.fsdecode(result.stdout.removesuffix(b"\n")))
    if top != cwd and _git(top, "check-ignore", "-q", "--", str(cwd.relative_to(top))).returncode == 0:
        return None
    return top


def _git_files(top: Path) -> Iterator[str]:
    """Yield the files that are tracked or would be added, each once, without generated files that git does not ignore.

    Checked-out submodules and nested repositories are listed like folders.
    """
    seen = set()
    in_own_folder, is_generated = cache(_in_own_folder), cache(_is_generated)
    for name in _git_list(top, "--cached"):
        if name not in seen and in_own_folder(top, os.path.dirname(name)):
            seen.add(name)
            yield from _git_entry(top, name)
    for name in _git_list(top, "--others", "--exclude-standard"):
        parts = name.rstrip("/").split("/")
        folders = (os.path.join(top, *parts[:n]) for n in range(1, len(parts)))
        if name not in seen and not any(map(_is_junk, parts)) and not any(map(is_generated, folders)):
            yield from _git_entry(top, name)


def _git_entry(top: Path, name: str) -> Iterator[str]:
    if os.path.lexists(top / name / ".git"):
        yield from (os.path.join(name, inner) for inner in _git_files(top / name))
    else:
        yield name


def _in_own_folder(top: Path, folder: str) -> bool:
    """Return True if the folder is really below `top`, not reached through a link that has replaced a committed folder."""
    return os.path.realpath(top / folder) == os.path.join(os.path.realpath(top), folder).rstrip("/")


def _git_list(top: Path, *which: str) -> Iterator[str]:
    command = ["git", "-C", os.fspath(top), "ls-files", "-z", *which]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=_git_env()) as git:
        assert git.stdout is not None
        try:
            rest = b""
            while data := git.stdout.read(1 << 16):
                *names, rest = (rest + data).split(b"\0")
                yield from map(os.fsdecode, names)
        finally:
            git.kill()  # the caller may have stopped early
    if git.returncode > 0:
        raise UserError(f"git cannot list the files of {top}; see `git -C {top} status`")


def _git(folder: Path, *args: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", os.fspath(folder), *args], capture_output=True, env=_git_env())


def _git_env() -> dict[str, str]:
    """Return the environment for git: without variables that hooks set, and with English messages."""
    set_by_hooks = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"}
    return {**{k: v for k, v in os.environ.items() if k not in set_by_hooks}, "LC_ALL": "C"}

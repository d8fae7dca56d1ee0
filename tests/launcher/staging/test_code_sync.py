"""Files that go to the hosts: the project's and nothing else, under a name that depends on nothing else."""

from __future__ import annotations

import io
import os
import shutil
import socket
import stat
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from podrun.launcher.staging import project_files
from podrun.launcher.staging.bundles import podrun_bundle, project_bundle
from podrun.runtime.contract import UserError

from ..powerless import POWERLESS
from .projects import git, members, names, write

ROOT = Path(__file__).parents[3]
NASTY = [
    "a b",
    "it's",
    'say "hi"',
    "line\nbreak",
    "tab\there",
    "snow ☃",
    "$HOME",
    "-rf",
    "back\\slash",
    "*.py",
    "x" * 200,
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A git work tree with two committed files."""
    root = tmp_path / "tree"
    write(root, "train.py", "pkg/model.py")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "first")
    return root


# --- which files ------------------------------------------------------------------------------------------------------


def test_a_work_tree_is_what_git_would_add(tree: Path) -> None:
    """Committed, or new and not ignored; not what was deleted, nor what tools and runs left there."""
    write(tree, "new.py", "secret.env", "gone.py", "pkg/__pycache__/model.pyc", "runs/a/.podrun-lock", "runs/a/ckpt/0")
    write(tree, "env/pyvenv.cfg", "env/lib/numpy.py", "node_modules/x.js")
    git(tree, "add", "gone.py")
    (tree / "gone.py").unlink()
    (tree / ".gitignore").write_text("*.env\n")
    assert names(tree) == {".gitignore", "train.py", "pkg/model.py", "new.py"}


def test_what_is_committed_is_sent_whatever_its_name(tree: Path) -> None:
    write(tree, "pkg/venv/core.py", "kept.log")
    (tree / ".gitignore").write_text("*.log\n")
    git(tree, "add", "-f", "pkg/venv/core.py", "kept.log")
    assert {"pkg/venv/core.py", "kept.log"} <= names(tree)


def test_podrun_may_be_called_anywhere_in_the_tree(tree: Path) -> None:
    """The whole tree is sent; the folder in which podrun was called is there even if it has no file of its own."""
    (tree / "empty").mkdir()
    top, _ = project_bundle(tree)
    assert project_bundle(tree) == (top, ".")
    assert project_bundle(tree / "pkg") == (top, "pkg")
    bundle, subfolder = project_bundle(tree / "empty")
    assert subfolder == "empty"
    assert members(bundle)["empty"].isdir()


def test_a_folder_that_git_ignores_is_a_project_of_its_own(tree: Path) -> None:
    (tree / ".gitignore").write_text("scratch/\n")
    write(tree, "scratch/try.py")
    bundle, subfolder = project_bundle(tree / "scratch")
    assert set(members(bundle)) == {"try.py"}
    assert subfolder == "."


def test_a_git_hook_does_not_mislead(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has GIT_DIR set, to a repository that may be another one."""
    write(tmp_path / "other", "other.py")
    git(tmp_path / "other", "init", "-q")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other" / ".git"))
    assert names(tree) == {"train.py", "pkg/model.py"}


def test_repositories_in_the_tree_count_as_folders(tree: Path, tmp_path: Path) -> None:
    """So do submodules that are checked out, and clones that were put there; not submodules that are not checked out."""
    write(tmp_path / "lib", "lib.py")
    git(tmp_path / "lib", "init", "-q")
    git(tmp_path / "lib", "add", ".")
    git(tmp_path / "lib", "commit", "-qm", "first")
    git(tree, "submodule", "add", "-q", str(tmp_path / "lib"), "sub")
    git(tree, "submodule", "add", "-q", str(tmp_path / "lib"), "absent")
    git(tree, "submodule", "deinit", "-f", "absent")
    git(tree, "clone", "-q", str(tmp_path / "lib"), "cloned")
    write(tree, "sub/new.py")
    expected = {"train.py", "pkg/model.py", ".gitmodules", "sub/lib.py", "sub/new.py", "cloned/lib.py"}
    assert names(tree) == expected


def test_a_file_with_a_merge_conflict_is_sent_once(tree: Path) -> None:
    git(tree, "branch", "one")
    git(tree, "branch", "other")
    for branch in ("other", "one"):
        git(tree, "checkout", "-q", branch)
        (tree / "train.py").write_text(f"from {branch}")
        git(tree, "commit", "-qam", branch)
    with pytest.raises(subprocess.CalledProcessError):
        git(tree, "merge", "other")
    bundle, _ = project_bundle(tree)
    assert (bundle.files, len(members(bundle))) == (2, 2)


def test_a_folder_that_became_a_link_is_not_followed(tree: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", "model.py")
    shutil.rmtree(tree / "pkg")
    (tree / "pkg").symlink_to(tmp_path / "elsewhere")
    bundle, _ = project_bundle(tree)
    assert set(members(bundle)) == {"train.py"}
    assert bundle.left_out == ("pkg",)


def test_without_git_it_is_the_folder(tmp_path: Path) -> None:
    write(tmp_path, "train.py", "lib/a.py", ".hidden", "lib/__pycache__/a.pyc", "b.pyc", "p.egg-info/PKG-INFO")
    write(tmp_path, ".venv/x", "venv/x", "myenv/pyvenv.cfg", "myenv/x", "node_modules/x", ".mypy_cache/x")
    write(
        tmp_path,
        "runs/tiny/.podrun-lock",
        "runs/tiny/metrics.jsonl",
        "pulled/a/.podrun-pull/lock",
        "pulled/a/x",
        "runs/mine.py",
        ".git.py",
    )
    assert names(tmp_path) == {"train.py", "lib/a.py", ".hidden", "runs/mine.py", ".git.py"}
    assert names(tmp_path / "lib") == {"a.py"}


@pytest.mark.parametrize("with_git", [True, False])
def test_podrunignore(tmp_path: Path, with_git: bool) -> None:
    """It means what .gitignore means, and counts for committed files, too."""
    write(tmp_path, "a.py", "data/x.bin", "deep/data/y.bin", "top/z", "deep/top/z", "logs/keep.txt", "logs/1.txt")
    (tmp_path / ".podrunignore").write_text("# large\ndata/\n/top\nlogs/*\n!logs/keep.txt\n")
    if with_git:
        git(tmp_path, "init", "-q")
        git(tmp_path, "add", ".")
    assert names(tmp_path) == {".podrunignore", "a.py", "deep/top/z", "logs/keep.txt"}


def test_a_bad_pattern_is_named(tmp_path: Path) -> None:
    (tmp_path / ".podrunignore").write_text("*.bin\n!\n")
    with pytest.raises(UserError, match=r"podrunignore, line 2: '!'"):
        project_bundle(tmp_path)


def test_podrun_is_what_the_workers_import(tmp_path: Path) -> None:
    """All of podrun but the launcher; found as an installed package finds itself."""
    with tarfile.open(fileobj=io.BytesIO(podrun_bundle().data)) as archive:
        archive.extractall(tmp_path, filter="data")
    code = "import podrun.runtime.contract as c; print(c.__file__)"
    command = [sys.executable, "-S", "-c", code]  # without site-packages: not the one that is installed
    env = {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == str(tmp_path / "podrun" / "runtime" / "contract.py")
    assert (tmp_path / "podrun" / "runtime" / "py.typed").exists()
    names = {path.name for path in (ROOT / "api").iterdir()} - {"__pycache__"}
    assert {path.name for path in (tmp_path / "podrun").iterdir()} - {"__pycache__"} == {"runtime", *names}


def test_podrun_from_site_packages_is_the_same(tmp_path: Path) -> None:
    for folder, name in (("api", "."), ("launcher", "launcher"), ("runtime", "runtime")):
        target = tmp_path / "podrun" / name
        shutil.copytree(ROOT / folder, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    code = "from podrun.launcher.staging.bundles import podrun_bundle; import podrun.runtime as runtime; "
    code += "print(podrun_bundle().name, runtime.__file__)"
    # Without the hook of an editable install, which -S leaves out with all of site-packages.
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [podrun_bundle().name, str(tmp_path / "podrun" / "runtime" / "__init__.py")]


# --- the name ---------------------------------------------------------------------------------------------------------


def test_the_same_tree_has_the_same_name(tmp_path: Path) -> None:
    """Whatever the time, the order in the directory, the permissions of others, and whether git is used."""
    first, second = tmp_path / "first", tmp_path / "second"
    write(first, "b.py", "a/c.py", "a.py")
    (first / "run.sh").write_text("x")
    (first / "run.sh").chmod(0o700)
    write(second, "a.py", "a/c.py", "b.py")
    (second / "run.sh").write_text("x")
    (second / "run.sh").chmod(0o755)
    (second / "a.py").chmod(0o600)
    os.utime(second / "a.py", (1, 1))
    git(second, "init", "-q")
    one, other = project_bundle(first)[0], project_bundle(second)[0]
    assert one == other
    assert one.name.startswith("project-") and len(one.name) == len("project-") + 16


def test_every_change_of_content_changes_the_name(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "b.py")
    seen = [project_bundle(tmp_path)[0].name]
    for change in (
        lambda: (tmp_path / "a.py").write_text("changed"),
        lambda: (tmp_path / "a.py").chmod(0o755),
        lambda: (tmp_path / "a.py").rename(tmp_path / "c.py"),
        lambda: (tmp_path / "link").symlink_to("b.py"),
    ):
        change()
        seen.append(project_bundle(tmp_path)[0].name)
    assert len(set(seen)) == 5


def test_nothing_in_a_bundle_tells_of_this_machine(tmp_path: Path) -> None:
    write(tmp_path, "a.py")
    bundle, _ = project_bundle(tmp_path)
    (member,) = members(bundle).values()
    assert (member.mtime, member.uid, member.gid, member.uname, member.gname, member.mode) == (0, 0, 0, "", "", 0o644)
    assert bundle.data[4:8] == b"\0\0\0\0"  # gzip's time


# --- names, links and what is no file ---------------------------------------------------------------------------------


@pytest.mark.parametrize("with_git", [True, False])
def test_any_name_goes(tmp_path: Path, with_git: bool) -> None:
    not_text = os.fsdecode(b"latin-\xe9")
    write(tmp_path, *NASTY, *(f"{name}/inner" for name in ("d d", "d\nd")))
    (tmp_path / not_text).write_text("x")
    if with_git:
        git(tmp_path, "init", "-q")
    assert names(tmp_path) == {*NASTY, "d d/inner", "d\nd/inner", not_text}


def test_links_that_stay_inside_are_kept(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write(root, "a/file", "b/file")
    write(tmp_path, "outside")
    kept = {"a/up": "../b/file", "dir": "a", "dangling": "nowhere", "a/self": "./file"}
    left = {"out": "../outside", "abs": str(root / "a"), "a/far": "../../outside", "trick": "dir/../../outside"}
    for name, target in (kept | left).items():
        (root / name).symlink_to(target)
    bundle, _ = project_bundle(root)
    found = {name: member.linkname for name, member in members(bundle).items() if member.issym()}
    assert found == kept
    assert set(bundle.left_out) == set(left)
    assert bundle.files == 2 + len(kept)


@pytest.mark.timeout(20)
def test_what_is_no_file_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifo is not waited for."""
    write(tmp_path, "a.py")
    os.mkfifo(tmp_path / "fifo")
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("sock")
        assert names(tmp_path) == {"a.py"}


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, "a.py", "private/key")
    (tmp_path / "private" / "key").chmod(0)
    message = _error_without_power(tmp_path)
    assert message.startswith(f"cannot read {tmp_path}/private/key, which belongs to the project: Permission denied")
    assert ".podrunignore" in message
    (tmp_path / ".podrunignore").write_text("key\n")
    assert _error_without_power(tmp_path) == ""


def test_an_unreadable_folder_is_named(tmp_path: Path) -> None:
    write(tmp_path, "private/key")
    (tmp_path / "private").chmod(0)
    try:
        assert _error_without_power(tmp_path).startswith(f"cannot read {tmp_path}/private")
        (tmp_path / ".podrunignore").write_text("private/\n")
        assert _error_without_power(tmp_path) == ""
    finally:
        (tmp_path / "private").chmod(0o700)


def _error_without_power(folder: Path) -> str:
    """Return what podrun says to a user who may not read everything, as root may."""
    code = (
        "import sys; from pathlib import Path; from podrun.launcher.staging.bundles import project_bundle\n"
        "try: project_bundle(Path(sys.argv[1]))\n"
        "except Exception as error: print(error)"
    )
    command = [*POWERLESS, sys.executable, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.timeout(60)
def test_a_file_that_changes_meanwhile_does_no_harm(tmp_path: Path) -> None:
    """The bundle is a whole archive, with one state of the file in it."""
    log = tmp_path / "grows.log"
    code = (
        "import sys, itertools\nfile = open(sys.argv[1], 'r+b', 0)\n"
        "for n in itertools.count():\n"
        "  file.truncate(n * 7919 % 300000); file.seek(0, 2); file.write(b'x' * 5000)"
    )
    log.touch()
    with subprocess.Popen([sys.executable, "-c", code, str(log)]) as writer:
        try:
            deadline = time.monotonic() + 3
            sizes = set()
            while time.monotonic() < deadline:
                bundle, _ = project_bundle(tmp_path)
                with tarfile.open(fileobj=io.BytesIO(bundle.data)) as archive:
                    sizes |= {len(archive.extractfile(m).read()) - m.size for m in archive}  # type: ignore[union-attr]
            assert sizes == {0}
        finally:
            writer.kill()


# --- limits -----------------------------------------------------------------------------------------------------------


def test_too_large(tmp_path: Path) -> None:
    """The largest files are named, and where to say that they are not needed."""
    write(tmp_path, "train.py", "data/raw/y")
    for name, size in {"data/raw/x.bin": 60_000_000, "model.ckpt": 50_000_000}.items():
        (tmp_path / name).touch()
        os.truncate(tmp_path / name, size)
    with pytest.raises(UserError) as caught:
        project_bundle(tmp_path)
    text = str(caught.value)
    assert "110.0 MB in 4 files" in text
    assert "data/raw/ (60.0 MB), model.ckpt (50.0 MB)" in text
    assert str(tmp_path / ".podrunignore") in text
    (tmp_path / ".podrunignore").write_text("*.ckpt\n/data/\n")
    assert names(tmp_path) == {"train.py", ".podrunignore"}


def test_too_many_files_end_the_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a home directory it must not go on for minutes."""
    for folder in ("some", "more"):
        (tmp_path / folder).mkdir()
    for n in range(project_files.MAX_FILES + 2000):
        os.close(os.open(tmp_path / ("more" if n % 10 else "some") / str(n), os.O_CREAT))
    monkeypatch.setattr(project_files, "_LOOK", 0.0)
    with pytest.raises(UserError, match=rf"in {project_files.MAX_FILES + 1} files.*: more/ \(\d+ files\), some/"):
        project_bundle(tmp_path)


def test_a_file_that_outgrows_the_limit_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").touch()
    os.truncate(tmp_path / "log", project_files.MAX_BYTES + 1)
    monkeypatch.setattr(project_files, "MAX_BYTES", 1 << 40)  # it was smaller when it was listed
    with pytest.raises(UserError, match="log is growing"):
        project_bundle(tmp_path)


def test_executables_stay_executable(tmp_path: Path) -> None:
    write(tmp_path, "run.sh", "a.py")
    (tmp_path / "run.sh").chmod(0o744)
    found = members(project_bundle(tmp_path)[0])
    assert {name: stat.S_IMODE(member.mode) for name, member in found.items()} == {"run.sh": 0o755, "a.py": 0o644}

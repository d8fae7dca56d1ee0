"""Note which version of the user's code a run was started with."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

from podrun.launcher.rundir.work_tree import WorkTree, git_state, note_work_tree, read_work_tree


def git(folder: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *settings, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_work_tree_with_changes(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) is None  # no commit yet
    (tmp_path / "train.py").write_text("a\nb\n")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_state(tmp_path) == WorkTree(commit, "main", 0, 0, 0)
    (tmp_path / "train.py").write_text("a\nc\nd\n")
    (tmp_path / "sub").mkdir()
    git(tmp_path, "checkout", "-q", "--detach")
    assert git_state(tmp_path / "sub") == WorkTree(commit, "", 1, 2, 1)
    before = set(threading.enumerate())
    note_work_tree([tmp_path / "work_tree.json"], tmp_path)
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
    assert read_work_tree(tmp_path / "work_tree.json") == WorkTree(commit, "", 1, 2, 1)


def test_a_folder_that_is_no_work_tree(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None
    assert read_work_tree(tmp_path / "work_tree.json") is None
    (tmp_path / "work_tree.json").write_text('{"commit": 3}')
    assert read_work_tree(tmp_path / "work_tree.json") is None

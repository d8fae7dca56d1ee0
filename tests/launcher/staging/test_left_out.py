"""Files that are never sent to hosts: podrun's own home, and files that have become something else since they were listed."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from podrun.launcher.staging import bundles
from podrun.launcher.staging.bundles import project_bundle
from podrun.runtime.contract import UserError

from .projects import git, names, write


@pytest.mark.parametrize("with_git", [False, True])
def test_podruns_own_home_is_not_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_git: bool) -> None:
    """It holds the logs of all runs, and specs with the environment of workers; folders beside it are sent."""
    monkeypatch.setenv("PODRUN_HOME", str(tmp_path / "mine"))
    write(tmp_path, "train.py", "mine/runs/r/spec.json", "mine2/x", "inner/mine/x")
    if with_git:
        git(tmp_path, "init", "-q")
    assert names(tmp_path) == {"train.py", "mine2/x", "inner/mine/x"}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", ["a fifo", "a link"])
def test_a_file_that_has_become_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A fifo is not waited for, and a link is not followed to a secret."""
    write(tmp_path, "a.py", "b.py")
    (tmp_path / "secret").write_text("hunter2")
    real = os.open

    def change(path: object, flags: int, *more: object, **options: object) -> int:
        if str(path).endswith("b.py") and not (tmp_path / "b.py").is_symlink():
            (tmp_path / "b.py").unlink(missing_ok=True)
            os.mkfifo(tmp_path / "b.py") if what == "a fifo" else (tmp_path / "b.py").symlink_to("secret")
        return real(path, flags, *more, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(bundles.os, "open", change)
    if what == "a link":
        with pytest.raises(UserError, match=r"b\.py"):
            project_bundle(tmp_path)
        return
    bundle, _ = project_bundle(tmp_path)
    with tarfile.open(fileobj=io.BytesIO(bundle.data)) as archive:
        contents = {m.name: archive.extractfile(m).read() for m in archive if m.isfile()}  # type: ignore[union-attr]
    assert contents["a.py"] == b"this is a.py" and "b.py" not in contents

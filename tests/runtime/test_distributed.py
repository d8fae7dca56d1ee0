"""What the processes of a pod agree on before they train, as far as a single process can tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from podrun.runtime.contract import UserError, Workdir, WorkerEnv
from podrun.runtime.distributed import agree
from podrun.runtime.progress import Reporter
from podrun.runtime.workdir import claim

ENV = WorkerEnv("run-1", 1, "host-0", 0, 1, (0, 1, 2, 3), "cpu-1x4", Path("unused"))


def test_a_workdir_that_is_seen(tmp_path: Path) -> None:
    """The workdir is made with its parents, and the token of this attempt is then found."""
    workdir = Workdir(tmp_path / "a" / "b")
    claim(workdir, ENV, Reporter(tmp_path / "events"))
    agree(ENV, workdir.token("run-1", 1), b"data")


def test_a_workdir_that_is_not_seen(tmp_path: Path) -> None:
    """The message has the folder and the processes that do not see it; a token of another attempt does not count."""
    claim(Workdir(tmp_path), replace(ENV, attempt=0), Reporter(tmp_path / "events"))
    with pytest.raises(UserError, match=f"workdir {tmp_path} is not the same directory on all hosts: process 0 cannot"):
        agree(ENV, Workdir(tmp_path).token("run-1", 1), b"data")


def test_a_workdir_that_cannot_be_written(tmp_path: Path) -> None:
    """The message has the folder, the reason, and how to choose another."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"workdir .*/file/a: cannot write there: Not a directory; .*--workdir"):
        claim(Workdir(tmp_path / "file" / "a"), ENV, Reporter(tmp_path / "events"))

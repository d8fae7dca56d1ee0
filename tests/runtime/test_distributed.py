"""What the processes of a pod agree on before they train, as far as a single process can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.runtime.contract import UserError, WorkerEnv
from podrun.runtime.distributed import agree, write_token

ENV = WorkerEnv("run-1", 1, "host-0", 0, 1, 4, "cpu-1x4", Path("unused"))


def test_a_workdir_that_is_seen(tmp_path: Path) -> None:
    """The token is made with its folders, a second time too, and is then found."""
    token = tmp_path / "a" / "b" / ".token"
    write_token(token)
    write_token(token)
    agree(ENV, token, b"data")


def test_a_workdir_that_is_not_seen(tmp_path: Path) -> None:
    """The message has the folder and the processes that do not see it."""
    with pytest.raises(UserError, match=f"workdir {tmp_path} is not the same directory on all hosts: process 0 cannot"):
        agree(ENV, tmp_path / ".token", b"data")


def test_a_workdir_that_cannot_be_written(tmp_path: Path) -> None:
    """The message has the folder, the reason, and how to choose another."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"workdir .*/file/a: cannot write there: Not a directory; .*--workdir"):
        write_token(tmp_path / "file" / "a" / ".token")

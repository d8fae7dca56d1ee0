"""Processes of a pod agree before they train, as far as a single process can tell."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from podrun.runtime import distributed
from podrun.runtime.contract import UserError, Workdir, WorkerEnv
from podrun.runtime.distributed import agree, private_cache
from podrun.runtime.worker.progress import Reporter
from podrun.runtime.worker.workdir import check_owner, claim

ENV = WorkerEnv("run-1", 1, "host-0", 0, 1, (0, 1, 2, 3), "cpu-1x4", Path("unused"))


def test_a_workdir_that_is_seen(tmp_path: Path) -> None:
    """The workdir is made with its parents, and the token of this attempt is then found."""
    workdir = Workdir(tmp_path / "a" / "b")
    claim(workdir, ENV, Reporter(tmp_path / "events"))
    assert agree(workdir.token("run-1", 1), b"data")


def test_a_workdir_that_is_not_seen(tmp_path: Path) -> None:
    """A token of another attempt does not count."""
    claim(Workdir(tmp_path), ENV._replace(attempt=0), Reporter(tmp_path / "events"))
    assert not agree(Workdir(tmp_path).token("run-1", 1), b"data")


def test_a_workdir_that_cannot_be_written(tmp_path: Path) -> None:
    """The message has the folder, the reason, and how to choose another."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"workdir .*/file/a: cannot write there: Not a directory; .*--workdir"):
        claim(Workdir(tmp_path / "file" / "a"), ENV, Reporter(tmp_path / "events"))


def test_compiled_programs_are_nobody_elses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is closed to others, whatever the umask and the mode it had; another user's is not used."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folders = [tmp_path / ".cache" / "podrun", tmp_path / ".cache" / "podrun" / "xla"]
    before = os.umask(0)
    try:
        for _ in range(2):
            assert private_cache() == str(folders[1])
            assert [folder.stat().st_mode & 0o777 for folder in folders] == [0o700, 0o700]
            folders[1].chmod(0o777)
    finally:
        os.umask(before)
    if os.geteuid() == 0:
        os.chown(folders[1], 65534, 65534)
        assert private_cache() is None
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    assert private_cache() is None


def test_a_workdir_of_another_projects_train_yaml(tmp_path: Path) -> None:
    """The job itself goes on; another one that only has the same name is told whose workdir it is."""
    mine, theirs = (ENV._replace(owner=f"{user}:/home/{user}/train.yaml") for user in ("ann", "bob"))
    for env in (mine, mine, ENV):  # ENV: the user chose the workdir
        check_owner(Workdir(tmp_path), env)
    with pytest.raises(UserError, match=r"ann:/home/ann/train\.yaml; choose another with --workdir NAME, or give"):
        check_owner(Workdir(tmp_path), theirs)


def test_the_owner_of_a_workdir_is_never_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("")
    (tmp_path / ".podrun-owner").symlink_to(tmp_path / "precious")
    with pytest.raises(UserError, match=r"\.podrun-owner there is a link, .*; remove it"):
        check_owner(Workdir(tmp_path), ENV._replace(owner="ann:/train.yaml"))
    assert (tmp_path / "precious").read_text() == ""


def test_joining_twice_or_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says which call is one too many, or too late; other errors of JAX are left as they are."""

    reasons = iter(["Backend cpu already initialized", "initialize() must be called before all", "the network is down"])

    def refuse(*_: object) -> None:
        raise RuntimeError(next(reasons))

    monkeypatch.setattr(distributed, "_join", refuse)
    for _ in range(2):
        with pytest.raises(UserError, match=r"JAX has computed before .* or give podrun the option --join"):
            distributed.initialize(ENV)
    with pytest.raises(RuntimeError, match="the network is down"):
        distributed.initialize(ENV)
    monkeypatch.setattr("jax.distributed.is_initialized", lambda: True)
    with pytest.raises(UserError, match=r"has joined the pod already: call one of podrun.init\(\)"):
        distributed.initialize(ENV)


def test_a_podrun_of_another_version() -> None:
    """A variable that the launcher does not set is one that it does not know."""
    with pytest.raises(UserError, match=r"PODRUN_RUN_ID is not set: podrun here, in .* has another version"):
        WorkerEnv.from_env({"PODRUN_COORDINATOR": "h:1"})
    with pytest.raises(UserError, match="is not set: this program is started by podrun"):
        WorkerEnv.from_env({})

"""A workdir in a folder that others may write in: what they have put there harms nothing."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from podrun.runtime.checkpoint.store import Checkpoints
from podrun.runtime.config import Checkpoint
from podrun.runtime.config.sections import Log
from podrun.runtime.contract import UserError, Workdir, WorkerEnv
from podrun.runtime.measure.writers import JsonLines, make_writers
from podrun.runtime.worker.progress import Reporter
from podrun.runtime.worker.workdir import check_owner, claim, replace_text

from ..training import train

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files to another user")
OTHER = 65534


def env_of(folder: Path) -> WorkerEnv:
    return WorkerEnv(
        run_id="r-1",
        attempt=0,
        host="h",
        process_id=0,
        num_processes=1,
        local_device_ids=(0,),
        slice="cpu-1x1",
        directory=folder,
    )


def claim_it(folder: Path) -> None:
    claim(Workdir(folder), env_of(folder), Reporter(folder / "events"))


def symlink(lock: Path, victim: Path) -> None:
    lock.symlink_to(victim)


def hard_link(lock: Path, victim: Path) -> None:
    os.link(victim, lock)


def fifo(lock: Path, victim: Path) -> None:
    os.mkfifo(lock)


def folder(lock: Path, victim: Path) -> None:
    lock.mkdir()


@pytest.mark.parametrize("plant", [symlink, hard_link, fifo, folder])
def test_a_lock_that_is_none(tmp_path: Path, plant: Callable[[Path, Path], None]) -> None:
    """It is refused, and a file that it leads to keeps what is in it."""
    victim = tmp_path / "thesis.tex"
    victim.write_text("years of work")
    plant(tmp_path / ".podrun-lock", victim)
    with pytest.raises(
        UserError, match=r"\.podrun-lock there is (a link|not a file), put there by .*remove it, or choose"
    ):
        claim_it(tmp_path)
    assert victim.read_text() == "years of work"


def test_a_link_to_nothing_makes_nothing(tmp_path: Path) -> None:
    """Neither for the lock nor for the token of the run."""
    (tmp_path / "w").mkdir()
    Workdir(tmp_path / "w").token("r-1", 0).symlink_to(tmp_path / "made")
    with pytest.raises(UserError, match="podrun-token-r-1-0 there is a link"):
        claim_it(tmp_path / "w")
    (tmp_path / "w" / ".podrun-lock").unlink()
    (tmp_path / "w" / ".podrun-lock").symlink_to(tmp_path / "made")
    with pytest.raises(UserError, match="is a link"):
        claim_it(tmp_path / "w")
    assert not (tmp_path / "made").exists()


USES = {
    ".podrun-lock": "claim(Workdir(Path('.')), None, None)",
    ".podrun-owner": "check_owner(Workdir(Path('.')), ENV._replace(owner='x'))",
    "metrics.jsonl": "JsonLines(Path('metrics.jsonl'), 0)",
}


@needs_root
@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("mode", [0o644, 0o666])
def test_a_file_of_another_user(tmp_path: Path, mode: int, name: str) -> None:
    """An ordinary user is told whose it is, whether it could be opened or not."""
    lock = tmp_path / name
    lock.write_text("r-0 on h, pid 1")
    lock.chmod(mode)
    os.chown(lock, 64999, 64999)
    code = "import os, sys; folder = os.open(sys.argv[1], os.O_RDONLY); os.fchmod(folder, 0o777); os.fchdir(folder)\n"
    code += (
        "from podrun.runtime.worker.workdir import *; from podrun.runtime.contract import *; from pathlib import Path\n"
        "from podrun.runtime.measure.writers import JsonLines; from dataclasses import replace\n"
        "ENV = WorkerEnv('r-1', 0, 'h', 0, 1, (0,), 's', Path('.'))\n"
    )
    code += "os.setgid(65534); os.setuid(65534)\n"
    code += f"try: {USES[name]}\nexcept UserError as error: print(error)"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"workdir . belongs to user 64999, the owner of {name} in it; choose another")
    assert lock.read_text() == "r-0 on h, pid 1"


def test_a_lock_of_an_earlier_run(tmp_path: Path) -> None:
    """Is this run's now; what another user has left, root may use."""
    (tmp_path / ".podrun-lock").write_text("r-0 on h, pid 1, and more that was there")
    if os.geteuid() == 0:
        os.chown(tmp_path / ".podrun-lock", OTHER, OTHER)
    claim_it(tmp_path)
    assert (tmp_path / ".podrun-lock").read_text() == f"r-1 (pid {os.getpid()} on {socket.gethostname()})"
    assert Workdir(tmp_path).token("r-1", 0).is_file()


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["metrics.jsonl", ".podrun-owner"])
@pytest.mark.parametrize("plant", [symlink, fifo, folder])
def test_files_that_are_none(tmp_path: Path, plant: Callable[[Path, Path], None], name: str) -> None:
    """As the lock: refused at once, with the file, whose it is and what to do."""
    victim = tmp_path / "bashrc"
    victim.write_text("alias ll='ls -l'\n")
    (tmp_path / "w").mkdir()
    plant(tmp_path / "w" / name, victim)

    def use() -> None:
        if name == "metrics.jsonl":
            JsonLines(tmp_path / "w" / name, resumed_from=0)
        else:
            check_owner(Workdir(tmp_path / "w"), env_of(tmp_path)._replace(owner="ann@desk:/train.yaml"))

    refusal = rf"{name} there is (a link|not a file), put there by .*; remove it, or choose another"
    with pytest.raises(UserError, match=refusal):
        use()
    assert victim.read_text() == "alias ll='ls -l'\n"
    assert os.listdir(tmp_path / "w") == [name]


@pytest.mark.timeout(20)
def test_a_token_that_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(Workdir(tmp_path).token("r-1", 0))
    with pytest.raises(UserError, match=r"\.podrun-token-r-1-0 there is not a file"):
        claim_it(tmp_path)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("plant", [symlink, fifo])
def test_names_for_damaged_metrics_that_are_taken(tmp_path: Path, plant: Callable[[Path, Path], None]) -> None:
    """The kept file gets a name that nothing has: also no link that leads nowhere."""
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("my notes\n")
    inode = metrics.stat().st_ino
    plant(tmp_path / "metrics.jsonl.damaged-1", tmp_path / "made")
    JsonLines(metrics, 0, lambda _: None).close()
    assert not (tmp_path / "made").exists()
    kept = tmp_path / "metrics.jsonl.damaged-2"
    assert (kept.stat().st_ino, kept.read_text()) == (inode, "my notes\n")


@needs_root
@pytest.mark.parametrize("name", ["checkpoints", "tensorboard"])
def test_folders_that_are_links(tmp_path: Path, name: str) -> None:
    """One of another user may lead anywhere; one's own leads to a larger disk."""
    (tmp_path / "large").mkdir()
    workdir = Workdir(tmp_path / "w")
    workdir.path.mkdir()
    link = workdir.path / name
    link.symlink_to(tmp_path / "large")

    def use() -> None:
        if name == "checkpoints":
            Checkpoints(workdir.checkpoints, Checkpoint()).close()
        else:
            for writer in make_writers(Log(), workdir, 0, print, {}):
                writer.close()

    use()
    os.chown(link, 64999, 64999, follow_symlinks=False)
    with pytest.raises(UserError, match=rf"{name} there is a link, put there by user 64999, .*remove it, or choose"):
        use()


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    """A link to it, its mode, nothing beside it."""
    (tmp_path / "victim").write_text("old")
    (tmp_path / "config.yaml").symlink_to("victim")
    replace_text(tmp_path / "config.yaml", "new\n")
    assert not (tmp_path / "config.yaml").is_symlink()
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"victim": "old", "config.yaml": "new\n"}
    with pytest.raises(UnicodeEncodeError):
        replace_text(tmp_path / "config.yaml", "\ud800")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"victim": "old", "config.yaml": "new\n"}


def test_a_folder_in_the_place_of_the_config(tmp_path: Path) -> None:
    """It is named, with what to do."""
    path = Workdir(tmp_path).config
    path.mkdir()
    with pytest.raises(UserError, match=rf"config cannot be written to {path}: Is a directory; move it away"):
        train(tmp_path, 1, epochs=3, batch_size=8)

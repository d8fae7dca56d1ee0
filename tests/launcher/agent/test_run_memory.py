"""A run's folder in /dev/shm: made by the agent of its first attempt, and removed by the last one, or by another run's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.agent.base.places import memory_folder
from podrun.launcher.agent.run.clean import FinishedRuns
from podrun.launcher.agent.run.run_memory import end_memory, make_memory, memory_folders, remove_memory


def spec(run: str, host: str = "host-0", exclusive: bool = True, attempt: int = 0) -> Any:
    return {"run": run, "exclusive": exclusive, "memory": memory_folder(run, host), "attempt": attempt}


@pytest.fixture
def run() -> Iterator[str]:
    """The id of a run of this test alone; its folders are removed after the test."""
    run = f"test-{uuid.uuid4().hex}"
    yield run
    for folder in folders(run):
        remove_memory(folder)


AGENT = """
import json, sys
from podrun.launcher.agent.run.run_memory import end_memory, make_memory
spec = json.loads(sys.argv[1])
make_memory(spec)
print(flush=True)
sys.stdin.readline()
end_memory(spec)
print(flush=True)
sys.stdin.readline()
"""


@contextmanager
def other_agent(spec: Any) -> Iterator[Callable[[], None]]:
    """Another process that holds the folder of a run, and is killed in the end. Yields a function that ends its run."""
    command = [sys.executable, "-c", AGENT, json.dumps(spec)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()

        def release() -> None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"\n")
            process.stdin.flush()
            process.stdout.readline()

        yield release
        process.kill()


def folders(run: str) -> list[str]:
    return [folder for of, folder in memory_folders() if of.startswith(run)]


def test_the_agent_of_the_last_attempt_removes_the_folder(run: str) -> None:
    make_memory(spec(run))
    make_memory(spec(run, "host-1"))
    folder = Path(memory_folder(run, "host-0"))
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o700
    (folder / "5.0.0.data").write_bytes(bytes(10))
    make_memory(spec(run, attempt=1))
    assert (folder / "5.0.0.data").exists()
    end_memory(spec(run))
    assert folders(run) == [memory_folder(run, "host-1")]
    end_memory(spec(run, "host-1"))
    assert not folder.parent.exists()


@pytest.mark.parametrize("noted", ["0", "x", None])
def test_a_host_that_missed_an_attempt_has_nothing_to_restore(run: str, noted: str | None) -> None:
    """The other hosts may have gone back to an earlier step meanwhile."""
    make_memory(spec(run))
    folder = Path(memory_folder(run, "host-0"))
    for name in ("10.0.0.data", "10.0.0.json"):
        (folder / name).write_bytes(bytes(10))
    if noted is None:
        (folder / "attempt").unlink()
    else:
        (folder / "attempt").write_text(noted)
    make_memory(spec(run, attempt=2))
    assert sorted(path.name for path in folder.iterdir()) == ["agent", "attempt"]
    (folder / "15.2.0.data").write_bytes(bytes(10))
    make_memory(spec(run, attempt=2))  # sent again
    make_memory(spec(run, attempt=3))
    assert (folder / "15.2.0.data").exists() and (folder / "attempt").read_text() == "3"
    end_memory(spec(run))


def test_an_agent_that_another_one_has_replaced_removes_nothing(run: str) -> None:
    make_memory(spec(run))
    with other_agent(spec(run)) as release:
        end_memory(spec(run))
        assert len(folders(run)) == 1
        release()
    assert folders(run) == []


def test_a_job_without_memory_makes_none(run: str) -> None:
    without = {"run": run, "exclusive": True}
    make_memory(without)  # type: ignore[arg-type]
    end_memory(without)  # type: ignore[arg-type]
    assert folders(run) == []


def test_the_next_run_removes_what_a_killed_agent_has_left(run: str) -> None:
    left, after = f"{run}-left", f"{run}-after"
    with other_agent(spec(left)):
        make_memory(spec(after))
        assert memory_folder(left, "host-0") in folders(run)
        assert FinishedRuns("/nowhere", "host-0", 0.0, left).folders() == []
    assert memory_folder(left, "host-0") in folders(run)  # it was killed
    make_memory(spec(after))
    assert folders(run) == [memory_folder(after, "host-0")]
    end_memory(spec(after))


def test_on_a_shared_host_a_run_may_be_between_two_attempts(run: str) -> None:
    left, after = f"{run}-left", f"{run}-after"
    with other_agent(spec(left)):
        pass
    make_memory(spec(after, exclusive=False))
    folder = Path(memory_folder(left, "host-0"))
    assert folder.exists()
    for path in (folder, *folder.iterdir()):
        os.utime(path, (0, 0))
    make_memory(spec(after, exclusive=False))
    assert folders(run) == [memory_folder(after, "host-0")]
    end_memory(spec(after))


def test_clean_lists_and_removes_it_for_its_host(run: str) -> None:
    with other_agent(spec(run)):
        Path(memory_folder(run, "host-0"), "5.0.0.data").write_bytes(bytes(1000))
    assert FinishedRuns("/nowhere", "host-1", 0.0, run).folders() == []
    assert FinishedRuns("/nowhere", "host-0", 3600.0, run).folders() == []
    finished = FinishedRuns("/nowhere", "host-0", 0.0, run)
    (row,) = finished.folders()
    assert (row["run"], row["path"], row["bytes"] >= 1000) == (run, memory_folder(run, "host-0"), True)
    assert finished.remove({run})[0] == 1
    assert folders(run) == []


def test_a_link_in_its_place_is_not_followed(run: str, tmp_path: Path) -> None:
    """Any user of the host can make one in /dev/shm; the agent would remove the folder behind it."""
    (tmp_path / "host-0").mkdir()
    (tmp_path / "host-0" / "thesis").touch()
    link = Path(spec(run)["memory"]).parent
    link.symlink_to(tmp_path)
    try:
        make_memory(spec(run))
        end_memory(spec(run))
        assert [path.name for path in (tmp_path / "host-0").iterdir()] == ["thesis"]
    finally:
        link.unlink(missing_ok=True)

"""`podrun clean` shows the virtual environments of the hosts, and removes those that no run has used for long."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from podrun.launcher.agent.prepare.old_data import prune_data
from podrun.launcher.agent.prepare.store import environments_of, lock_path, prune, remove_environments
from podrun.launcher.agent.run.clean import IN_USE, list_environments

DAY = 24 * 3600.0


def make_environment(home: Path, number: int, age: float) -> str:
    folder = home / "envs" / f"{number:016x}"
    folder.mkdir(parents=True)
    (folder / "podrun.json").write_text(json.dumps({"python": "3.11.2 cpython"}))
    (folder / "large").write_bytes(b"x" * 1_000_000)
    os.utime(folder, (time.time() - age, time.time() - age))
    return str(folder)


def test_environments_are_listed_with_their_size_and_last_use(tmp_path: Path) -> None:
    old, new = make_environment(tmp_path, 1, 8 * DAY), make_environment(tmp_path, 2, DAY)
    listed = {environment["path"]: environment for environment in list_environments(str(tmp_path), 7 * DAY)}
    assert {path: environment["due"] for path, environment in listed.items()} == {old: True, new: False}
    assert all(1_000_000 < environment["bytes"] < 1_100_000 for environment in listed.values())
    assert abs(listed[new]["age"] - DAY) < 60


def test_one_that_a_run_may_use_just_now_is_never_due(tmp_path: Path) -> None:
    make_environment(tmp_path, 1, IN_USE / 2)
    assert [environment["due"] for environment in list_environments(str(tmp_path), 0.0)] == [False]


def test_what_is_due_is_removed(tmp_path: Path) -> None:
    old, new = make_environment(tmp_path, 1, 8 * DAY), make_environment(tmp_path, 2, DAY)
    assert remove_environments([old]) == 1
    assert [path.name for path in (tmp_path / "envs").iterdir()] == [Path(new).name]


def test_an_unfinished_environment_is_removed_and_pushes_out_no_other(tmp_path: Path) -> None:
    """Unless somebody builds it, or it has been used within the last hour."""
    good = [make_environment(tmp_path, n, (n + 1) * DAY) for n in range(3)]
    unfinished, building, fresh = [
        make_environment(tmp_path, n, age) for n, age in ((5, DAY / 2), (6, DAY / 2), (7, 9))
    ]
    for folder in (unfinished, building, fresh):
        used = os.stat(folder)
        os.unlink(f"{folder}/podrun.json")
        Path(f"{folder}.txt").write_text("numpy\n")
        for path in (folder, f"{folder}.txt"):
            os.utime(path, ns=(used.st_atime_ns, used.st_mtime_ns))
    assert {path for path, _ in environments_of(str(tmp_path))} == set(good)
    with open(lock_path(f"{tmp_path}/envs", Path(building).name), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        prune(str(tmp_path), [])
    left = {path.name for path in (tmp_path / "envs").glob("[!.]*")}
    kept = [*good, building, f"{building}.txt", fresh, f"{fresh}.txt"]
    assert left == {Path(path).name for path in kept}


def make_set(home: Path, name: str, age: float, *shared: str) -> Path:
    """A set with a file of its own, and files that others have, too."""
    files, folder = home / "data" / "files", home / "data" / "sets" / name
    files.mkdir(parents=True, exist_ok=True)
    folder.mkdir(parents=True)
    (home / "data" / "lock").touch()
    for file in (name, *shared):
        (files / file).touch()
        os.link(files / file, folder / file)
    os.utime(folder, (time.time() - age, time.time() - age))
    return folder


def test_sets_of_data_go_by_age_and_their_files_with_them(tmp_path: Path) -> None:
    """Files of another set stay, and for a week so does what a transfer has left."""
    old, new = make_set(tmp_path, "a" * 16, 8 * DAY, "both"), make_set(tmp_path, "b" * 16, DAY, "both")
    for name, age in (("young.part", DAY), ("old.part", 8 * DAY)):
        part = tmp_path / "data" / "files" / name
        part.touch()
        os.utime(part, (time.time() - age, time.time() - age))
    rows = list_environments(str(tmp_path), 7 * DAY)
    assert {row["path"]: (row["kind"], row["due"]) for row in rows} == {
        str(old): ("data set", True),
        str(new): ("data set", False),
    }
    remove_environments([str(old)])
    prune_data(str(tmp_path), [])
    assert {path.name for path in (tmp_path / "data" / "files").iterdir()} == {"b" * 16, "both", "young.part"}


def test_the_sets_that_were_used_last_stay(tmp_path: Path) -> None:
    """Three of them, and those of the last hour, and that of this start."""
    sets = [make_set(tmp_path, f"{n:016x}", n * DAY) for n in range(6)]
    assert prune_data(str(tmp_path), [str(sets[5])]) == 2
    assert {path.name for path in (tmp_path / "data" / "sets").iterdir()} == {s.name for s in (*sets[:3], sets[5])}

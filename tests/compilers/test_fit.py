"""`podrun fit`: a search is answered by the compiler of the slice, and answers are kept."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.request.train_file import read_config

pytestmark = pytest.mark.compilers
JOB = """
task: language_model
steps: 3
batch_size: 8
data: {name: text, path: text.txt, tokenizer: byte}
model: {name: gpt2, layers: 1, width: 128, heads: 2, context: 16}
precision: bfloat16
"""
LARGE = """
task: regression
steps: 3
batch_size: 8
model: {layers: 2, width: 40000}
data: {samples: 50}
precision: bfloat16
"""
"""One large matrix: the state takes 18 GiB, too much for a device of a v5e."""
TIMEOUT = 300.0  # seconds


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.yaml").write_text(JOB)
    data = tmp_path / "text.txt"
    data.write_text("one green bottle hanging on the wall\n" * 100)
    os.utime(data, (time.time() - 60, time.time() - 60))  # an answer that depends on a file of this moment is not kept
    monkeypatch.setenv("PODRUN_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "podrun.launcher.cli", "fit", "train.yaml", *words]


def fit(*words: str) -> Any:
    done = subprocess.run(command("--json", *words), capture_output=True, text=True, timeout=TIMEOUT)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return json.loads(done.stdout)


def children(pid: int) -> Iterator[int]:
    """Yield the processes that a process has started."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == pid:
            yield int(stat.parent.name)


def wait_until(happened: Any) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_search_that_is_killed_and_repeated_compiles_nothing_twice(folder: Path) -> None:
    words = "--slice", "v5e-4", "parallel=jit"
    first = subprocess.Popen(command(*words), stdout=subprocess.DEVNULL)
    wait_until(lambda: len([*folder.glob("home/answers/[0-9a-f]*")]) > 1)  # the survey is one
    compiling = [*children(first.pid)]
    first.send_signal(signal.SIGKILL)
    first.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in compiling))
    known = len([*folder.glob("home/answers/[0-9a-f]*")]) - 1
    again = fit(*words)
    assert (again["known"], again["compiled"]) == (known, 3 - known)
    assert sorted(one["fsdp"] for one in again["layouts"]) == [1, 2, 4]
    for one in again["layouts"]:
        assert one["accumulate"] == 1, "more parts are not faster, and need not be compiled"
        assert one["seconds_at_least"] == max(one["bounds"].values()) > 0
        assert 0 < one["needed"] < one["needed"] + one["spare"] == again["usable"] < 16 * 2**30
        assert one["sent"] > 0
    third = fit(*words)
    assert (third["known"], third["compiled"]) == (3, 0)
    assert third["layouts"] == again["layouts"]
    # The command that is printed gives the job the layout of the first row.
    podrun, option, slice, train, *keys = shlex.split(third["command"])
    assert (podrun, option, slice, train) == ("podrun", "--slice", "v5litepod-4", "train.yaml")
    assert read_config(Path(train), keys).parallel.grid.fsdp == third["layouts"][0]["fsdp"]
    # Another job is another program.
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=TIMEOUT)
    assert "0 layouts compiled, 3 known from earlier" in done.stdout
    assert done.stdout.splitlines()[-1] == third["command"]


def test_the_smallest_slice_that_fits(folder: Path) -> None:
    """On one device the state is too large by arithmetic; on four it is divided."""
    (folder / "train.yaml").write_text(LARGE)
    report = fit("--slice", "v5e-*")
    assert report["slice"] == "v5litepod-4"
    smaller = report["smaller_slices"]
    assert [(one["slice"], one["compiled"], one["layouts"]) for one in smaller] == [("v5litepod-1", 0, [])]
    assert all(one["reason"].startswith("the state takes 17.9 GiB of a device") for one in smaller[0]["ruled_out"])
    assert {(one["strategy"], one["fsdp"]) for one in report["ruled_out"]} == {("pmap", 1), ("jit", 1)}
    assert report["compiled"] == 2
    assert {one["fsdp"] for one in report["layouts"]} <= {2, 4}
    assert "parallel.name=jit" in report["command"]


def test_ctrl_c_shows_what_is_known(folder: Path) -> None:
    env = {**os.environ, "COLUMNS": "120"}
    search = subprocess.Popen(command("--slice", "v5e-4"), env=env, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: [*children(search.pid)])
    compiling = [*children(search.pid)]
    search.send_signal(signal.SIGINT)
    out, _ = search.communicate(timeout=30)
    assert search.returncode == 130
    assert out.startswith("train.yaml on v5litepod-4: 4 devices")
    assert not any(Path(f"/proc/{pid}").exists() for pid in compiling)

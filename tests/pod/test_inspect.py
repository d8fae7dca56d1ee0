"""`podrun inspect` through the real command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Sandbox
from ..hosts import wait_until
from ..tiers import nightly
from .conftest import is_alive

JOB = "{task: regression, model: {layers: 1, width: 8}, data: {samples: 50}, steps: 3, batch_size: 8}"
CODE = """
import os
import time
from podrun.runtime.tasks.regression import Regression

class Broken(Regression):
    def loss(self, params, batch, key):
        return batch["nothing"], {}

class Counted(Regression):
    marker = None

    def loss(self, params, batch, key):
        print("I am traced")
        open("traced", "w").close()
        return super().loss(params, batch, key)

class Slow(Regression):
    def loss(self, params, batch, key):
        with open("pid.part", "w") as file:
            file.write(str(os.getpid()))
        os.rename("pid.part", "pid")
        time.sleep(600)

class Killed(Regression):
    def loss(self, params, batch, key):
        os.kill(os.getpid(), 9)
"""


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def small(sandbox: Sandbox) -> Sandbox:
    (sandbox.path / "small.yaml").write_text(JOB)
    (sandbox.path / "mine.py").write_text(CODE)
    return sandbox


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts}


def inspected(sandbox: Sandbox, *args: str) -> Any:
    done = sandbox.podrun("inspect", "small.yaml", "--json", *args)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_job_is_shown_and_nothing_is_written(small: Sandbox) -> None:
    """Parameters, layout, FLOPs and memory; no workdir, no run. Only the answer is kept, in podrun's own folder."""
    before = files(small.path)
    done = small.podrun("inspect", "small.yaml", "--slice", "cpu-2x2", "parallel=jit", "launch.workdir=/no/such/place")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("small.yaml on cpu-2x2: 4 devices, jit, float32\n")
    for words in (
        "dense_0.kernel",
        "in 4 parts of [2, 1]",
        "the same on all 4 devices",
        "FLOP for each",
        "temporaries",
    ):
        assert words in done.stdout, words
    assert {path for path in files(small.path) if small.path / "home" not in (path, *path.parents)} == before


def test_an_answer_is_kept_until_something_it_depends_on_changes(small: Sandbox) -> None:
    """Whatever form it is printed in; the code of the user makes it anew.

    What the user's code prints is no part of it. What else makes it anew, such as a setting of the compiler, is in
    tests/launcher/request/test_kept_answers.py.
    """
    code, job = small.path / "mine.py", ("task=mine:Counted", "model.name=mlp", "data.name=sine")

    def traced(*words: str) -> bool:
        """Return whether the step was traced."""
        (small.path / "traced").unlink(missing_ok=True)
        done = small.podrun("inspect", "small.yaml", *job, *words)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        assert json.loads(done.stdout)["slice"] == "cpu-1x1" if "--json" in words else "I am traced" not in done.stdout
        return (small.path / "traced").exists()

    def age() -> None:
        os.utime(code, (time.time() - 60, time.time() - 60))

    age()
    assert traced("--json")
    assert not traced()
    code.write_text(code.read_text().replace("marker", "other_marker"))
    age()
    assert traced()


@pytest.mark.long
def test_slices(small: Sandbox) -> None:
    """One device, or what train.yaml says, or what is typed; a TPU slice of many devices is simulated."""
    assert (inspected(small)["slice"], inspected(small)["devices"]) == ("cpu-1x1", 1)
    report = inspected(small, "launch.slice=cpu-1x2")
    assert (report["slice"], report["devices"]) == ("cpu-1x2", 2)
    report = inspected(small, "launch.slice=cpu-1x2", "-s", "v3-32", "batch_size=32")
    assert (report["slice"], report["devices"], report["computed"]["device_kind"]) == ("v3-32", 32, "TPU v3")
    assert report["computed"]["seconds_at_peak"] > 0


@pytest.mark.usefixtures("small")
def test_all_mistakes_at_once(in_process: Command) -> None:
    """As for a run: what does not fit the slice, and what is missing."""
    args = ("batch_size=9", "launch.python=/no/python", "--slice", "cpu-2x2")
    done = in_process("inspect", "small.yaml", *args)
    assert (done.returncode, done.stdout) == (2, "")
    assert "batch_size 9 is not divisible by 4 devices; the nearest sizes that are: 8" in done.stderr
    assert "there is no program '/no/python'" in done.stderr
    done = in_process("inspect", "small.yaml", "stepz=9", "--slice", "cpu-0x2")
    assert done.returncode == 2
    assert "did you mean steps?" in done.stderr and "unknown slice 'cpu-0x2'" in done.stderr


def test_mistakes_that_the_runtime_finds(small: Sandbox) -> None:
    """A message and exit code 2, without a traceback."""
    done = small.podrun("inspect", "small.yaml", "task=mine:Missing", "model.name=mlp", "data.name=sine")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("podrun: task: module 'mine' has no 'Missing'")
    assert "Traceback" not in done.stderr


def test_user_code_that_fails(small: Sandbox) -> None:
    """The message says what, in which line of which file, and how to see more; exit code 1."""
    done = small.podrun("inspect", "small.yaml", "task=mine:Broken", "model.name=mlp", "data.name=sine")
    assert (done.returncode, done.stdout) == (1, "")
    assert "KeyError: 'nothing'\nin mine.py, line 8" in done.stderr
    assert "Traceback" not in done.stderr and "--simulate" in done.stderr


@pytest.mark.long
def test_a_process_that_is_killed(small: Sandbox) -> None:
    """As the kernel does it when this machine's memory is short: said, and what to try."""
    done = small.podrun("inspect", "small.yaml", "task=mine:Killed", "model.name=mlp", "data.name=sine")
    assert (done.returncode, done.stdout) == (1, "")
    first, way = done.stderr.splitlines()
    assert first.startswith(
        "podrun: the process that compiled the step was ended by signal 9, probably because this machine"
    )
    assert way.startswith("end other programs here, raise the limit")
    assert way.endswith("or take a machine with more memory, a smaller slice or a smaller model")


@pytest.mark.parametrize("whole_group", [True, *nightly(False)])
def test_an_interrupt_while_compiling(small: Sandbox, whole_group: bool) -> None:
    """Ctrl-C goes to the whole group of a terminal, `kill -INT` to the launcher alone. Nothing is left.

    That nothing is left when podrun is killed is in tests/launcher/request/test_query_process.py.
    """
    words = ("inspect", "small.yaml", "task=mine:Slow", "model.name=mlp", "data.name=sine", "-o", "page.html")
    process = subprocess.Popen(
        [*small.command, *words],
        cwd=small.path,
        env=small.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until((small.path / "pid").exists, "the step is traced")
        worker = int((small.path / "pid").read_text())
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out, err) == (128 + signal.SIGINT, "", "podrun: interrupted\n")
    wait_until(lambda: not is_alive(worker), "the worker's end")
    assert not (small.path / "page.html").exists()


@pytest.mark.long
def test_a_page(small: Sandbox) -> None:
    """In place of the text; its data are those of --json."""
    done = small.podrun("inspect", "small.yaml", "--slice", "cpu-1x2", "-o", "page.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("page.html: ") and done.stdout.endswith("it loads nothing from elsewhere\n")
    page = (small.path / "page.html").read_text()
    assert "small.yaml on cpu-1x2" in page and "optimizer state" in page and "split over batch in 2 parts" in page


def test_where_no_page_can_be_written(small: Sandbox, in_process: Command) -> None:
    """That is found before anything is compiled, which can take minutes."""
    (small.path / "home").mkdir(mode=0o700)
    for words, message in (
        (("-o", "missing/page.html"), "cannot write missing/page.html: No such file or directory; give another file"),
        (("-o", "home"), "cannot write home: Is a directory; give another file"),
        (("-o", "page.html", "--json"), "-o writes a page and --json prints JSON; give one of them"),
    ):
        done = in_process("inspect", "small.yaml", *words)
        assert (done.returncode, done.stdout, done.stderr[: len(message) + 8]) == (2, "", f"podrun: {message}")
    done = in_process("inspect", "--mesh", "x=2", "--array", "4@x", "-o", "page.html")
    assert done.returncode == 2 and "leave -o out, or give a train.yaml" in done.stderr
    assert not (small.path / "home" / "answers").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--slice", "v5e-16", "--compile-for", "h100"),
            "--compile-for h100: v5litepod-16 is a slice of TPUs; give cpu or",
        ),
        (("--slice", "cpu-2x2", "--compile-for", "tpu"), "--compile-for tpu: cpu-2x2 is a slice of CPUs; give cpu"),
        (
            ("--slice", "gpu-1x8", "--compile-for", "h1000"),
            "unknown GPU 'h1000'; the compiler's descriptions are of a100,",
        ),
        (("--slice", "v4-8", "--compile-for", "tpu"), "v4-8: the TPU compiler treats a chip of v4 as two devices"),
    ],
)
@pytest.mark.usefixtures("small")
def test_what_a_slice_cannot_be_compiled_for(in_process: Command, arguments: tuple[str, ...], message: str) -> None:
    done = in_process("inspect", "small.yaml", "batch_size=16", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"podrun: {message}")


@pytest.mark.skipif(find_spec("libtpu") is not None, reason="the TPU compiler is installed")
def test_without_the_compiler_of_the_slice(small: Sandbox, in_process: Command) -> None:
    """The report is of the CPU and says so; whoever asks for the compiler gets the way to it."""
    way = "libtpu, the compiler for v5litepod-4, is not installed; install it here with `podrun compile --install tpu`"
    done = small.podrun("inspect", "small.yaml", "--slice", "v5e-4")
    assert (done.returncode, done.stderr) == (0, "")
    assert "as compiled for CPU in" in done.stdout
    assert done.stdout.splitlines()[-1].startswith(f"Compiled for CPU: {way}")
    done = in_process("inspect", "small.yaml", "--slice", "v5e-4", "--compile-for", "tpu")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"podrun: {way}")

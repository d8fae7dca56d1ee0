"""`podrun compile`: what it makes is loaded by a run in place of compiling, and only if nobody else can have made it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ..conftest import Podrun, Sandbox
from ..hosts import wait_until
from ..tiers import mostly_long
from .conftest import processes_of

SLICE = ("--slice", "cpu-2x1")
LOADED = "the step was compiled before the start, and loaded in "
LARGE = re.compile(r"Finished XLA compilation of jit\((_fun|_(?:device|pod)_\w+|jaxpr_as_fun)\)")
"""JAX logs that it compiles a step, an evaluation and the initial state; it logs no program that is loaded."""
REFUSED = "what was compiled before the start is not used: "


def stored(sandbox: Sandbox) -> Path:
    """Return the list of the programs."""
    (path,) = (sandbox.path / "home" / "programs").glob("*.json")
    return path


def program(sandbox: Sandbox, name: str) -> Path:
    """Return the file of a program."""
    key = next(p["key"] for p in json.loads(stored(sandbox).read_text())["programs"] if p["name"] == name)
    return sandbox.path / "home" / "programs" / "compiled" / str(key)


def compiled(sandbox: Sandbox, *words: str, slice: tuple[str, str] = SLICE) -> str:
    done = sandbox.podrun("compile", "small.yaml", *slice, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def train(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Train with an empty cache. Returns the console's output, and at its end which large programs were compiled."""
    monkeypatch.setenv("JAX_LOG_COMPILES", "1")

    def run(name: str, *words: str, slice: tuple[str, str] = SLICE) -> str:
        monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(sandbox.path / f"cache-{name}"))
        done = sandbox.podrun("--simulate", *slice, "small.yaml", "--workdir", name, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        newest = max((sandbox.path / "home" / "runs").iterdir(), key=lambda path: path.name)
        logs = "".join(path.read_text() for path in (newest / "logs").iterdir())
        names = LARGE.findall(logs)
        return f"{done.stdout}\ncompiled: {sorted(set(names))}"

    return run


@pytest.mark.parametrize(
    ("slice", "parallel"),
    mostly_long(
        (("cpu-1x2", "pmap"), ("cpu-2x1", "pmap"), ("cpu-2x1", "jit")),
        lambda number, _: number == 0,
        lambda number, _: number == 1,
    ),
)
def test_a_run_loads_what_was_compiled(sandbox: Sandbox, train: Callable[..., str], slice: str, parallel: str) -> None:
    """It compiles nothing large.

    That a run which compiles has the same losses bit for bit, and that a second `podrun compile` compiles nothing, is in
    test_what_cannot_be_trusted_is_not_used and test_two_at_once.
    """
    option = f"parallel={parallel}"
    said = compiled(sandbox, option, slice=("--slice", slice))
    count = 4 if slice == "cpu-2x1" else 3  # several processes need one more
    assert f"small.yaml for {slice}: {count} of {count} compiled" in said
    assert re.search(r"step +\d+\.\d s +[\d.]+ kB", said)
    assert not list((sandbox.path / "home" / "runs").iterdir())
    assert {oct(path.stat().st_mode & 0o777) for path in stored(sandbox).parent.rglob("*")} == {"0o700", "0o600"}
    loaded = train("loaded", option, slice=("--slice", slice))
    assert loaded.endswith("compiled: []"), loaded
    assert loaded.count(LOADED) == 1 and REFUSED not in loaded, loaded


def wrong_version(sandbox: Sandbox) -> None:
    fields = json.loads(stored(sandbox).read_text())
    fields["built_for"]["jaxlib"] = "0.1.2"
    fields["programs"] = [{**one, "key": one["key"][::-1]} for one in fields["programs"]]
    stored(sandbox).write_text(json.dumps(fields))


def damaged(sandbox: Sandbox) -> None:
    content = bytearray(program(sandbox, "step").read_bytes())
    content[len(content) // 2] ^= 1
    program(sandbox, "step").write_bytes(content)


@pytest.mark.long
def test_what_cannot_be_trusted_is_not_used(sandbox: Sandbox, train: Callable[..., str]) -> None:
    """One line says why; it is compiled as usual, with the same losses. `podrun compile` makes it again.

    What else cannot be trusted is in tests/runtime/test_disk_cache.py.
    """
    compiled(sandbox)
    for spoil, why in ((damaged, " is damaged"), (wrong_version, "it was compiled with jaxlib 0.1.2, and ")):
        spoil(sandbox)
        loaded = train(spoil.__name__)
        assert loaded.count(REFUSED) == 1 and why in loaded and "; podrun compiles as usual" in loaded
        assert not loaded.endswith("compiled: []") and LOADED not in loaded
        assert ("nothing was compiled" in compiled(sandbox)) == (spoil is wrong_version)
    loaded = train("again")
    assert LOADED in loaded
    assert sandbox.losses("damaged") == sandbox.losses("wrong_version") == sandbox.losses("again")
    kept = train("again", "steps=8")  # another job, so nothing fits, and nothing is said
    assert LOADED not in kept and REFUSED not in kept


def test_without_space_for_the_store(sandbox: Sandbox, in_process: Podrun) -> None:
    (sandbox.path / "home").mkdir()
    (sandbox.path / "home" / "programs").write_text("")
    done = in_process("compile", "small.yaml", *SLICE)
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot keep the compiled programs in " in done.stderr and "set PODRUN_HOME to another folder" in done.stderr


@pytest.mark.parametrize("parallel", ["single", "ensemble"])
def test_programs_of_single_processes(in_process: Podrun, parallel: str) -> None:
    done = in_process("compile", "small.yaml", *SLICE, f"parallel={parallel}")
    assert done.returncode == 2
    assert done.stderr.startswith(f"podrun: parallel: {parallel} has no program of the whole pod")


def start(sandbox: Sandbox) -> subprocess.Popen[str]:
    command: list[Any] = [*sandbox.command, "compile", "small.yaml", *SLICE, "model.layers=12"]
    return subprocess.Popen(
        command, cwd=sandbox.path, env=sandbox.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.long
def test_two_at_once(sandbox: Sandbox) -> None:
    """The second waits for the first, and compiles nothing."""
    first = start(sandbox)
    wait_until(lambda: any((sandbox.path / "home").glob("programs/*.lock")), "the first")
    wait_until(lambda: len(processes_of(sandbox)) > 1, "its pod")
    second = start(sandbox)
    answers = [process.communicate(timeout=240) for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), answers
    assert "4 of 4 compiled" in answers[0][0]
    assert "nothing was compiled" in answers[1][0]
    assert "another podrun compiles the same job" in answers[1][1]


@pytest.mark.long
def test_ctrl_c(sandbox: Sandbox) -> None:
    """Nothing is left running; the next one begins where this one was."""
    process = start(sandbox)
    wait_until(lambda: len(processes_of(sandbox)) > 1, "its pod")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted; compiled programs that were complete are kept" in said
    assert processes_of(sandbox) == {}
    assert "4 of 4 compiled" in compiled(sandbox)

"""Every benchmark at its smallest size: it comes to its end, and names the versions and the machine of its numbers."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import FAST
from .hosts import why_not as no_hosts
from .pod.chaos import Result
from .slurm.cluster import why_not as no_cluster
from .tiers import mostly_long

FOLDER = Path(__file__).parents[1] / "benchmarks"
SMALLEST = {
    "bring": ["--hosts=2 --megabytes=64 --rounds=1"],
    "certificate": ["--rounds=1"],
    "charts": ["--rounds=1 --points 1000"],
    "chaos": ["--runs=1 --seed=3 --faults=exception"],
    "chaos_bucket": ["--runs=1"],
    "checkpoint": ["--rounds=1 --gigabytes=0.01"],
    "checkpoint_beside": ["--rounds=1 --layers=1 --width=64", "--rounds=1 --manifest --megabytes=10"],
    "compiled": ["--slice=cpu-1x2 --model=tiny --context=16"],
    "compile_time": ["--rounds=1 --parameters=4 --strategies=pmap --devices=2"],
    "detection": ["--runs=1"],
    "fanout": ["--hosts 2 --rounds=1"],
    "forecast": ["--runs=4 --failures=3 --draws=20"],
    "hold": ["--rounds=1 --slice=1x1 --runs=1"],
    "generate": ["--rounds=1 --tokens=24 --rows=2 --layers=1 --width=32 --heads=2"],
    "gpt2_step": ["--rounds=1 --steps=1 --layers=1 --width=64 --context=32 --batch=2 --vocabulary=300"],
    "input": ["--rounds=1 --batch=8"],
    "many_hosts": ["--hosts 4 8 --seconds=1 --lost=1 --cases train rack storm program preempted"],
    "memory_checkpoint": ["--rounds=1 --gigabytes=0.01", "--faults=1"],
    "packing": ["--rounds=1 --documents=2000"],
    "lab": ["--hosts=2 --packages=here model.layers=1 model.width=32"],
    "prepare": ["--rounds=1 --megabytes=1", "--kills=1 --workers 1 --megabytes=6 --byte"],
    "program_start": ["--rounds=1 --slice=1x1"],
    "recovery": ["--runs=1 --kills=1"],
    "scale": ["--hosts 2 4"],
    "slurm": ["--rounds=1"],
    "startup": ["--runs=1 --slices=1x1"],
    "step_overhead": ["--rounds=1 --steps=1 --slice=cpu-2x1 --model=small"],
    "strategies": ["--rounds=2 --steps=1 --slice=cpu-1x4 --model=mlp"],
    "streaming": ["--hosts=2 --lines=100 --rounds=1"],
    "sweep": ["--trials=2 --search=random", "--trials=5 --kills=1"],
    "verification": ["--rounds=1 --steps=1 --layers=1 --width=32 --devices=2"],
    "watch": ["--rounds=1 --seconds=1 --listeners 1"],
}
"""Options of each run of a benchmark."""
RUNS = [(name, options) for name, several in SMALLEST.items() for options in several]
HELPERS = {"child", "setting"}
IN_CI = {"charts", "checkpoint", "compile_time", "forecast", "generate", "gpt2_step", "input", "verification", "watch"}
"""Benchmarks that are cheap, and need neither hosts nor pods."""


def no_browser() -> str | None:
    return None if any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))) else "there is no Chromium"


def no_mutual_tls() -> str | None:
    import jax

    has_it = "mtls_cert_file" in inspect.signature(jax.distributed.initialize).parameters
    return None if has_it else "JAX before 0.12 has no mutual TLS"


NEEDS: dict[str, Callable[[], str | None]] = {
    "bring": lambda: no_hosts() or (None if shutil.which("rsync") else "there is no rsync"),
    "certificate": no_mutual_tls,
    "charts": no_browser,
    "fanout": no_hosts,
    "lab": no_hosts,
    "slurm": no_cluster,
    "streaming": no_hosts,
}
"""Functions that return why a benchmark cannot run on this machine."""
HEADER = re.compile(
    r"versions: podrun \S+( \(\w+(, changed)?\))?, Python 3\.\d+\.\d+, jax \d\S+, jaxlib \d\S+, flax \d\S+, optax \d\S+, "
    r"orbax-checkpoint \d\S+, numpy \d\S+\n"
    r"machine: \d+ cores? \(.+\), \d+\.\d of \d+\.\d GiB memory available, load \d+\.\d\d \(\d+\.\d\d over five minutes\)\n\n"
)


def test_every_benchmark_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == SMALLEST.keys() | HELPERS


def test_every_benchmark_prints_the_setting() -> None:
    """The long test below sees the output; this one fails at once for a new benchmark that does not."""
    for name in SMALLEST:
        calls = [n for n in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text())) if isinstance(n, ast.Call)]
        assert "print_setting" in {getattr(call.func, "id", "") for call in calls}, name


def test_the_setting() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import setting; setting.print_setting()"],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert HEADER.fullmatch(done.stdout), done.stdout + done.stderr


BEGIN = """
import argparse, importlib, json, sys

class Begun(Exception):
    pass

def parsed(parser):
    parse(parser)
    raise Begun

parse, argparse.ArgumentParser.parse_args = argparse.ArgumentParser.parse_args, parsed
for name, options in json.loads(sys.argv[1]):
    sys.argv[:] = [name, *options.split()]
    try:
        importlib.import_module(name).main()
    except Begun:
        print(name)
"""


def test_every_benchmark_begins() -> None:
    """It finds all that it imports, and knows the options of its smallest size."""
    command = [sys.executable, "-c", BEGIN, json.dumps(RUNS)]
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, [name for name, _ in RUNS]), done.stdout + done.stderr


@pytest.mark.parametrize(("wrong", "code"), [([], 0), ([("cause", "host-1 was named")], 1)])
def test_a_wrong_run_is_an_exit_code(
    wrong: list[tuple[str, str]], code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One wrong run among others that are right."""
    monkeypatch.syspath_prepend(str(FOLDER))
    chaos = importlib.import_module("chaos")
    monkeypatch.setattr(chaos.Lab, "measure", lambda lab, seeds: None)
    results = {1: Result("one"), 2: Result("two", wrong), 3: Result("three")}
    monkeypatch.setattr(chaos.Lab, "run", lambda lab, seed: (lab.case(seed)[0], results[seed]))
    monkeypatch.setattr(sys, "argv", ["chaos.py", "--runs=3", "--faults", "exception"])
    with pytest.raises(SystemExit) as ended:
        chaos.main()
    assert ended.value.code == code
    assert re.search(rf"^all +3 +{3 - code}\b", capsys.readouterr().out, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "options"),
    mostly_long(
        RUNS,
        lambda *_: False,
        lambda _, case: case[0] in IN_CI,
    ),
)
def test_a_benchmark_at_its_smallest_size(name: str, options: str, tmp_path: Path) -> None:
    if reason := NEEDS.get(name, lambda: None)():
        has_to_run = os.environ.get("CI") == "true" and name != "certificate"  # whose JAX only `make newest` has
        pytest.fail(reason) if has_to_run else pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), *options.split()],
        cwd=tmp_path,
        env={**os.environ, **FAST, "PODRUN_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    header = HEADER.match(done.stdout)
    assert header, done.stdout[:1000]
    assert re.search(r"\d\.\d", done.stdout[header.end() :]), "no figure: " + done.stdout

"""Change the guarding modules by small mistakes, one at a time, and see whether their tests notice: `make mutants`.

Everything happens in copies of the sources in a temporary folder; the checkout is only read. A mutant that no test
notices has survived: write the test, or defend it with its reason in `mutants_defended.txt`.
"""

from __future__ import annotations

import argparse
import compileall
import ctypes
import gc
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutants_table import GROUPS, Group
from tests.mutations import Mutation, mutations

ROOT = Path(__file__).parents[1]
DEFENDED = Path(__file__).with_name("mutants_defended.txt")
WORKERS = 2
_HEAVY = ("jax", "flax.linen", "optax", "orbax.checkpoint", "numpy", "pydantic", "yaml", "fabric", "rich.live", "click")
"""Packages imported once, before the forks."""
_LEAST_LIMIT = 8.0  # seconds for the tests of a mutant; more if they take long unchanged
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@dataclass(frozen=True)
class Mutant:
    """One small change of one file, by its number among all of that file."""

    group: str
    file: str
    number: int
    line: int
    before: str
    after: str

    @property
    def key(self) -> tuple[str, str, str]:
        return self.file, self.before, self.after


def read_defended(path: Path = DEFENDED) -> dict[tuple[str, str, str], str]:
    """Return the reason why nobody can notice a change, by file and changed line."""
    defended: dict[tuple[str, str, str], str] = {}
    for entry in re.split(r"\n\n+", path.read_text().strip()):
        lines = [line for line in entry.splitlines() if not line.startswith("#")]
        if lines:
            file, before, after, reason = (line.strip() for line in lines)
            defended[file, before.removeprefix("- "), after.removeprefix("+ ")] = reason
    return defended


def choose(groups: list[Group], limit: int, seed: int) -> list[Mutant]:
    """Return at most `limit` mutants, as many of each group as of the others where it has enough."""
    piles = []
    for group in groups:
        pile = [
            (group.name, file, number, mutation)
            for file in group.files
            for number, mutation in enumerate(mutations((ROOT / file).read_text()))
        ]
        random.Random(f"{seed} {group.name}").shuffle(pile)  # the same whichever other groups are tried
        piles.append(pile)
    chosen: list[tuple[str, str, int, Mutation]] = []
    while len(chosen) < limit and any(piles):
        chosen += [pile.pop() for pile in piles if pile]
    return [Mutant(group, file, number, *mutation.described) for group, file, number, mutation in chosen[:limit]]


class Copy:
    """An installed copy of the sources, in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for source, package in (("api", "podrun"), ("launcher", "podrun/launcher"), ("runtime", "podrun/runtime")):
            shutil.copytree(ROOT / source, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
        compileall.compile_dir(folder, quiet=1)

    def run(self, group: Group, limit: float, is_changed: bool = True) -> bool | None:
        """Run the tests of the group in a child. Return whether they pass; None if they took longer than `limit`."""
        child = os.fork()
        if child == 0:
            if is_changed:  # a changed file may have the size and time of the one before
                sys.dont_write_bytecode = True
                os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            self._be_tested(group, limit)
        passed: bool | None = None
        end = time.monotonic() + limit
        while time.monotonic() < end:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                passed = status == 0
                break
            time.sleep(0.02)
        _end_descendants()
        return passed

    def _be_tested(self, group: Group, limit: float) -> None:
        """Run pytest in this process, which is a fork, and end it."""
        try:
            os.setsid()
            output = os.open(self.folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.path.insert(0, str(self.folder))
            os.environ |= {"PYTHONPATH": str(self.folder), "PODRUN_HOME": str(self.folder / "home")}
            plugin = "no:hypothesispytest"  # importing hypothesis takes longer than all the rest
            options = ["-x", "-q", "-p", plugin, f"--timeout={limit:.0f}", f"--basetemp={self.folder / 'tmp'}"]
            code = int(pytest.main([*options, "-m", "not long and not nightly", *group.tests]))
            origin = importlib.import_module("podrun.launcher").__file__ or ""
            os._exit(code if origin.startswith(str(self.folder)) else 99)
        finally:
            os._exit(98)

    def try_mutant(self, mutant: Mutant, group: Group, limit: float) -> bool | None:
        """Change a file, run the tests, and put the file back."""
        path = self.folder / "podrun" / mutant.file
        source = (ROOT / mutant.file).read_text()
        path.write_text(mutations(source)[mutant.number].source())
        try:
            return self.run(group, limit)
        finally:
            path.write_text(source)


def _end_descendants() -> None:
    """Kill all that the tests left: this process is the subreaper, so what is left becomes its child."""
    for _ in range(1000):
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        if not children:
            return
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(int(pid), 0)


def work(folder: Path, mutants: list[Mutant], groups: list[Group], results: Path) -> None:
    """Try the mutants one after another, and write a line of JSON for each. Runs in a fork."""
    ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0)
    copy = Copy(folder)
    with results.open("w", buffering=1) as file:
        for group in groups:
            mine = [mutant for mutant in mutants if mutant.group == group.name]
            if not mine:
                continue
            start = time.monotonic()
            if not copy.run(group, 600, is_changed=False):
                text = (folder / "output").read_text(errors="replace")
                raise SystemExit(f"the tests of {group.name} fail without any change:\n{text[-3000:]}")
            limit = max(_LEAST_LIMIT, 4 * (time.monotonic() - start))
            for mutant in mine:
                passed = copy.try_mutant(mutant, group, limit)
                file.write(json.dumps([*mutant.key, passed]) + "\n")
                print({True: "SURVIVED", False: "killed", None: "timed out"}[passed], *_shown(mutant), flush=True)


def _shown(mutant: Mutant) -> Iterator[str]:
    yield f"{mutant.file}:{mutant.line}\n    - {mutant.before}\n    + {mutant.after}"


def table(mutants: list[Mutant], passed: dict[tuple[str, str, str], bool | None], groups: list[Group]) -> str:
    """Return the result as a table in Markdown."""
    defended = read_defended()
    rows = ["| module | mutants | killed | defended | survived | killed or defended |", "|---|--:|--:|--:|--:|--:|"]
    counts = []
    for group in groups:
        mine = [m for m in mutants if m.group == group.name]
        killed = sum(not passed[m.key] for m in mine)
        excused = sum(bool(passed[m.key]) and m.key in defended for m in mine)
        counts.append((group.name, len(mine), killed, excused))
    counts.append(("**all**", *(sum(row[i] for row in counts) for i in (1, 2, 3))))
    for name, number, killed, excused in counts:
        share = f"{100 * (killed + excused) / number:.0f} %" if number else "-"
        rows.append(f"| {name} | {number} | {killed} | {excused} | {number - killed - excused} | {share} |")
    return "\n".join(rows)


def main() -> None:
    """Parse the options, try the mutants in two processes, and print what survived, and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--module", help="only groups whose name or files contain this text")
    parser.add_argument("--limit", type=int, default=300, help="mutants in all (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="which mutants are chosen (default: 1)")
    options = parser.parse_args()
    groups = [g for g in GROUPS if not options.module or options.module in " ".join((g.name, *g.files))]
    mutants = choose(groups, options.limit, options.seed)
    os.chdir(ROOT)
    os.environ["JAX_PLATFORMS"] = "cpu"
    for name in _HEAVY:
        importlib.import_module(name)
    gc.freeze()  # what is there now is not copied by the forks' collections
    defended = read_defended()
    with tempfile.TemporaryDirectory(prefix="podrun-mutants-") as temporary:
        children, passed = [], {}
        for number in range(WORKERS):
            folder = Path(temporary, str(number))
            child = os.fork()
            if child == 0:
                try:
                    work(folder, mutants[number::WORKERS], groups, folder.with_suffix(".json"))
                except SystemExit as failed:
                    print(failed, flush=True)
                    os._exit(1)
                os._exit(0)
            children.append(child)
        statuses = [os.waitpid(child, 0)[1] for child in children]
        if any(statuses):
            raise SystemExit(1)
        for path in sorted(Path(temporary).glob("*.json")):
            for file, before, after, survived in map(json.loads, path.read_text().splitlines()):
                passed[file, before, after] = survived
    left = [m for m in mutants if passed[m.key] and m.key not in defended]
    print("\nsurvived, and not defended:", *(text for m in left for text in _shown(m)), sep="\n")
    print(f"\nseed {options.seed}\n\n{table(mutants, passed, groups)}")


if __name__ == "__main__":
    main()

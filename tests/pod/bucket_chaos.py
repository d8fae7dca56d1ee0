"""A run whose bucket's server fails, and what must be true after it: for test_bucket.py and benchmarks/chaos_bucket.py."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from podrun.runtime.contract import CHECKPOINT_MANIFEST
from podrun.runtime.storage.bucket_claim import CLAIM
from podrun.runtime.storage.bucket_client import Bucket

from ..buckets import ADDRESS, BUCKET, bucket_server
from ..conftest import Sandbox, make_sandbox
from ..fault_proxy import FAULTS, Faults, fault_proxy
from .conftest import Run, end_processes, kill

KEEP = 2
JOB = ("--simulate", "--slice", "cpu-2x1", "small.yaml", "steps=20", "eval.every=10", "checkpoint.every=4")
JOB = (*JOB, f"checkpoint.keep={KEEP}")
SLOW = ("--inject", "slow:seconds=0.1")
"""Holds up each step, so that a run cannot end before it is disturbed."""
CAUSES = {
    "expired": r"credentials of .* have expired",
    "skewed": r"the clock of this host is wrong",
    "503": r"cannot (write|read|list|delete) .* after \d (try|tries)",
}
"""Faults that do not pass, and how podrun puts them."""
_LIMIT = 420.0  # seconds for a run that should end


class Bucketed(Sandbox):
    """Run podrun with a server of buckets, and a cache of its own for the spool."""

    def __init__(self, path: Path, server: dict[str, str]) -> None:
        super().__init__(path)
        self.server = server

    @property
    def env(self) -> dict[str, str]:
        return {**super().env, "XDG_CACHE_HOME": str(self.path / "cache"), **self.server}

    @property
    def spools(self) -> list[Path]:
        return list((self.path / "cache" / "podrun" / "buckets").glob("*"))

    def losses_of_spool(self) -> dict[int, float]:
        (spool,) = self.spools
        return self.losses(str(spool))


@contextmanager
def environment(env: dict[str, str]) -> Iterator[None]:
    """Let this process see a server of buckets, too."""
    before = dict(os.environ)
    os.environ.update(env)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def contents(url: str, scratch: Path) -> tuple[dict[int, float], list[int], list[str]]:
    """Return losses by step, steps of the complete checkpoints, and all that is wrong with a workdir in a bucket."""
    bucket = Bucket(url)
    objects = bucket.objects()
    wrong = [f"{name} was left" for name in objects if name.startswith(".") and name != CLAIM]
    lines = (bucket.read("metrics.jsonl") or b"").decode().splitlines()
    losses = {r["step"]: r["loss"] for r in map(json.loads, lines) if r["kind"] == "train"}
    folders = sorted({int(name.split("/")[1]) for name in objects if re.match(r"checkpoints/\d+/", name)})
    complete = [step for step in folders if f"checkpoints/{step}/{CHECKPOINT_MANIFEST}" in objects]
    wrong += [f"checkpoint {step} has no manifest" for step in folders if step not in complete]
    for step in complete:
        prefix = f"checkpoints/{step}/"
        files = json.loads(bucket.read(f"{prefix}{CHECKPOINT_MANIFEST}") or b"")["files"]
        names = {name.removeprefix(prefix) for name in objects if name.startswith(prefix)} - {CHECKPOINT_MANIFEST}
        if names != set(files):
            wrong.append(f"checkpoint {step} has not the files of its manifest: {sorted(names ^ set(files))}")
        for name in names & set(files):
            bucket.get_file(prefix + name, scratch)
            if hashlib.sha256(scratch.read_bytes()).hexdigest() != files[name][1]:
                wrong.append(f"checkpoint {step}: {name} has other bytes than its manifest says")
    return losses, complete, wrong


@dataclass
class Result:
    """Record how one case ended."""

    case: str
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    first: str = ""
    """Exit code and last line of the first command, or `killed`."""
    seconds: float = 0.0


class BucketCase:
    """One seed: a run whose server fails, perhaps killed, perhaps refused for good, and then the same command again."""

    def __init__(self, path: Path, seed: int) -> None:
        chance = random.Random(seed)
        self.scheme = ("gs", "s3")[seed % 2]
        self.share = chance.uniform(0.03, 0.15)
        self.lasting = chance.choice([None, None, "expired", "503", "skewed" if self.scheme == "s3" else "expired"])
        self.after = chance.randrange(25, 120)
        self.kill = chance.choice([None, (chance.choice((4, 8, 12)), chance.uniform(0.0, 2.0))])
        self.moves = chance.random() < 0.5
        self._path, self._seed = path, seed
        self._kinds = FAULTS if self.scheme == "s3" else tuple(f for f in FAULTS if f != "skewed")
        how = [f"{self.share:.0%} broken"]
        how += [f"{self.lasting} from request {self.after} on"] if self.lasting else []
        how += [f"killed {self.kill[1]:.1f} s after checkpoint {self.kill[0]}"] if self.kill else []
        how += ["again on another host" if self.moves else "again on the same host"]
        self._result = Result(f"seed {seed}: {self.scheme}, {', '.join(how)}")

    def execute(self, expected: dict[int, float]) -> Result:
        """Run it; `expected` are the losses of an undisturbed run."""
        began = time.monotonic()
        url = f"{self.scheme}://{BUCKET}/runs/small"
        make_sandbox(self._path)
        with ExitStack() as stack:
            server = stack.enter_context(bucket_server(self.scheme, self._path / "server.log"))
            stack.enter_context(environment(server))
            code = self._command(server, self.kill, self._first_faults(), f"--workdir={url}")
            _, complete, _ = contents(url, self._path / "scratch")
            self._check_keep(complete, KEEP if code == 0 else KEEP + 1)
            if self.moves:
                shutil.rmtree(self._path / "cache", ignore_errors=True)
            code = self._command(server, None, self._faults(self._seed + 1000), f"--workdir={url}")
            if code != 0:
                self._wrong(f"the second command ended with {code}")
            losses, complete, wrong = contents(url, self._path / "scratch")
            self._result.wrong += wrong
            self._check_keep(complete, KEEP)
            if losses != expected:
                self._wrong(f"losses differ: {losses}")
            if complete[-1:] != [max(expected)]:
                self._wrong(f"the last checkpoint is not there: {complete}")
        self._result.seconds = time.monotonic() - began
        return self._result

    def _faults(self, seed: int) -> Faults:
        return Faults(seed, self.share, kinds=self._kinds)

    def _first_faults(self) -> Faults:
        return Faults(self._seed, self.share, self.lasting, self.after, self._kinds)

    def _command(
        self, server: dict[str, str], killed: tuple[int, float] | None, faults: Faults, workdir: str
    ) -> int | None:
        """Give the command, and check how it ends; return its exit code, None if it was killed."""
        key = ADDRESS[self.scheme]
        with fault_proxy(server[key], faults) as proxy:
            sandbox = Bucketed(self._path, {**server, key: proxy})
            run = Run(sandbox, *JOB, *SLOW, workdir)
            try:
                if killed is not None and run.reaches(
                    lambda e: e["event"] == "checkpoint" and e["step"] >= killed[0], _LIMIT
                ):
                    time.sleep(killed[1])
                    kill(run.process.pid)
                    end_processes(sandbox)
                    run.process.wait(60)
                    self._result.first = "killed"
                    return None
                code = run.end(_LIMIT)
            finally:
                end_processes(sandbox)
                self._result.faults += faults.count
        self._result.first = self._result.first or f"{code}: {run.last_line}"
        if code != 0:
            self._check_cause(f"{run.last_line} {run.stderr}", faults)
        return code

    def _check_cause(self, text: str, faults: Faults) -> None:
        if self.lasting is None or not faults.lasted:
            self._wrong(f"ended although all faults had passed: {text}")
        elif not re.search(CAUSES[self.lasting], text) or f"{self.scheme}://{BUCKET}" not in text:
            self._wrong(f"the cause is not named: {text}")

    def _check_keep(self, complete: list[int], most: int) -> None:
        if len(complete) > most:
            self._wrong(f"{len(complete)} checkpoints are kept, at most {most} should be: {complete}")

    def _wrong(self, what: str) -> None:
        self._result.wrong.append(what)

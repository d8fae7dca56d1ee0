"""A run whose results are in a bucket is that of a folder, bit for bit, and goes on from the bucket alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..buckets import BUCKET, bucket_server
from ..conftest import make_sandbox
from .bucket_chaos import SLOW, Bucketed
from .conftest import Run, end_processes, kill

JOB = ("--simulate", "--slice", "cpu-2x1", "small.yaml", "steps=30", "eval.every=10", "checkpoint.every=5")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses by step of the job in a folder."""
    sandbox = make_sandbox(tmp_path_factory.mktemp("undisturbed"))
    done = sandbox.podrun(*JOB)
    assert done.returncode == 0, done.stderr
    return sandbox.losses("runs/small")


@pytest.fixture(params=["gs", "s3"])
def bucketed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Bucketed, str]]:
    """A sandbox, and the URL of a workdir."""
    make_sandbox(tmp_path)
    with bucket_server(request.param, tmp_path / "server.log") as server:
        sandbox = Bucketed(tmp_path, server)
        yield sandbox, f"--workdir={request.param}://{BUCKET}/runs/small"
        end_processes(sandbox)


@pytest.mark.long
def test_a_killed_run_goes_on_from_the_bucket_alone(
    bucketed: tuple[Bucketed, str], undisturbed: dict[int, float]
) -> None:
    sandbox, workdir = bucketed
    run = Run(sandbox, *JOB, *SLOW, workdir)
    run.wait_for(lambda e: e["event"] == "checkpoint" and e["step"] >= 10)
    kill(run.process.pid)
    end_processes(sandbox)
    for spool in sandbox.spools:
        shutil.rmtree(spool)
    done = sandbox.podrun(*JOB, workdir)
    assert done.returncode == 0, done.stderr
    assert "has claimed" in done.stdout + done.stderr  # by the run that was killed, for which it has waited
    assert sandbox.losses_of_spool() == undisturbed
    assert "resumed" in done.stdout + done.stderr


@pytest.mark.long
def test_two_runs_do_not_train_in_one_workdir(bucketed: tuple[Bucketed, str], undisturbed: dict[int, float]) -> None:
    """They run at the same time, as far as podrun can tell on different machines: their spools are not the same."""
    sandbox, workdir = bucketed
    run = Run(sandbox, *JOB, "--inject", "slow:seconds=1", workdir)
    run.wait_for_step(1)
    other = Bucketed(sandbox.path, {**sandbox.server, "XDG_CACHE_HOME": str(sandbox.path / "other")})
    refused = other.podrun(*JOB, workdir)
    assert refused.returncode == 2
    assert "is in use by run" in refused.stderr + refused.stdout
    assert run.end() == 0
    assert sandbox.losses_of_spool() == undisturbed

"""A run whose results are in a bucket is that of a folder, bit for bit, and goes on in either."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from podrun.runtime.storage.bucket_client import Bucket

from ..buckets import BUCKET, bucket_server
from ..conftest import make_sandbox
from ..tiers import mostly_long
from .bucket_chaos import JOB, BucketCase, Bucketed, environment
from .conftest import Run, end_processes, kill


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses by step of the job in a folder."""
    sandbox = make_sandbox(tmp_path_factory.mktemp("undisturbed"))
    done = sandbox.podrun(*JOB)
    assert done.returncode == 0, done.stderr
    return sandbox.losses("runs/small")


@pytest.fixture
def bucketed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Bucketed, str]]:
    """A sandbox, and the URL of a workdir."""
    make_sandbox(tmp_path)
    with bucket_server(request.param, tmp_path / "server.log") as server:
        sandbox = Bucketed(tmp_path, server)
        yield sandbox, f"--workdir={request.param}://{BUCKET}/runs/small"
        end_processes(sandbox)


@pytest.mark.parametrize(
    "bucketed", mostly_long(("s3", "gs"), lambda *_: False, lambda _, scheme: scheme == "s3"), indirect=True
)
def test_a_run_goes_on_in_storages_of_other_kinds(
    bucketed: tuple[Bucketed, str], undisturbed: dict[int, float]
) -> None:
    """It is killed in a folder, goes on in a bucket, is killed there, and ends in a folder to which that was pulled."""
    sandbox, workdir = bucketed
    url = workdir.partition("=")[2]
    _kill_after_checkpoint(sandbox, 4, "--workdir=first")
    with environment(sandbox.server):
        bucket = Bucket(url)
        for path in sorted(path for path in (sandbox.path / "first").rglob("*") if path.is_file()):
            if not path.name.startswith(".podrun"):
                bucket.put_file(path.relative_to(sandbox.path / "first").as_posix(), path)
    _kill_after_checkpoint(sandbox, 8, workdir)
    shutil.rmtree(sandbox.path / "cache")
    pulled = sandbox.podrun("pull", url, "--to", "last")
    assert pulled.returncode == 0, pulled.stderr
    done = sandbox.podrun(*JOB, "--workdir=last")
    assert done.returncode == 0, done.stderr
    assert "resumed" in done.stdout + done.stderr
    assert sandbox.losses("last") == undisturbed


def _kill_after_checkpoint(sandbox: Bucketed, step: int, workdir: str) -> None:
    run = Run(sandbox, *JOB, "--inject", "slow:seconds=0.3", workdir)
    run.wait_for(lambda e: e["event"] == "checkpoint" and e["step"] >= step)
    kill(run.process.pid)
    end_processes(sandbox)


@pytest.mark.long
@pytest.mark.parametrize("bucketed", ["gs"], indirect=True)
def test_two_runs_do_not_train_in_one_workdir(bucketed: tuple[Bucketed, str], undisturbed: dict[int, float]) -> None:
    """They run at the same time, as far as podrun can tell on different machines: their spools are not the same."""
    sandbox, workdir = bucketed
    run = Run(sandbox, *JOB, "--inject", "slow:seconds=0.8", workdir)
    run.wait_for_step(1)
    other = Bucketed(sandbox.path, {**sandbox.server, "XDG_CACHE_HOME": str(sandbox.path / "other")})
    refused = other.podrun(*JOB, workdir)
    assert refused.returncode == 2
    assert "is in use by run" in refused.stderr + refused.stdout
    assert run.end() == 0
    assert sandbox.losses_of_spool() == undisturbed


@pytest.mark.long
@pytest.mark.parametrize("bucketed", ["s3"], indirect=True)
def test_frozen_parameters(bucketed: tuple[Bucketed, str]) -> None:
    """They are divided over the hosts, and gathered and written once, also by a run that goes on."""
    sandbox, workdir = bucketed
    job = ("--simulate", "--slice", "cpu-2x2", "small.yaml", "trainable=head.*", "model={layers: 2, width: 256}")
    job += ("parallel={name: jit, mesh: {fsdp: 4}}", "schedule.name=constant", "checkpoint={every: 2, keep: 9}")
    for options in (("--workdir=here", "steps=8"), (workdir, "steps=4"), (workdir, "steps=8")):
        done = sandbox.podrun(*job, *options)
        assert done.returncode == 0, done.stderr
    pulled = sandbox.podrun("pull", workdir.partition("=")[2], "--to", "pulled")
    assert pulled.returncode == 0, pulled.stderr
    assert sandbox.losses("pulled") == sandbox.losses("here")
    for folder in (next(sandbox.path.glob("**/buckets/*/checkpoints")), sandbox.path / "pulled" / "checkpoints"):
        assert sorted(path.name for path in folder.iterdir()) == ["2", "4", "6", "8"]
        files = [path for path in folder.glob("*/frozen/**/d/*") if path.stat().st_size > 256 * 256 * 4]
        assert len(files) == 4 and len({path.stat().st_ino for path in files}) == 1


@pytest.mark.long
def test_a_server_that_fails_now_and_then(tmp_path: Path, undisturbed: dict[int, float]) -> None:
    """benchmarks/chaos_bucket.py has more of them."""
    result = BucketCase(tmp_path, seed=3).execute(undisturbed)
    assert result.wrong == [], result

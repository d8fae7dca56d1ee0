"""`podrun evaluate` on a pod gives the metrics that the run has written, and ends as a run does."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from podrun.runtime.contract import CHECKPOINT_MANIFEST

from ..buckets import BUCKET, bucket_server
from ..conftest import Sandbox, in_process_of, make_sandbox
from ..runtime.models.published import arrays_of, config_of, write_folder, write_tokenizer
from ..tiers import nightly
from .bucket_chaos import Bucketed
from .conftest import end_processes, processes_of

POD = ("--slice", "cpu-2x2", "--simulate")
ONE_HOST = ("--slice", "cpu-1x4", "--simulate")
DECODER = "model={name: decoder, layers: 1, heads: 2, width: 32, context: 32}"
LORA = "model={name: decoder, init_from: llama, context: 16, lora: {rank: 4, alpha: 8}}"
KEYS = ("eval={every: 3, batches: 2}", "checkpoint={every: 3, keep: 2}")
CASES = {
    "pmap": ((DECODER, "ema=0.5", "parallel=pmap"), ()),
    "fsdp": ((DECODER, "ema=0.5", "parallel={name: jit, mesh: {fsdp: 4}}"), ("parallel.mesh.fsdp=2",)),
    "model axis": ((DECODER, "parallel={name: explicit, mesh: {fsdp: 2, model: 2}}"), ()),
    "lora": (
        (
            LORA,
            "ema=0.5",
            "data.tokenizer={name: bpe, file: llama/tokenizer.json}",
            "parallel={name: jit, mesh: {fsdp: 2}}",
        ),
        ("parallel=pmap",),
    ),
}
"""Keys of a training, and those that differ in the evaluation."""


def evaluated(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stdout + done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def as_written(record: dict[str, Any], metrics: dict[str, Any]) -> dict[str, Any]:
    """What the run has written about these metrics, up to rounding."""
    return {name: pytest.approx(record[name], rel=1e-6) for name in metrics}


def files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.long
@pytest.mark.parametrize("name", [*(name for name in CASES if name != "pmap"), *nightly("pmap")])
def test_as_the_run(sandbox: Sandbox, name: str) -> None:
    """On other hosts with the mesh of the run, and on another mesh; nothing in the workdir is changed, nothing is left."""
    keys, others = CASES[name]
    folder = write_folder(sandbox.path / "llama", config_of("llama"), arrays_of("llama"))
    letters = sorted({*(sandbox.path / "text.txt").read_text()})
    write_tokenizer(folder / "tokenizer.json", "".join([*letters, "X", "Y"]))  # as many as the model has
    trained = sandbox.podrun(*ONE_HOST, "-w", "trained", "train.yaml", *KEYS, *keys)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    written, before = sandbox.metrics("trained", "eval"), files_of(sandbox.path / "trained")
    assert written[3]["loss"] != written[6]["loss"]
    report = evaluated(sandbox.podrun("evaluate", "trained", *POD, "--step", "3", "--json"))
    assert (report["step"], report["examples"], report["is_of_run"]) == (3, 16, True)
    assert report["weights"] == ("ema" if "ema=0.5" in keys else "params")
    assert {"loss", "perplexity", "accuracy"} <= report["metrics"].keys()
    assert report["metrics"] == as_written(written[3], report["metrics"])
    done = sandbox.podrun("evaluate", "trained", *others, *ONE_HOST, "--metric", "loss")
    assert done.returncode == 0, done.stderr
    assert [line.split() for line in done.stdout.splitlines() if line.startswith("  l")][-1] == [
        "loss",
        f"{written[6]['loss']:.6g}",
    ]
    assert "podrun: done" in done.stdout and "accuracy" not in done.stdout
    assert files_of(sandbox.path / "trained") == before
    assert not processes_of(sandbox)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    """A run whose state is divided, and whose data can be made to kill a process of an evaluation."""
    sandbox = make_sandbox(tmp_path_factory.mktemp("small"))
    (sandbox.path / "traps.py").write_text(TRAPS)
    divided = ("model.width=160", "ema=0.5", "parallel={name: jit, mesh: {fsdp: 2}}")
    keys = ("data={name: 'traps:dataset'}", "eval={every: 3, batches: all}", "checkpoint={every: 3}", *divided)
    trained = sandbox.podrun(*ONE_HOST, "-w", "small", "small.yaml", *keys)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    return sandbox


TRAPS = """\
import os, pathlib, signal
from dataclasses import replace

from podrun.runtime.config.data import SineData
from podrun.runtime.data import load_dataset


class Trap:
    def __init__(self, inner):
        self._inner, self.size = inner, inner.size
        self._batches = -1  # the first is what podrun looks at beforehand

    def gather(self, indices, epochs):
        self._batches += 1
        if self._batches == 1 and pathlib.Path("armed").exists() and os.environ["PODRUN_PROCESS_ID"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return self._inner.gather(indices, epochs)


def dataset(options, config):
    good = load_dataset(config.model_copy(update={"data": SineData(samples=400)}))
    return replace(good, validation=Trap(good.validation))
"""


def test_a_killed_host(small: Sandbox) -> None:
    """The first cause is named as in a run, and nothing is left; afterwards the same command gives the metrics.

    Process 0 reads the checkpoint for all, as if the folder were on its disk: here the others cannot compare a manifest.
    """
    before = files_of(small.path / "small")
    (small.path / "armed").touch()
    done = small.podrun("evaluate", "small", *POD)
    (small.path / "armed").unlink()
    assert done.returncode == 128 + 9, done.stdout + done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("podrun: failed: host-1") and "ended by SIGKILL" in last and "[exit code 137]" in last
    assert "checkpoint" not in last and not processes_of(small)
    assert files_of(small.path / "small") == before
    manifest = small.path / "small/checkpoints/3" / CHECKPOINT_MANIFEST
    manifest.rename(small.path / "manifest")
    report = evaluated(small.podrun("evaluate", "small", *POD, "--step", "3", "--json"))
    (small.path / "manifest").rename(manifest)
    assert (report["step"], report["weights"], report["is_of_run"]) == (3, "ema", True)
    assert report["metrics"] == as_written(small.metrics("small", "eval")[3], report["metrics"])
    assert files_of(small.path / "small") == before and not processes_of(small)


def test_devices_that_do_not_divide_a_batch(small: Sandbox) -> None:
    """Batches are those of the run, padded, also with another strategy."""
    pod = ("--slice", "cpu-1x3", "--simulate", "parallel=pmap")
    report = evaluated(small.podrun("evaluate", "small", *pod, "--json"))
    assert report["metrics"] == as_written(small.metrics("small", "eval")[6], report["metrics"])


def test_mistakes(small: Sandbox, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    """Each ends with code 2: what, where, and what to do."""
    podrun = in_process_of(small, monkeypatch, capfd)
    published = write_folder(small.path / "llama", config_of("llama"), arrays_of("llama"))
    cases: list[tuple[tuple[str, ...], str]] = [
        (("--step", "4", *ONE_HOST), "has no checkpoint of step 4; there are 3, 6"),
        (("--slice", "cpu-2x2"), "--simulate"),
        (("parallel={name: jit, mesh: {fsdp: 3}}", *ONE_HOST), "fsdp"),
        (("optimizer=sgd", *ONE_HOST), "optimizer: only keys of parallel and launch can be given here"),
        (("parallel=jit",), "keys of a job are for a pod; name one, such as --slice cpu-2x2 --simulate"),
        (("--slurm=partition=a", "--slice", "cpu-2x2"), "--slurm submits a run and returns"),
        (("--metric", "auc", *ONE_HOST), "--metric auc: the evaluation has no such metric; it has loss, rmse"),
    ]
    for words, message in cases:
        done = podrun("evaluate", "small", *words)
        assert done.returncode == 2, (words, done.stdout, done.stderr)
        assert message in done.stderr and "Traceback" not in done.stderr, (words, done.stderr)
    done = podrun("evaluate", str(published), *ONE_HOST)
    assert done.returncode == 2
    assert "a published model is evaluated on this machine" in done.stderr
    files = (path for path in (small.path / "small/checkpoints/6/state").rglob("*") if path.is_file())
    data = max(files, key=lambda path: path.stat().st_size)
    content = data.read_bytes()
    data.write_bytes(content[:-1])
    done = podrun("evaluate", "small", *ONE_HOST)
    data.write_bytes(content)
    assert done.returncode == 2
    assert "checkpoint 6 cannot be read" in done.stderr and "lists which are whole" in done.stderr
    assert (small.path / "small/checkpoints/6").is_dir()  # an evaluation renames nothing


@pytest.mark.long
def test_members_for_each_device(sandbox: Sandbox) -> None:
    """An ensemble is evaluated on a pod with as many devices as it has members; another one is refused."""
    trained = sandbox.podrun(*POD, "-w", "four", "small.yaml", "parallel=ensemble", "eval={every: 6, batches: all}")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    record = sandbox.metrics("four", "eval")[6]
    report = evaluated(sandbox.podrun("evaluate", "four", *POD, "--json"))
    members = report["metrics"].pop("members")
    assert [each["loss"] for each in members] == pytest.approx([each["loss"] for each in record["members"]], rel=1e-6)
    assert report["metrics"] == as_written(record, report["metrics"])
    refused = sandbox.podrun("evaluate", "four", "--slice", "cpu-1x2", "--simulate")
    assert refused.returncode == 2
    assert "the checkpoint has 4 members, one for each device of the run, and this pod has 2 devices" in refused.stderr


@pytest.mark.long
def test_a_workdir_in_a_bucket(tmp_path: Path) -> None:
    """Process 0 downloads the checkpoint; the objects stay as they are, also while the run may go on."""
    make_sandbox(tmp_path)
    with bucket_server("gs", tmp_path / "server.log") as server:
        sandbox = Bucketed(tmp_path, server)
        url = f"gs://{BUCKET}/runs/small"
        keys = ("eval={every: 3, batches: all}", "checkpoint={every: 3}", "optimizer.learning_rate=1")
        trained = sandbox.podrun(*POD, "-w", url, "small.yaml", *keys)
        assert trained.returncode == 0, trained.stdout + trained.stderr
        best = sandbox.podrun("evaluate", url, *POD, "--step", "best", "--json")
        assert sandbox.podrun("pull", url, "--to", "pulled").returncode == 0
        written = sandbox.metrics("pulled", "eval")
        report = evaluated(best)
        assert report["step"] == min(written, key=lambda step: written[step]["loss"])
        assert report["about"].endswith(f"of {url}")
        assert report["metrics"] == as_written(written[report["step"]], report["metrics"])
        missing = sandbox.podrun("evaluate", url, *POD, "--step", "5")
        assert missing.returncode == 2 and f"{url}/checkpoints has no checkpoint of step 5" in missing.stderr
        end_processes(sandbox)

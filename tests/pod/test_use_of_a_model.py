"""`podrun evaluate` and `podrun generate` on the model of a pod, as the end of its run says, and interrupted."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..conftest import Sandbox, make_sandbox
from ..hosts import wait_until

FSDP = "parallel={name: jit, mesh: {fsdp: 4}}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sandbox, str]:
    """A pod of two hosts that has trained a model whose state is divided over all devices; what it printed."""
    sandbox = make_sandbox(tmp_path_factory.mktemp("use"))
    keys = ("ema=0.5", "eval={every: 3, batches: 1}", "checkpoint={every: 3}", "model.context=256", FSDP)
    done = sandbox.podrun("--slice", "cpu-2x2", "--simulate", "-w", "trained", "train.yaml", *keys)
    assert done.returncode == 0, done.stdout + done.stderr
    return sandbox, done.stdout


@pytest.mark.long
def test_the_lines_at_the_end(trained: tuple[Sandbox, str]) -> None:
    """Both work when they are pasted; the metrics are those of the run, at the end and before."""
    sandbox, said = trained
    lines = dict(line.split(maxsplit=1) for line in said.splitlines() if line.startswith(("evaluate", "generate")))
    evaluate = shlex.split(lines["evaluate"])[1:]
    written = sandbox.metrics("trained", "eval")
    assert written[3]["loss"] != written[6]["loss"]
    done = sandbox.podrun(*evaluate, "--json", "--step", "3")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["weights"], report["is_of_run"], report["examples"]) == ("ema", True, 8)
    assert report["metrics"] == {name: pytest.approx(written[3][name], rel=1e-6) for name in report["metrics"]}
    done = sandbox.podrun(*evaluate)
    loss = written[6]["loss"]
    assert done.stdout.splitlines()[2].split() == ["loss", f"{loss:.6g}"]
    (elsewhere := sandbox.path / "elsewhere").mkdir(exist_ok=True)
    folder = Sandbox(elsewhere)
    assert folder.podrun("evaluate", "../trained").returncode == 2
    moved = folder.podrun("evaluate", "../trained/checkpoints/6", "--data", "../text.txt", "--json")
    found = json.loads(moved.stdout)
    assert (found["step"], found["weights"], found["is_of_run"]) == (6, "ema", True)
    assert found["metrics"] == {name: pytest.approx(written[6][name], rel=1e-6) for name in found["metrics"]}

    generate = shlex.split(lines["generate"])[1:]
    done = sandbox.podrun(*generate)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("TEXT") and len(done.stdout) > len("TEXT\n")
    assert "podrun: 128 tokens after 4 of the prompt" in done.stderr
    whole = sandbox.podrun(*generate, "--temperature", "0")
    divided = sandbox.podrun(*generate, "--temperature", "0", "--slice", "cpu-1x4", "--simulate")
    assert divided.returncode == 0, divided.stderr
    assert divided.stdout == whole.stdout
    refused = sandbox.podrun(*generate, "--slice", "cpu-2x2", "--simulate")
    assert refused.returncode == 2 and "--slice cpu-2x2 has 2 hosts" in refused.stderr


@pytest.fixture
def writing(trained: tuple[Sandbox, str]) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """`podrun generate` that has written the first of many texts, and the process that writes them."""
    sandbox, _ = trained
    (sandbox.path / "prompts.txt").write_text("".join(f"{n} green bottles\n" for n in range(5000)))
    command = [*sandbox.command, "generate", "trained", "--batch", "prompts.txt", "-n", "200"]
    with subprocess.Popen(
        command, cwd=sandbox.path, env=sandbox.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        assert first["prompt"] == "0 green bottles" and first["text"]
        (worker,) = children(process.pid)
        yield process, worker
        process.kill()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def has_ended(pid: int) -> bool:
    """A process that nobody has waited for is one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL, None])
def test_in_the_middle(writing: tuple[subprocess.Popen[str], int], number: signal.Signals | None) -> None:
    """However it ends, also when nobody reads its output, its process ends, and every line is whole."""
    process, worker = writing
    assert process.stdout is not None and process.stderr is not None
    if number is None:
        process.stdout.close()
    else:
        os.kill(process.pid, number)
        written = process.stdout.read()
        assert all(json.loads(line)["text"] for line in written.splitlines())
    code = process.wait(60)
    assert code == {signal.SIGINT: 130, signal.SIGKILL: -9, None: 141}[number]
    assert "Traceback" not in process.stderr.read()
    wait_until(lambda: has_ended(worker), "the process that writes the texts goes on")

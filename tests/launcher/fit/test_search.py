"""A search and its outcome. In place of the compiler a small program answers: memory by fsdp and parts of the batch."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

import pytest

from podrun.launcher.commands.fit import FitRequest, fit
from podrun.launcher.fit.layouts import Settings
from podrun.launcher.fit.outcome import Outcome
from podrun.launcher.fit.search import Search, search
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.pod.target import target_of
from podrun.launcher.request.query_process import QueryError
from podrun.launcher.request.train_file import read_config
from podrun.runtime.contract import UserError
from podrun.runtime.layout_facts import Held, Survey

GIB = 2**30
USABLE = 16 * GIB
TRAIN = "{task: language_model, steps: 3, batch_size: 64"
PROGRAM = """
import json, os, pathlib, sys, time
if sys.argv[1] == "-c":  # podrun asks whether this Python has its runtime
    sys.exit()
folder = pathlib.Path(__file__).parent
question = json.loads(sys.stdin.readline())
given = json.loads((folder / "given.json").read_text())
if not question["compile"]:
    held = [given["held"][str(job["parallel"].get("mesh", {}).get("fsdp", 1))] for job in question["layouts"]]
    print(json.dumps({"answer": {**given["survey"], "held": held}, "files": [str(folder / "given.json")]}))
    sys.exit()
job = question["layouts"][0]
fsdp = job["parallel"].get("mesh", {}).get("fsdp", 1)
with (folder / "compiled").open("a") as file:
    flags = " flags" * ("latency_hiding" in os.environ.get("LIBTPU_INIT_ARGS", ""))
    kept = f" {job['model']['remat']}" * (job["model"]["remat"] != "none")
    file.write(f"{job['parallel']['name']} {fsdp} {job['accumulate']} {job['batch_size']}{kept}{flags}\\n")
if fsdp in given["slow"]:
    (folder / f"slow-{os.getpid()}").touch()
    time.sleep(600)
if fsdp in given["broken"]:
    print("XlaRuntimeError: INTERNAL: an error of the compiler")
    sys.exit(1)
per_example = given["per_example"] // {"none": 1, "dots": 2, "block": 4}[job["model"]["remat"]]
repeated = {"none": 1, "dots": 1.1, "block": 1.3}[job["model"]["remat"]]
needed = given["held"][str(fsdp)]["state"] + per_example * job["batch_size"] // 4 // job["accumulate"]
fits = needed <= given["survey"]["usable"]
compute = repeated * job["batch_size"] / 1000
bounds = {"compute": compute, "HBM": 0.001 * job["accumulate"], "ICI": 0.0001 * fsdp} if fits else {}
answer = {"fits": fits, "needed": needed, "usable": given["survey"]["usable"], "bounds": bounds,
          "sent": 1000 * fsdp, "unknown_loops": int(fsdp == 4), "compile_seconds": 1.0, "memory_here": 1000,
          "attention": given["attention"].get(str(fsdp), "attention: xla")}
print(json.dumps({"answer": answer, "files": [str(folder / "given.json")]}))
"""


class Compiler:
    """The program that answers, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._old = 0
        (folder / "program").write_text(f"#!{sys.executable} -IS{PROGRAM}")  # without site: it is started often
        (folder / "program").chmod(0o700)
        (folder / "train.yaml").write_text(f"{TRAIN}, model: {{name: gpt2, remat: none}}}}")
        self.given({1: 20, 2: 12, 4: 7}, per_example=GIB // 8)

    def given(
        self,
        state: dict[int, float],
        per_example: int,
        broken: tuple[int, ...] = (),
        slow: tuple[int, ...] = (),
        attention: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """Set the answers. `state`: GiB by fsdp."""
        held = {fsdp: asdict(Held(int(size * GIB), int(size * GIB / 4))) for fsdp, size in state.items()}
        survey = asdict(Survey("TPU v5 lite", USABLE, {}, 1000, False, ()))
        answers = {
            "survey": survey,
            "held": held,
            "broken": broken,
            "slow": slow,
            "per_example": per_example,
            "attention": dict(attention),
        }
        path = self.folder / "given.json"
        path.write_text(json.dumps(answers))
        self._old += 100
        os.utime(path, (time.time() - 10_000 + self._old,) * 2)  # answers are not kept if a file has just changed

    def search(self, *overrides: str, batch: bool = False, settings: Sequence[Settings] = (Settings(),)) -> Outcome:
        train, slice = self.folder / "train.yaml", parse_slice("v5e-4")
        config = read_config(train, [*overrides, f"launch.python={self.folder / 'program'}"])
        known, target = Search(slice), target_of(slice)
        assert target
        outcome = Outcome(train, overrides, config, known, 1.0)
        search(known, config, target, batch, settings)
        return outcome

    @property
    def asked(self) -> list[str]:
        """Return what was compiled since this was read, and forget it."""
        path = self.folder / "compiled"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return sorted(lines)


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    return Compiler(tmp_path)


def layouts(outcome: Outcome) -> list[tuple[str, int, int]]:
    return [(one["strategy"], one["fsdp"], one["accumulate"]) for one in outcome.as_json()["layouts"]]


def test_the_fewest_parts_that_fit_and_the_fastest_first(compiler: Compiler) -> None:
    """Without fsdp the state is too large by arithmetic."""
    compiler.given({1: 20, 2: 12, 4: 7}, per_example=GIB)
    outcome = compiler.search()
    assert layouts(outcome) == [("jit", 4, 2), ("jit", 2, 4)]  # 7 + 16 / 2 and 12 + 16 / 4 GiB
    assert compiler.asked == [f"jit {fsdp} {parts} 64" for fsdp in (2, 4) for parts in (1, 2, 4)]
    text = outcome.text(1000)
    assert "10 layouts ruled out, because the state takes 20.0 GiB of a device, which has 16.0 GiB: pmap, " in text
    assert "3 layouts too large: jit fsdp=2 accumulate=2 (at least 4.0 GiB too much), jit fsdp=4 (at least 7.0" in text
    assert "4 layouts need no compiling" in text
    assert "\njit fsdp=4 accumulate=2: loops with an unknown number of iterations are counted once\n" in text
    assert "6 layouts compiled, 0 known from earlier, in 1 s" in text
    assert "a bound of a step's time" in text
    *_, command = text.splitlines()
    assert shlex.split(command)[:4] == ["podrun", "--slice", "v5litepod-4", str(compiler.folder / "train.yaml")]
    assert command.endswith(" parallel.name=jit parallel.mesh.fsdp=4 accumulate=2")


def test_the_kernel_of_attention_is_named(compiler: Compiler) -> None:
    """Once if all layouts have the same; otherwise with their names."""
    outcome = compiler.search("parallel=jit")
    assert outcome.text(120).count("attention: xla") == 1
    compiler.given({1: 1, 2: 1, 4: 1}, 1, attention={2: "attention: splash, which", 4: ""})
    outcome = compiler.search("parallel=jit")
    assert "\njit fsdp=2: attention: splash, which\n" in outcome.text(120)
    assert "\njit: attention: xla\n" in outcome.text(120)
    kernels = {one["fsdp"]: one["attention"] for one in outcome.as_json()["layouts"]}
    assert kernels == {1: "attention: xla", 2: "attention: splash, which", 4: ""}


def test_a_second_search_compiles_nothing_until_the_job_changes(compiler: Compiler) -> None:
    first = compiler.search()
    assert len(compiler.asked) == len(first.known.compiled) == 2
    second = compiler.search()
    assert (compiler.asked, second.known.compiled) == ([], [])
    assert second.as_json()["layouts"] == first.as_json()["layouts"]
    compiler.given({1: 20, 2: 12, 4: 7}, per_example=GIB // 8)
    assert len(compiler.search().known.compiled) == 2


@pytest.mark.parametrize(
    ("key", "compiled"),
    [
        ("log.every=7", 0),
        ("model.layers=5", 2),
        ("launch.env={XLA_FLAGS: x}", 2),
        ("launch.xla=latency_hiding", 2),
        ("launch.xla=[]", 0),
    ],
)
def test_what_a_layout_is_known_by(compiler: Compiler, key: str, compiled: int) -> None:
    compiler.search()
    assert len(compiler.search(key).known.compiled) == compiled


def test_without_podruns_folder_the_result_is_shown(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODRUN_HOME", str(compiler.folder / "train.yaml"))
    outcome = compiler.search()
    assert len(layouts(outcome)) == 2
    assert outcome.known.not_kept == f"{compiler.folder / 'train.yaml'}: Not a directory"


def test_the_largest_batch_that_fits(compiler: Compiler) -> None:
    """In order of the time for an example: with more of them the same bound is less for each."""
    outcome = compiler.search("parallel=jit", "batch_size=32", batch=True)
    # 4 and 9 GiB are left, for 32 and 72 examples of 1/8 GiB on each device
    assert [(one["fsdp"], one["batch_size"]) for one in outcome.as_json()["layouts"]] == [(4, 256), (2, 128)]
    assert outcome.command().endswith(" parallel=jit parallel.mesh.fsdp=4 batch_size=256")
    assert len(compiler.asked) <= 2 * 5


def test_remat_is_tried_where_memory_is_short(compiler: Compiler) -> None:
    """Not if the job chooses it, or if a layout fits without parts and leaves a tenth of the memory."""
    (compiler.folder / "train.yaml").write_text(f"{TRAIN}}}")
    easy = compiler.search()
    assert compiler.asked == ["jit 2 1 64", "jit 4 1 64"] and "REMAT" not in easy.text(1000)
    compiler.given({1: 20, 2: 12, 4: 7}, per_example=GIB)
    short = compiler.search()
    assert [(*row, one["remat"]) for row, one in zip(layouts(short), short.as_json()["layouts"], strict=True)] == [
        ("jit", 4, 2, "none"),
        ("jit", 2, 4, "none"),
        ("jit", 4, 1, "dots"),  # 7 + 16 / 2 GiB
        ("jit", 2, 1, "block"),  # 12 + 16 / 4 GiB; with dots 12 + 16 / 2
    ]
    assert "dots" in short.text(1000) and short.command().endswith(" parallel.mesh.fsdp=4 accumulate=2")
    assert len(compiler.asked) == 6 + 1 + 3
    compiler.search("model.remat=block")
    assert compiler.asked == ["jit 4 1 64 block"], "the job's own, and only that; the answer for fsdp 2 is known"


def test_values_of_other_keys(compiler: Compiler, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = compiler.search("parallel=jit", settings=[Settings("none", ("latency_hiding",)), Settings("block", ())])
    assert compiler.asked == ["jit 2 1 64 block", "jit 2 1 64 flags", "jit 4 1 64 block", "jit 4 1 64 flags"]
    assert "REMAT             XLA" in outcome.text(1000)
    assert outcome.command().endswith(" parallel=jit parallel.mesh.fsdp=2 'launch.xla=[latency_hiding]'")
    words = (f"launch.python={compiler.folder / 'program'}",)
    over = ("launch.xla=[],latency_hiding", "model.remat=none,dots,block")
    assert fit(FitRequest(compiler.folder / "train.yaml", words, "v5e-4", json=True, over=over)) == 0
    found = json.loads(capsys.readouterr().out)["layouts"]
    assert {(*one["xla"], one["remat"], one["fsdp"]) for one in found} == {
        (*flags, remat, fsdp)
        for flags in ((), ("latency_hiding",))
        for remat in ("none", "dots", "block")
        for fsdp in (2, 4)
    }


@pytest.mark.parametrize(
    ("over", "message"),
    [
        (
            ("steps=1,2",),
            "--over steps: podrun fit searches model.remat, launch.xla, parallel.mesh.model; `podrun compare` trains with",
        ),
        (("model.remat=none,block", "model.remat=dots"), "--over model.remat is there twice"),
        (("model.remat=none,all",), "'all'"),
        (("launch.xla=fast",), "there is no preset fast"),
        (("launch.xla=[],pipelined_collectives",), "pipelined_collectives is not a preset for v5litepod-4"),
        (("parallel.mesh.model=0,2",), "--over parallel.mesh.model: 0 is no number of devices"),
        (("model.remat",), "--over model.remat: write key.path=value,value"),
    ],
)
def test_wrong_values_of_other_keys(compiler: Compiler, over: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError) as raised:
        fit(FitRequest(compiler.folder / "train.yaml", (), "v5e-4", over=over))
    assert message in str(raised.value)
    assert compiler.asked == []


def test_an_error_of_the_compiler_is_of_its_layout_alone(compiler: Compiler) -> None:
    compiler.given({1: 20, 2: 12, 4: 7}, per_example=GIB // 8, broken=(4,))
    outcome = compiler.search("batch_size=4")
    assert layouts(outcome) == [("jit", 2, 1)]
    assert "1 layout not compiled: jit fsdp=4: XlaRuntimeError: INTERNAL: an error" in outcome.text(1000)
    assert compiler.asked == ["jit 2 1 4", "jit 4 1 4"]
    compiler.search("batch_size=4")
    assert compiler.asked == ["jit 4 1 4"], "a failure is not kept"


def test_nothing_fits(compiler: Compiler) -> None:
    compiler.given({1: 20, 2: 12, 4: 7}, per_example=100 * GIB)
    outcome = compiler.search()
    assert (layouts(outcome), outcome.command()) == ([], "")
    nearest, helps = outcome.nothing().splitlines()
    assert nearest == (
        "no layout fits v5litepod-4: the nearest is jit fsdp=4 accumulate=16 (at least 91.0 GiB too much)"
    )
    assert helps == (
        "what helps: precision=bfloat16, a larger slice (--slice 'v5litepod-*' finds the smallest that fits), "
        "or a smaller model"
    )
    compiler.given({1: 20, 2: 12, 4: 7}, per_example=0)
    assert (
        "parallel.name=jit, which can divide the state (shard_map cannot)"
        in compiler.search("parallel=shard_map").nothing()
    )


def test_a_job_that_is_wrong(compiler: Compiler) -> None:
    """Its mistake is told once, not for each layout."""
    (compiler.folder / "program").write_text("#!/bin/sh\necho 'data.path: is empty'; exit 2\n")
    with pytest.raises(UserError, match=r"^data.path: is empty$"):
        compiler.search()
    (compiler.folder / "program").write_text("#!/bin/sh\necho 'ValueError: mine'; exit 1\n")
    with pytest.raises(QueryError, match=r"^ValueError: mine$"):
        compiler.search()


def read_all(terminal: int, pieces: list[bytes]) -> None:
    """Read what is written to a terminal, until the last process has closed it."""
    with contextlib.suppress(OSError):
        while piece := os.read(terminal, 1 << 16):
            pieces.append(piece)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_shows_what_is_known_so_far(number: signal.Signals, compiler: Compiler) -> None:
    """SIGTERM does so as well. No process is left."""
    compiler.given({1: 20, 2: 12, 4: 7}, per_example=GIB // 8, slow=(2,))
    words = (
        "fit",
        str(compiler.folder / "train.yaml"),
        "--slice",
        "v5e-4",
        f"launch.python={compiler.folder / 'program'}",
    )
    terminal, its_end = os.openpty()
    podrun = subprocess.Popen(
        [sys.executable, "-m", "podrun.launcher.cli", *words],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=its_end,
        text=True,
    )
    os.close(its_end)
    shown: list[bytes] = []
    reader = threading.Thread(target=read_all, args=(terminal, shown))
    reader.start()
    deadline = time.monotonic() + 60
    answers = compiler.folder / "home" / "answers"  # the survey, and that with fsdp 4
    while not ([*compiler.folder.glob("slow-*")] and len([*answers.glob("[0-9a-f]*")]) == 2):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    slow = [int(path.name.rpartition("-")[2]) for path in compiler.folder.glob("slow-*")]
    podrun.send_signal(number)
    out, _ = podrun.communicate(timeout=60)
    reader.join(timeout=60)
    os.close(terminal)
    assert podrun.returncode == 130
    line = b"v5litepod-4: layouts known: 1, to compile: at most 9; the best so far: jit fsdp=4"
    assert line in b"".join(shown)
    assert "jit          1     4           1     64" in out
    assert "stopped: 9 layouts were not looked at" in out
    assert out.splitlines()[-1].endswith(" parallel.name=jit parallel.mesh.fsdp=4")
    assert not any(Path(f"/proc/{pid}").exists() for pid in slow)

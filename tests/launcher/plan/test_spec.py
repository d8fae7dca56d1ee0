"""The spec of a run, as it is written down: enough to start it again in another process."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from podrun.launcher.plan.plan import make_plan
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import Code, RunSpec
from podrun.launcher.pod.pod import Host, Pod, Ssh
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.rundir.runs import start_event
from podrun.runtime.config import Config, Launch

POD = Pod(
    parse_slice("gpu-2x3"),
    (Host("a", "grün.example"), Host("b", "::1", internal="fd00::2")),
    "ssh",
    "cuda",
    ssh=Ssh("me", 2222, Path("~/key"), "you@jump:22", Path("/known"), "accept-new", Path("/config")),
    home="/data/home",
    python="/opt/py 3/bin/python",
    workdir="~/shared",
    env={"A": "it's", "EMPTY": ""},
    secrets=("TOKEN",),
    secrets_file=Path("/private/secrets"),
    setup=("module load 'x'", "true"),
    requirements=Path("requirements.txt"),
    ports=(9000, 9010),
)
CONFIG = Config.model_validate(
    {
        "steps": 7,
        "batch_size": 24,
        "model": {"name": "mine.net:Net", "options": {"deep": [1, 2.5, None, {"x": True}]}},
        "data": {"name": "tokens", "path": "train.bin", "tokenizer_file": "/t.json"},
        "optimizer": {"learning_rate": 1.2345678901234567e-5, "clip_norm": None},
        "launch": {"env": {"B": "two\nlines"}, "process_per": "device", "workdir": "w", "max_restarts": 3},
    }
)
PROGRAM = Program(("python", "train it.py", "", "ä\n"), Launch(max_restarts=2, python="py"))


@pytest.mark.parametrize("job", [CONFIG, PROGRAM], ids=["config", "program"])
@pytest.mark.parametrize("code", [None, Code("~/p", "sub/dir", "~/r", "~/e/bin/python")], ids=["here", "there"])
@pytest.mark.parametrize("detached", [False, True])
def test_what_is_read_is_what_was_written(job: Config | Program, code: Code | None, detached: bool) -> None:
    """Every field, with its type: the plans that follow are the same."""
    spec = RunSpec(
        "20260101-000000-abcd", POD, job, Path("/work dir"), Path("/jobs"), code, detached, executables="~/e"
    )
    assert json.loads(spec.to_json())["programs"] == "~/e"  # the name that older versions read
    back = RunSpec.from_json(spec.to_json())
    assert back == spec
    assert type(back.job) is type(job)
    secrets = {"TOKEN": "hush-7e1d"}
    assert make_plan(back, 3, secrets) == make_plan(spec, 3, secrets)
    assert back.to_json() == spec.to_json()


def test_the_plan_is_that_of_the_spec() -> None:
    """Attempt, secrets, code and lease arrive in it."""
    code = Code("~/p", "sub", "~/r", "py")
    spec = RunSpec("r-1", POD, PROGRAM, Path("/w"), Path("/c"), code, detached=True)
    plan = make_plan(spec, 4, {"TOKEN": "hush"})
    assert (plan.run, plan.attempt) == (spec, 4)
    assert plan.lease == 24 * 3600
    assert plan.hosts[1].spec["processes"][0]["env"]["TOKEN"] == "hush"


@pytest.mark.parametrize("job", [CONFIG, PROGRAM], ids=["config", "program"])
def test_values_of_secrets_are_not_written(
    job: Config | Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither those of the environment nor those of the file."""
    file = tmp_path / "secrets"
    file.write_text("OTHER=hush-2\n")
    file.chmod(0o600)
    monkeypatch.setenv("TOKEN", "hush-1")
    pod = replace(POD, secrets=("TOKEN", "OTHER"), secrets_file=file)
    text = RunSpec("r-1", pod, job, Path("/w"), Path("/c")).to_json().decode()
    assert "hush" not in text
    assert "TOKEN" in text and "OTHER" in text


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("pod"),
        lambda d: d.update(detached="what"),
        lambda d: d["pod"]["ssh"].update(port="none"),
        lambda d: d["job"].pop("launch"),
        lambda d: d.update(job=5),
        lambda d: d.update(job={"argv": 1}),
        lambda d: d["pod"].update(ports=[1, 2, 3]),
    ],
)
def test_another_version_is_refused(change: Any) -> None:
    """A missing field, or one of another type, is a ValueError and not another run."""
    spec = json.loads(RunSpec("r-1", POD, PROGRAM, Path("/w"), Path("/c")).to_json())
    change(spec)
    with pytest.raises(ValueError, match=r"^it is no specification of a run: "):
        RunSpec.from_json(json.dumps(spec).encode())


def test_the_job_of_a_queue_has_its_first_name_on_record() -> None:
    """Records outlive a version of podrun: both write and read `slurm_job`."""
    pod = replace(POD, transport="slurm", queue_job="4711")
    text = RunSpec("r-1", pod, PROGRAM, Path("/w"), Path("/c")).to_json()
    assert json.loads(text)["pod"]["slurm_job"] == "4711"
    assert RunSpec.from_json(text).pod == pod


def test_a_transport_of_another_version_is_refused() -> None:
    spec = json.loads(RunSpec("r-1", POD, PROGRAM, Path("/w"), Path("/c")).to_json())
    spec["pod"]["transport"] = "pigeon"
    with pytest.raises(
        ValueError, match=r"^pod\.transport is 'pigeon', expected one of local, this_machine, ssh, slurm$"
    ):
        RunSpec.from_json(json.dumps(spec).encode())


@pytest.mark.parametrize("text", [b"", b"{", b"null", b"[]", b"\xff", b"[" * 100_000], ids=range(6))
def test_a_damaged_file_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        RunSpec.from_json(text)


@pytest.mark.parametrize(
    ("job", "program", "hosts"),
    [
        (PROGRAM, "python train it.py  ä\n", {"a": [0], "b": [1]}),
        (CONFIG, None, {"a": [0, 1, 2], "b": [3, 4, 5]}),
    ],
    ids=["program", "config"],
)
def test_the_first_event(job: Config | Program, program: str | None, hosts: dict[str, list[int]]) -> None:
    """It has what a view needs to know of the plan; no secret, and all of it JSON."""
    plan = make_plan(RunSpec("r-1", POD, job, Path("/w"), Path("/c")), 2, {"TOKEN": "hush"})
    event = start_event(plan, Path("/logs"), 12.5)
    assert json.loads(json.dumps(event)) == {
        "event": "start",
        "python": None if program is None else "py",
        "time": 12.5,
        "run_id": "r-1",
        "attempt": 2,
        "slice": "gpu-2x3",
        "devices": 3,
        "transport": "ssh",
        "hosts": hosts,
        "program": program,
        "workdir": "/w",
        "logs": "/logs",
    }

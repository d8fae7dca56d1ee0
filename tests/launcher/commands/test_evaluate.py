"""The spec of an evaluation on a pod: where its hosts read the data that the job names by relative paths."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from podrun.launcher.commands.evaluate import EvaluateRequest, _spec
from podrun.launcher.inventory.pod_request import PodRequest
from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan.spec import RunSpec
from podrun.launcher.pod.slices import parse_slice
from podrun.launcher.rundir.runs import RunDirectory
from podrun.runtime.config import Config, saved_config

from .conftest import Podrun

RUN = "20260101-000000-abcd"
TOKENIZER = "words/tokenizer.json"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with files that jobs read, and a pod file of two hosts."""
    for name in ("text.txt", TOKENIZER):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("some text")
    hosts = {"slice": "cpu-2x1", "hosts": ["h0", "h1"], "workdir": str(tmp_path)}
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(hosts))
    monkeypatch.setenv("PODRUN_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_run(project: Path, **keys: object) -> None:
    """Write the record and the workdir of a run."""
    data = {"name": "text", "path": "text.txt", "tokenizer": {"name": "bpe", "file": TOKENIZER}, **keys}
    job = Config.model_validate({"steps": 3, "batch_size": 8, "data": data})
    (project / "work").mkdir()
    (project / "work/config.yaml").write_text(yaml.safe_dump(saved_config(job)))
    RunDirectory.create(RunSpec(RUN, simulated_pod(parse_slice("cpu-2x1")), job, project / "work", project))


def evaluation(target: str, where: PodRequest) -> tuple[RunSpec, tuple[str, str]]:
    """Return the spec of an evaluation, and its paths of the data and the tokenizer."""
    spec, _ = _spec(EvaluateRequest(target, None, None, None, (), False, where))
    assert isinstance(spec.job, Config)
    section = spec.job.model_dump(mode="json")["data"]
    return spec, (section["path"], section["tokenizer"]["file"])


@pytest.mark.parametrize("target", [RUN, "work"])
def test_relative_paths(project: Path, target: str) -> None:
    """Other machines have the data in the project, where their processes start, as in training; this one has it here."""
    write_run(project)
    assert evaluation(target, PodRequest(pod=Path("pod.yaml")))[1] == ("text.txt", TOKENIZER)
    simulated = PodRequest("cpu-2x1", inventories={"simulate": True})
    assert evaluation(target, simulated)[1] == (str(project / "text.txt"), str(project / TOKENIZER))


def test_data_that_is_brought(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is copied from the folder in which the run was started, whatever the current folder is."""
    write_run(project, bring=True)
    (project / "elsewhere").mkdir()
    monkeypatch.chdir(project / "elsewhere")
    spec, paths = evaluation(RUN, PodRequest(pod=project / "pod.yaml"))
    assert spec.data is not None
    assert [key.here for key in spec.data.keys] == [str(project / "text.txt"), str(project / TOKENIZER)]
    assert all(path.startswith(spec.data.folder(spec.pod.home)) for path in paths)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--limit", "3"], "--limit is for --lm-eval"),
        (["--lm-eval", "a", "--data", "b"], "--data and --lm-eval: tasks have their own data"),
        (["--lm-eval", "a", "--slice", "cpu-1x2", "--simulate"], "--lm-eval evaluates on this machine; leave out"),
        (["--lm-eval", "a,,b"], "a name is empty; give names with commas between them"),
    ],
)
def test_tasks_that_cannot_be_evaluated(podrun: Podrun, words: list[str], said: str) -> None:
    done = podrun("evaluate", "runs/none", *words)
    assert (done.code, done.out) == (2, "") and said in " ".join(done.err.split())

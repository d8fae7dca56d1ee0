"""`podrun new`: a train.yaml to start from."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

from podrun.launcher.request.train_file import read_config
from podrun.launcher.templates import templates
from podrun.runtime.config import Config, check_files
from podrun.runtime.config.task import TASKS

from ...conftest import Sandbox
from ...runtime.data.pairs_folder import llama_folder, pair, pairs_folder
from .conftest import Podrun

NAMES = templates.template_names()


def write_data(folder: Path, name: str) -> None:
    """Write what a template says to, beside it."""
    if name == "own_data":
        random = np.random.default_rng(0)
        x = random.normal(size=(200, 4)).astype(np.float32)
        np.savez(folder / "data.npz", x=x, y=(x[:, 0] > 0).astype(np.int32))
    if name == "dpo":
        (folder / "models").mkdir()
        pairs_folder(folder / "pairs", llama_folder(folder / "models/qwen"), [pair(number) for number in range(80)])


def test_every_template_is_known() -> None:
    """Templates with the name of a task train it."""
    folder = Path(templates.__file__).parent
    assert {path.stem for path in folder.glob("*.yaml")} == set(NAMES)
    assert set(TASKS) < set(NAMES)
    for task in TASKS:
        assert read_config(folder / f"{task}.yaml").task == task


@pytest.mark.parametrize("name", ["language_model", "classification", "own_data"])
def test_what_is_in_comments_is_valid_too(name: str) -> None:
    """Keys that stand there to be tried."""
    text = (Path(templates.__file__).parent / f"{name}.yaml").read_text()
    tried, keys = re.subn(r"^( *)# +((?:data|precision|bring): )", r"\1\2", text, flags=re.MULTILINE)
    tried = re.sub(r"^(data: .*\n)data: .*\n", r"\1", tried, flags=re.MULTILINE)
    assert keys
    Config.model_validate(yaml.safe_load(tried))


@pytest.mark.parametrize("name", NAMES)
def test_a_new_job_is_valid(podrun: Podrun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """As it is written, with the data that it names; its comments name the file."""
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path, name)
    done = podrun("new", name, "-o", "my job.yaml")
    assert (done.code, done.err) == (0, "")
    assert "  podrun --local 'my job.yaml'\n  podrun --slice cpu-1x2 --simulate 'my job.yaml'\n" in done.out
    check_files(read_config(Path("my job.yaml")))
    text = Path("my job.yaml").read_text()
    assert "#   podrun inspect 'my job.yaml'" in text and "FILE" not in text


def test_without_a_task_all_are_listed(podrun: Podrun) -> None:
    done = podrun("new")
    assert [line.split()[0] for line in done.out.splitlines()[: len(NAMES)]] == list(NAMES)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ("languag_model",),
            "no job 'languag_model' to start from: choose one of language_model, .*mean language_model",
        ),
        (("regression", "-o", "there.yaml"), "there.yaml exists already; give another name with -o"),
        (("regression", "-o", "link.yaml"), "link.yaml exists already"),
        (("regression", "-o", "."), "is a folder; give the name of the file"),
        (("regression", "-o", "no/a.yaml"), "there is no folder no; make it"),
        (("regression", "-o", "a" * 300), "File name too long; give another name"),
    ],
)
def test_mistakes(
    podrun: Podrun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], message: str
) -> None:
    """Nothing is written, and nothing is written over."""
    monkeypatch.chdir(tmp_path)
    Path("there.yaml").write_text("mine")
    Path("link.yaml").symlink_to("nowhere")
    before = sorted(tmp_path.iterdir())
    done = podrun("new", *args)
    assert done.code == 2
    assert re.search(message, done.err), done.err
    assert sorted(tmp_path.iterdir()) == before
    assert Path("there.yaml").read_text() == "mine"


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_new_job_trains(sandbox: Sandbox, name: str) -> None:
    """As its header says, with fewer steps, then with another learning rate, and with no other key."""
    write_data(sandbox.path, name)
    assert sandbox.podrun("new", name, "-o", "new.yaml").returncode == 0
    context = ("model.context=20",) if name == "dpo" else ()  # that of a tiny model
    rate = "optimizer.memory=5" if name == "logistic_regression" else "optimizer.learning_rate=3e-4"
    for workdir, keys in (("a", ("steps=10",)), ("b", ("steps=10", rate))):
        done = sandbox.podrun("--slice", "cpu-1x2", "--simulate", "-w", workdir, "new.yaml", *keys, *context)
        assert done.returncode == 0, done.stdout + done.stderr
        assert max(sandbox.losses(workdir)) == 10

"""README and examples, taken at their word: their jobs are valid on the slices that they name."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from podrun.launcher.agent.host.google import ENV_SERVER
from podrun.launcher.pod.home import install_command
from podrun.runtime.config.files import IDX_FILES

from ..conftest import Podrun
from ..gcloud import make_gcloud, node
from ..metadata_server import serving, tpu_worker

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
IMAGES = "fashion-mnist"


def block(name: str) -> str:
    """The file of that name in README."""
    found = re.search(rf"```yaml\n# {re.escape(name)}\n(.*?)```", README, re.DOTALL)
    assert found, name
    return found[1]


def commands(text: str) -> list[str]:
    """Commands as typed, for the same job: those that come back at once, and the like."""
    lines = (line.strip().split("   #")[0].strip() for line in text.splitlines())
    runs = (line for line in lines if re.match(r"podrun (?!init|check|inspect|fit|compare).*\.yaml", line))
    return [re.sub(r" --(detach|dry-run)", "", line) for line in runs]


EXAMPLES = {path.name: path for path in sorted((ROOT / "examples").glob("*.yaml"))}
ALL = sorted(
    {*commands(README), *(c for path in EXAMPLES.values() for c in commands(path.read_text().replace("#", " ")))}
)


@pytest.fixture
def podrun(in_process: Podrun, monkeypatch: pytest.MonkeyPatch) -> Podrun:
    def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
        monkeypatch.setenv("WANDB_API_KEY", "hush")
        return in_process(*words)

    return run


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """README's files, the data that README and the examples say how to get; gcloud and a metadata server know its TPU VM."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "bin").mkdir()
    make_gcloud(folder / "bin", node())
    (folder / "train.yaml").write_text(block("train.yaml"))
    (folder / "pod.yaml").write_text(block("pod.yaml"))
    (folder / "examples").symlink_to(ROOT / "examples")
    for name in (IMAGES, "data", "tinyshakespeare"):
        (folder / name).mkdir()
    for name in ("tinyshakespeare/input.txt", "train.bin", "val.bin", *(f"{IMAGES}/{name}.gz" for name in IDX_FILES)):
        (folder / name).write_text("some data\n" * 2000)
    with serving(tpu_worker()) as (address, _), pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENV_SERVER, address)
        yield folder


def test_readme_has_commands() -> None:
    """The options below are all that exist."""
    assert "podrun --slice v3-32 --pod pod.yaml train.yaml" in ALL
    assert sum("--simulate train.yaml" in command for command in ALL) >= 4
    assert all(any(f"examples/{name}" in command for command in ALL) for name in EXAMPLES)


@pytest.mark.parametrize("command", ALL)
def test_a_command_would_start(podrun: Podrun, folder: Path, command: str) -> None:
    """Nothing that can be known beforehand keeps it from training."""
    done = podrun(folder, "run", "--dry-run", *shlex.split(command)[1:])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["fashion_mnist", "ensemble"])
def test_data_that_is_missing_says_where_it_is(podrun: Podrun, tmp_path: Path, name: str) -> None:
    """The folder, and the command that fetches its files: in the message, the example and README."""
    job = EXAMPLES[f"{name}.yaml"]
    done = podrun(tmp_path, "--slice", "cpu-1x2", "--simulate", "--dry-run", str(job))
    source = "podrun data fashion-mnist"
    assert done.returncode == 2 and IMAGES in done.stderr
    for text in (done.stderr, job.read_text(), README):
        assert source in text


def test_every_file_of_the_jobs_has_a_source() -> None:
    """A new user has none of them."""
    for text in (README, EXAMPLES["shakespeare_char.yaml"].read_text()):
        assert "podrun data tinyshakespeare" in text


def test_no_remedy_installs_podrun_from_an_index() -> None:
    """There, its name may be anybody's."""
    patterns = ("api/*.py", "launcher/**/*.py", "runtime/**/*.py", "*.md", "docs/*.md")
    files = [path for pattern in patterns for path in ROOT.glob(pattern)]
    assert len(files) > 100
    wrong = re.compile(r"pip install ['\"]?podrun")
    assert [file.name for file in files if wrong.search(file.read_text())] == []
    assert re.fullmatch(r"python3 -m pip install (/.*|\. \(in podrun's folder\))", install_command("python3"))

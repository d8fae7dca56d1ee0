"""`podrun pull`: which run, what of it, and where to."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from podrun.launcher.cli.root import main

from .conftest import Make, Podrun


@pytest.fixture
def workdir(tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make two runs; the workdir of both is a folder with metrics."""
    monkeypatch.chdir(tmp_path)
    make("20260131-100000-aaaa", workdir=tmp_path / "work")
    made = make("20260131-110000-2031", workdir=tmp_path / "work")
    made.log("host-0", b"of the newest\n")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/metrics.jsonl").write_text('{"step": 1}\n')
    return tmp_path / "work"


def test_it_is_brought_and_said_where_to(workdir: Path, podrun: Podrun) -> None:
    done = podrun("pull")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == f"podrun: pulling {workdir} to pulled/work"
    assert done.out.splitlines()[-1] == "podrun: pulled 2 files, 12 bytes received: pulled/work"
    assert Path("pulled", "work", "metrics.jsonl").read_text() == '{"step": 1}\n'
    assert podrun("pull").out.splitlines()[-1] == "podrun: pulled nothing new; 2 unchanged: pulled/work"
    assert podrun("pull", "2031", "logs", "--to", "here").code == 0
    assert Path("here/logs/host-0.log").read_text() == "of the newest\n"
    assert podrun("pull", "aaaa", "logs", "--to", "here").code == 0  # the same workdir


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["metrix"],
            "there are no results 'metrix': choose from metrics, samples, checkpoints, logs, files, or name steps",
        ),
        (["aaaa", "log"], "did you mean logs?"),
        (["bbbb"], "there is no run 'bbbb'"),
        (["aaaa", "bbbb"], "there are no results 'bbbb'"),
        (["17"], "there is no complete checkpoint of step 17; complete ones: none"),
        (["2031", "17"], "there is no complete checkpoint of step 17"),
        (["--to", "/proc/here"], "cannot write to /proc/here: No such file or directory; choose another with --to DIR"),
        (["--to", "work"], "work is the workdir of the run: its results are there already"),
    ],
)
def test_mistakes(workdir: Path, podrun: Podrun, words: list[str], message: str) -> None:
    done = podrun("pull", *words)
    assert done.code == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_the_shell_completes_runs_and_results(workdir: Path) -> None:
    def completed(args: list[str], incomplete: str) -> list[str]:
        shell = ShellComplete(main, {}, "podrun", "_PODRUN_COMPLETE")
        return [item.value for item in shell.get_completions(["pull", *args], incomplete)]

    assert completed([], "s") == ["samples"]
    assert completed([], "2026") == ["20260131-110000-2031", "20260131-100000-aaaa"]
    assert completed(["aaaa"], "") == ["metrics", "samples", "checkpoints", "logs", "files"]

"""`podrun report`: whose page it writes, and where."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.commands.report import report
from podrun.launcher.rundir.run_summary import summarize
from podrun.runtime.contract import UserError

from ..report.made import run_with_restart


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_newest_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = run_with_restart()
    file = folder / f"report-{directory.run_id}.html"
    for _ in range(2):  # the second one replaces the first
        assert report(None, None) == 0
        assert file.read_text().startswith("<!doctype html>")
    assert f"{file.name}: " in capsys.readouterr().out
    assert [path.name for path in folder.iterdir() if path.is_file()] == [file.name]


def test_a_file_or_a_folder(folder: Path) -> None:
    directory = run_with_restart()
    (folder / "pages").mkdir()
    report(directory.run_id[-4:], Path("pages"))
    report(directory.run_id, Path("a.html"))
    assert (folder / "a.html").exists() and (folder / "pages" / f"report-{directory.run_id}.html").exists()


def test_a_workdir(folder: Path) -> None:
    (folder / "work").mkdir()
    (folder / "work" / "metrics.jsonl").write_text('{"step": 1, "kind": "train", "loss": 1.0}\n')
    report("work", None)
    assert "Metrics of a workdir" in (folder / "report-work.html").read_text()


@pytest.mark.parametrize(
    ("target", "output", "message"),
    [
        (None, None, "there are no runs"),
        ("nowhere", None, "there is no folder nowhere here, and there are no runs"),
        (".", None, "has no metrics that can be read"),
    ],
)
def test_what_there_is_no_page_of(target: str | None, output: Path | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        report(target, output)


def test_a_workdir_under_another_folder(folder: Path) -> None:
    """The relative workdir of a run on hosts is below the pod file's, not below this folder."""
    directory = run_with_restart()
    workdir = Path(summarize(directory).workdir)
    with pytest.raises(UserError, match=f"did you mean {workdir}, the workdir of {directory.run_id}\\?"):
        report(f"elsewhere/{workdir.name}", None)


def test_a_folder_that_is_not_there(folder: Path) -> None:
    run_with_restart()
    with pytest.raises(UserError, match=r"cannot write missing/a.html: No such file or directory; give another file"):
        report(None, Path("missing/a.html"))

"""`podrun report`: write the page of a run, one HTML file."""

from __future__ import annotations

from pathlib import Path

from podrun.runtime.contract import ExitCode, UserError

from ..report.make_page import page_of_run, page_of_workdir
from ..report.model import Page
from ..report.write_html import html_of, write_page
from ..rundir.run_summary import summarize
from ..rundir.runs import all_runs, find_run

_NEWEST = 100
"""Runs whose workdirs are looked at for what a wrong name may mean."""


def report(target: str | None, output: Path | None) -> int:
    """Write the page, and print where it is. Raises UserError.

    Args:
        target: a workdir on this machine, or the id of a run; None: the newest run.
        output: the file, or its folder.
    """
    page, name = _page(target)
    file = (output or Path(f"{name}.html")).expanduser()
    if file.is_dir():
        file = file / f"{name}.html"
    write_page(file, html_of(page))
    if page.expected:
        print(f"goodput {dict(page.tiles)['goodput']}. {page.expected}")
    return ExitCode.DONE


def _meant(target: str) -> str:
    """Return the workdir of the newest run that ends like `target`, as a question; empty if there is none."""
    name = Path(target).name
    for run in all_runs()[:_NEWEST]:
        workdir = summarize(run).workdir
        if name and Path(workdir).name == name:
            return f"; did you mean {workdir}, the workdir of {run.run_id}?"
    return ""


def _page(target: str | None) -> tuple[Page, str]:
    """Return the page, and a file name for it."""
    if target is not None and (folder := Path(target).expanduser().absolute()).is_dir():
        return page_of_workdir(folder), f"report-{folder.name}"
    try:
        directory = find_run(target)
    except UserError as error:
        raise UserError(
            f"there is no folder {target} here, and {error}{_meant(target)}" if target else str(error)
        ) from None
    return page_of_run(directory), f"report-{directory.run_id}"

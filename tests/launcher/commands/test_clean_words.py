"""`podrun clean` and a host that says anything; and a run directory that the user has moved."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.agent.base.from_agent import ANSWERS, FACTS, parse_answer
from podrun.launcher.agent.base.protocol import Malformed
from podrun.launcher.commands.clean import _remove_here
from podrun.launcher.rundir import old_runs
from podrun.launcher.rundir.old_runs import OldRun
from podrun.launcher.view.cleanup import Removable, as_table

from .conftest import Make


def test_words_of_a_host_make_no_line_of_their_own() -> None:
    """Nor do they give orders to the terminal."""
    evil = "/x\nhost-1  folder  1 d old\x1b[2J\u2028y"
    left = Removable()
    left.folders["h"] = [{"run": "r", "path": evil, "bytes": 1, "age": 1.0}]
    left.processes["h"] = [{"run": evil, "pid": 1, "command": evil}]
    left.environments["h"] = [{"kind": evil, "path": evil, "bytes": 1, "age": 1.0, "due": True}]
    lines = as_table(left).splitlines()
    assert len(lines) == 3 and all(line.isprintable() for line in lines)


@pytest.mark.parametrize("missing", ["removed", "left", "pruned"])
def test_an_answer_of_clean_has_all_its_fields(missing: str) -> None:
    answer = {"folders": [], "processes": [], "environments": [], "removed": 0, "left": [], "pruned": 0}
    ANSWERS["clean"](answer)
    del answer[missing]
    with pytest.raises(Malformed, match=f"{missing} is missing"):
        ANSWERS["clean"](answer)


def test_versions_of_thousands_of_digits_are_refused() -> None:
    """Python would not read them as numbers."""
    facts = {"clock": {"received": 0, "answered": 0}, "system": {"host": "h", "cores": 1}}
    interpreter = {"version": "3.11.7", "executable": "p", "packages": {"jax": "0.10.1.dev20260101+g12"}}
    FACTS({**facts, "interpreter": interpreter, "driver": "550.54.15"})
    digits = "9" * 6000
    for wrong in ({"packages": {"jax": digits}}, {"version": f"3.{digits}.1"}, {"version": "three"}):
        with pytest.raises(Malformed):
            FACTS({**facts, "interpreter": {**interpreter, **wrong}})
    with pytest.raises(Malformed):
        FACTS({**facts, "driver": digits})
    with pytest.raises(Malformed):
        parse_answer(b'{"clock": 1%s}' % (b"0" * 6000), "facts")


def test_a_run_directory_that_was_moved(make: Make, tmp_path: Path) -> None:
    """A link in its place is removed with what it leads to, and nothing is left in the folder of the runs."""
    directory = make("20260101-000000-aaaa", age=0).directory
    elsewhere = tmp_path / "elsewhere"
    directory.path.rename(elsewhere)
    directory.path.symlink_to(elsewhere)
    assert _remove_here([OldRun(directory, old_runs.summarize(directory), 0)]) == []
    assert list(directory.path.parent.iterdir()) == [] and not elsewhere.exists()

"""Answers that are kept: given again only if nothing has changed, and never in the way of computing them anew."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from podrun.launcher.request import kept_answers
from podrun.launcher.request.kept_answers import interpreter, keep_answer, kept_answer, settings

QUESTION = {"slice": "v5e-16", "config": {"steps": 3}}
ANSWER = {"text": "fits"}
FORM = TypeAdapter(dict[str, str])
OLD = 60.0  # seconds, older than the tick of any clock


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text("layers = 2")
    os.utime(path, (time.time() - OLD, time.time() - OLD))
    return path


def keep(*files: Path) -> None:
    keep_answer(QUESTION, FORM, ANSWER, map(str, files), time.time())


def test_only_the_same_question_has_the_answer(code: Path, home: Path) -> None:
    assert kept_answer(QUESTION, FORM) is None
    keep(code)
    assert kept_answer(QUESTION, FORM) == ANSWER
    assert kept_answer({**QUESTION, "slice": "v5e-4"}, FORM) is None
    (entry,) = (home / "answers").iterdir()
    assert [path.stat().st_mode & 0o077 for path in (home, home / "answers", entry)] == [0, 0, 0]


def test_a_file_that_changed_ends_it(code: Path) -> None:
    keep(code)
    code.write_text("layers = 4")
    assert kept_answer(QUESTION, FORM) is None


def test_a_file_that_is_gone_ends_it(code: Path) -> None:
    keep(code)
    code.unlink()
    assert kept_answer(QUESTION, FORM) is None


@pytest.mark.parametrize("age", [1, -5])
def test_what_was_just_written_may_still_change(code: Path, age: float) -> None:
    """Within a tick of the clock nobody would see it; and what was written after the question had another content."""
    os.utime(code, (time.time() - age, time.time() - age))
    keep(code)
    assert kept_answer(QUESTION, FORM) is None


def test_a_file_that_changed_during_the_answer(code: Path) -> None:
    keep_answer(QUESTION, FORM, ANSWER, [str(code)], asked=time.time() - 2 * OLD)
    assert kept_answer(QUESTION, FORM) is None


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-5], lambda data: data.replace(b"fits", b"lies"), lambda data: b"[]"]
)
def test_a_damaged_answer_is_none(code: Path, home: Path, damage: object) -> None:
    keep(code)
    (entry,) = (home / "answers").iterdir()
    assert callable(damage)
    entry.write_bytes(damage(entry.read_bytes()))
    assert kept_answer(QUESTION, FORM) is None
    keep(code)
    assert kept_answer(QUESTION, FORM) == ANSWER


def test_an_answer_of_another_form_is_none(code: Path) -> None:
    """A later version of podrun asks for more than an earlier one has kept."""
    keep(code)
    assert kept_answer(QUESTION, TypeAdapter(dict[str, int])) is None


def test_where_nothing_can_be_kept(code: Path, home: Path) -> None:
    """A file in the folder's place, for example: the answer is computed each time."""
    home.write_text("no folder")
    keep(code)
    assert kept_answer(QUESTION, FORM) is None


def test_answers_not_used_for_longest_are_removed(code: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_answers, "_LIMIT", 500)
    keep(code)
    old = home / "answers" / "unused"
    old.write_text("x" * 500)
    os.utime(old, (0, 0))
    keep(code)
    assert not old.exists() and kept_answer(QUESTION, FORM) == ANSWER


def test_the_variables_that_an_answer_depends_on() -> None:
    """Settings of JAX, compilers and Python, and what the job sets; not where and in which terminal podrun is called."""
    unimportant = {"PATH": "/a:/b", "PWD": "/a", "OLDPWD": "/b", "SHLVL": "2", "TERM": "xterm", "COLUMNS": "80"}
    important = {"XLA_FLAGS": "--a", "LIBTPU_INIT_ARGS": "--b", "JAX_ENABLE_X64": "1", "PYTHONPATH": "/c", "HOME": "/d"}
    assert settings({**unimportant, **important}, of_job={}) == important
    assert settings({**unimportant, "SIZE": "3"}, of_job={"SIZE", "PATH"}) == {"SIZE": "3", "PATH": "/a:/b"}


def test_an_interpreter_is_told_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another PATH is the same question, unless it has another interpreter of that name."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mypython").touch(0o700)
    found = []
    for path in ("a", "none:a", "b:a"):
        monkeypatch.setenv("PATH", ":".join(str(tmp_path / folder) for folder in path.split(":")))
        found.append(interpreter("mypython"))
    assert found == [str(tmp_path / folder / "mypython") for folder in ("a", "a", "b")]
    assert (interpreter(None), interpreter("/no/python")) == (sys.executable, "/no/python")

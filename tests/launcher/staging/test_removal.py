"""Old files on a host go; what is in use stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from podrun.launcher.agent.prepare import store

from .prepared import Case

pytestmark = pytest.mark.timeout(120)


def make_old(folder: Path, hours: float) -> None:
    then = time.time() - hours * 3600
    os.utime(folder, (then, then))


def test_old_bundles_go_those_in_use_stay(case: Case) -> None:
    """The newest of each kind stay, and what a run has given a sign of, and what is used now."""
    sent = []
    for n in range(10):
        (case.project / "train.py").write_text(f"print({n})")
        sent.append(case.prepared().sent[0])
    assert set(sent) <= case.there()  # all were used within the hour
    bundles = case.home / "bundles"
    for age, name in enumerate(reversed(sent)):
        make_old(bundles / name, 10 + age)
    store.in_use(str(bundles / sent[0]))  # as the agent of a run does that goes on for days
    (case.project / "train.py").write_text("print(1)")
    assert case.prepared().sent == ()
    stay = {sent[0], sent[1], *sent[-3:]}  # in use, used now, and with these the newest five
    assert case.there() & set(sent) == stay


def test_old_environments_go(case: Case) -> None:
    case.prepared()
    for n in range(6):
        folder = case.home / "envs" / f"{n:016x}"
        folder.mkdir(parents=True)
        (folder / store.DONE).write_text("{}")
        make_old(folder, 10 + n)
    case.prepared()
    assert case.there("envs") == {f"{n:016x}" for n in range(3)}


def test_what_a_dead_host_left_unfinished_goes(case: Case) -> None:
    name = case.prepared().sent[0]
    for suffix, hours in {"new.h7.12": 30, "old.h7.12": 30, "new.h7.13": 1}.items():
        folder = case.home / "bundles" / f"{name}.{suffix}"
        (folder / "deep").mkdir(parents=True)
        make_old(folder, hours)
    case.prepared()
    assert {n for n in case.there() if n.startswith(f"{name}.")} == {f"{name}.new.h7.13"}

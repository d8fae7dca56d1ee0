"""Select results of a run: classify files of a workdir as metrics, samples or checkpoints. PURE."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from podrun.runtime.contract import CHECKPOINT_MANIFEST, UserError, Workdir

KINDS = ("metrics", "samples", "checkpoints", "logs", "files")
_STEP = re.compile(r"[0-9]{1,18}", re.ASCII)
_WORKDIR = Workdir(Path())
_CHECKPOINTS = str(_WORKDIR.checkpoints)
_KIND_OF = {
    **dict.fromkeys(map(str, (_WORKDIR.metrics, _WORKDIR.config, _WORKDIR.tensorboard)), "metrics"),
    str(_WORKDIR.sample): "samples",
}


@dataclass(frozen=True)
class Selection:
    """Results to download; all results if it names no kind."""

    kinds: frozenset[str] = frozenset()
    steps: tuple[int, ...] = ()
    newest: int | None = None
    """Maximum number of checkpoints to download, the newest ones; None: all."""
    as_they_are: bool = False
    """True: treat no file as a part of a podrun checkpoint."""

    @property
    def is_everything(self) -> bool:
        return not self.kinds and not self.steps

    @property
    def is_of_workdir(self) -> bool:
        """Return True if something of the workdir is selected."""
        return self.is_everything or bool(self.steps) or bool(self.kinds - {"files", "logs"})

    @property
    def has_files(self) -> bool:
        """Return True if files that the program wrote beside its code are selected."""
        return self.is_everything or "files" in self.kinds

    @property
    def has_checkpoints(self) -> bool:
        return self.is_everything or "checkpoints" in self.kinds or bool(self.steps)

    @property
    def has_logs(self) -> bool:
        return self.is_everything or "logs" in self.kinds

    def files(self, paths: Iterable[str]) -> list[str]:
        """Return the selected ones of `paths`, without files of checkpoints."""
        return [path for path in paths if self._wants(path)]

    def _wants(self, path: str) -> bool:
        if self.as_they_are:
            return True
        top = path.partition("/")[0]
        if top == _CHECKPOINTS or top.startswith("."):
            return False
        return self.is_everything or _KIND_OF.get(top) in self.kinds

    def checkpoints(self, complete: Sequence[int]) -> list[int]:
        """Return those steps of `complete` checkpoints that are selected, newest first. Raises UserError for a missing
        step.
        """
        if self.as_they_are:
            return []
        if missing := [step for step in self.steps if step not in complete]:
            which = ", ".join(map(str, sorted(complete))) or "none"
            raise UserError(f"there is no complete checkpoint of step {missing[0]}; complete ones: {which}")
        if not self.has_checkpoints:
            return []
        steps = complete if self.is_everything or "checkpoints" in self.kinds else self.steps
        return sorted(set(steps), reverse=True)[: self.newest]


BRIEF = Selection(frozenset({"metrics", "samples", "checkpoints"}), newest=1)
"""Results that `--pull` downloads by default."""


def parse_selection(words: Sequence[str]) -> Selection:
    """Parse a selection. Raises UserError for an unknown word."""
    for word in words:
        if word not in KINDS and not _STEP.fullmatch(word):
            near = near_kind(word)
            meant = f"; did you mean {near}?" if near else ""
            raise UserError(f"there are no results {word[:40]!r}: choose from {', '.join(KINDS)}, or name steps{meant}")
    return Selection(
        frozenset(word for word in words if word in KINDS), tuple(int(word) for word in words if word not in KINDS)
    )


def selects(word: str) -> bool:
    """Return True if a word selects results: a kind or a step."""
    return word in KINDS or bool(_STEP.fullmatch(word))


def near_kind(word: str) -> str | None:
    """Return the kind that a misspelled word is closest to; None if there is none."""
    return next(iter(difflib.get_close_matches(word, KINDS, n=1)), None)


@dataclass(frozen=True)
class Steps:
    """Checkpoints of a workdir, according to its files."""

    complete: tuple[int, ...]
    incomplete: tuple[int, ...]
    """Steps without a manifest, which is written last."""


def find_steps(paths: Iterable[str]) -> Steps:
    """Return the checkpoints among the files of a workdir, without damaged, unfinished and partly removed ones."""
    steps: dict[int, bool] = {}
    for path in paths:
        parts = path.split("/")
        if len(parts) > 2 and parts[0] == _CHECKPOINTS and _STEP.fullmatch(parts[1]) and str(int(parts[1])) == parts[1]:
            step = int(parts[1])
            steps[step] = steps.get(step, False) or parts[2:] == [CHECKPOINT_MANIFEST]
    return Steps(tuple(s for s in sorted(steps) if steps[s]), tuple(s for s in sorted(steps) if not steps[s]))


def checkpoint_path(step: int) -> str:
    """Return the path of a checkpoint in a workdir."""
    return f"{_CHECKPOINTS}/{step}"

"""Questions about the layouts of a job on a slice, answered from those kept, otherwise by a new process."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from podrun.runtime.config import Config, Launch, files_of
from podrun.runtime.config.xla_presets import with_presets
from podrun.runtime.layout_facts import Measured, Survey
from podrun.runtime.target import Target

from ..request.kept_answers import interpreter, keep_answer, kept_answer, settings
from ..request.query_process import query_environment
from .compilers import Compilers

_NOT_OF_THE_STEP = {"launch", "log", "eval", "checkpoint", "sample"}
"""Sections that do not change the training step."""


class Questions:
    """Asks about one job on one slice. Thread-safe.

    Args:
        config: the job.
        target: what to compile for.
        compilers: the processes that answer.
    """

    def __init__(self, config: Config, target: Target, compilers: Compilers) -> None:
        self.not_kept = ""
        """The reason why answers are not kept; empty without one."""
        self._compilers = compilers
        self._platform = target.platform
        self._about = {
            "target": asdict(target),
            "python": interpreter(config.launch.python),
            "folder": os.getcwd(),
        }
        self._data = [str(path.absolute()) for named in files_of(config) for path in named.files]
        self._data_is_here = "://" not in str(config.data.model_dump(mode="json"))  # a bucket may change unseen

    def survey(self, jobs: Sequence[Config]) -> Survey:
        """Return the facts about the job that need no compiling. `jobs`: it with each strategy."""
        question = {"layouts": [_dumped(job) for job in jobs], "compile": False}
        return Survey.of(self._ask(question, jobs[0].launch, keep=self._data_is_here)[0])

    def measure(self, job: Config, known: Survey) -> tuple[Measured, bool]:
        """Return the compiler's answer about a layout, and whether it was compiled now.

        The facts that are known are part of the question, because they tell what changes with data in a bucket.
        """
        question = {"layouts": [_dumped(job)], "compile": True, "known": asdict(known)}
        answer, is_new = self._ask(question, job.launch, keep=True)
        return Measured(**answer), is_new

    def _ask(self, about: dict[str, Any], launch: Launch, keep: bool) -> tuple[dict[str, Any], bool]:
        env = with_presets(launch.env, launch.xla, self._platform)
        question = {**self._about, "env": settings(query_environment(env, is_for_hosts=True), env), **about}
        if keep and (kept := kept_answer(question)) is not None:
            return kept, False
        asked = time.time()
        reply = self._compilers.ask(question, env)
        answer: dict[str, Any] = reply["answer"]
        if keep and (problem := keep_answer(question, answer, [*reply["files"], *self._data], asked)):
            self.not_kept = problem
        return answer, True


def _dumped(job: Config) -> dict[str, Any]:
    return job.model_dump(mode="json", exclude=_NOT_OF_THE_STEP)

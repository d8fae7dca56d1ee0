"""Answer questions about the layouts of a job on a slice: from stored answers, otherwise by a new process."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from podrun.runtime.config import Config, Launch, files_of
from podrun.runtime.config.xla_presets import with_presets
from podrun.runtime.layout_facts import Measured, Survey
from podrun.runtime.queries import LayoutsQuery
from podrun.runtime.target import Target

from ..request.kept_answers import interpreter, keep_answer, kept_answer, settings
from ..request.query_process import query_environment
from .compilers import ANSWER, Compilers

_NOT_OF_THE_STEP = {"launch", "log", "eval", "checkpoint", "sample", "callbacks"}
"""Sections that do not change the training step."""


class Questions:
    """Answers questions about one job on one slice. Thread-safe.

    Args:
        config: the job.
        target: the devices to compile for.
        compilers: starts the processes that answer.
    """

    def __init__(self, config: Config, target: Target, compilers: Compilers) -> None:
        self.not_kept = ""
        """Reason why answers cannot be stored; empty if they can."""
        self._compilers = compilers
        self._target = target
        self._here = {"python": interpreter(config.launch.python), "folder": os.getcwd()}
        self._data = [str(path.absolute()) for named in files_of(config) for path in named.files]
        self._data_is_here = "://" not in str(config.data.model_dump(mode="json"))  # a bucket may change unseen

    def survey(self, jobs: Sequence[Config]) -> Survey:
        """Return the facts about the job that need no compiling. `jobs`: the job with each of the strategies."""
        survey, _ = self._ask(self._query(jobs, False), jobs[0].launch, {}, keep=self._data_is_here)
        assert isinstance(survey, Survey)
        return survey

    def measure(self, job: Config, known: Survey) -> tuple[Measured, bool]:
        """Return the compiler's answer about a layout, and whether it was compiled now.

        Args:
            job: the job in this layout.
            known: the result of `survey`. Stored answers are used only for the same facts: they change with data in a
                bucket.
        """
        measured, is_new = self._ask(self._query([job], True), job.launch, {"known": asdict(known)}, keep=True)
        assert isinstance(measured, Measured)
        return measured, is_new

    def _query(self, jobs: Sequence[Config], compile: bool) -> LayoutsQuery:
        layouts = [job.model_dump(mode="json", exclude=_NOT_OF_THE_STEP) for job in jobs]
        return {"target": asdict(self._target), "layouts": layouts, "compile": compile}

    def _ask(
        self, query: LayoutsQuery, launch: Launch, known: Mapping[str, object], keep: bool
    ) -> tuple[Survey | Measured, bool]:
        """Return the answer, and True if a process has just computed it. `known`: what it depends on besides the query."""
        env = with_presets(launch.env, launch.xla, self._target.platform)
        given = settings(query_environment(env, is_for_hosts=True), env)
        question = {**query, **self._here, "env": given, **known}
        if keep and (kept := kept_answer(question, ANSWER)) is not None:
            return kept.answer, False
        asked = time.time()
        reply = self._compilers.ask(query, env)
        if keep and (problem := keep_answer(question, ANSWER, reply, [*reply.files, *self._data], asked)):
            self.not_kept = problem
        return reply.answer, True

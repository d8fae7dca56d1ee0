"""Search the layouts of a job on one slice: survey, rule out, compile what is left, and keep the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from podrun.runtime.config import Config
from podrun.runtime.config.xla_presets import misplaced_presets
from podrun.runtime.contract import UserError
from podrun.runtime.layout_facts import Measured, Survey
from podrun.runtime.target import Target

from ..pod.slices import Slice
from ..request.query_process import QueryError
from .compilers import Compilers
from .layouts import Chain, Layout, RuledOut, Settings, chains, smallest, strategies, with_remat
from .questions import Questions

_LITTLE = 0.1
"""If a layout leaves at least this share of a device's memory free, `model.remat` is not searched."""


@dataclass
class Search:
    """A search on one slice, with its results so far."""

    slice: Slice
    survey: Survey | None = None
    chains: list[Chain] = field(default_factory=list)
    ruled_out: list[RuledOut] = field(default_factory=list)
    measured: dict[Layout, Measured] = field(default_factory=dict)
    failed: list[RuledOut] = field(default_factory=list)
    """Layouts that could not be compiled, and why."""
    compiled: list[Layout] = field(default_factory=list)
    """Layouts that this search compiled. Answers for the others were stored by earlier searches."""
    not_kept: str = ""
    """Reason why answers cannot be stored for another search; empty if they can."""

    @property
    def best(self) -> list[Layout]:
        """Return the fastest layout of each chain that is known to fit, the one with the lowest time per example first."""
        fit = [[layout for layout in chain.layouts if self._fits(layout)] for chain in self.chains]
        return sorted((layouts[0] for layouts in fit if layouts), key=self._rank)

    @property
    def too_large(self) -> list[Layout]:
        """Return the compiled layouts that do not fit, the one that lacks least memory first."""
        return sorted(
            (layout for layout in self.measured if not self._fits(layout)),
            key=lambda layout: -(self.measured[layout].spare or 0),
        )

    @property
    def left(self) -> int:
        """Return the number of layouts that were not compiled because another layout of the same chain decides about them."""
        return sum(len(chain.layouts) for chain in self.chains) - len(self.measured) - len(self.failed)

    def is_easy(self, search_batch: bool) -> bool:
        """Return whether a layout fits with memory to spare although it accumulates least."""
        for layout in self.best:
            one = self.measured[layout]
            is_first = search_batch or any(layout is chain.layouts[0] for chain in self.chains)
            if is_first and (not one.usable or one.spare is None or one.spare >= _LITTLE * one.usable):
                return True
        return False

    def _fits(self, layout: Layout) -> bool:
        return layout in self.measured and self.measured[layout].fits

    def _rank(self, layout: Layout) -> tuple[float, float, int]:
        """Return the key by which layouts that fit are sorted, the fastest first.

        It has the lower bound of the time per example, the sum of all bounds as if nothing overlapped, and the bytes
        sent.
        """
        measured = self.measured[layout]
        size = layout.batch_size if layout.batch_size != "all" else 1
        bound = float("inf") if measured.seconds is None else measured.seconds
        return bound / size, sum(measured.bounds.values()) / size, measured.sent


def search(
    known: Search,
    config: Config,
    target: Target,
    search_batch: bool = False,
    settings: Sequence[Settings] = (Settings(),),
    models: Sequence[int] = (),
    tell: Callable[[], None] = lambda: None,
) -> None:
    """Compile the job in different layouts to find out which fit and how fast they are, and write the results into `known`.

    Leaves no process running, even if it raises.

    Args:
        known: gets the results; it has none yet.
        config: the job.
        target: the devices to compile for.
        search_batch: search the largest batch size instead of the smallest `accumulate`.
        settings: values of other keys; all of them are searched.
        models: sizes of the mesh's axis `model`; all of them are searched. Empty: the job's own size.
        tell: called from any thread whenever there are new results.

    Raises:
        UserError: the job has a mistake, or the slice's compiler is not installed.
        QueryError: the job fails in all layouts.
        KeyboardInterrupt: Ctrl-C.
    """
    launch = config.launch
    for xla in dict.fromkeys(launch.xla if one.xla is None else one.xla for one in settings):
        if problem := misplaced_presets(xla, known.slice.kind, known.slice.name):
            raise UserError(problem)
    sections, known.ruled_out = strategies(config, known.slice, search_batch, models)
    if not sections:
        return
    with Compilers(launch.python) as compilers:
        questions = Questions(config, target, compilers)
        survey = questions.survey([smallest(config, section, known.slice) for section in sections])
        known.survey = survey
        known.chains, ruled_out = chains(config, known.slice, sections, survey, search_batch, settings)
        known.ruled_out += ruled_out
        tell()

        def measure(layout: Layout) -> bool:
            answer, is_new = questions.measure(layout.of(config), survey)
            if is_new:
                known.compiled.append(layout)
            known.measured[layout] = answer
            known.not_kept = questions.not_kept
            return answer.fits

        def follow(chain: Chain) -> None:
            fits: dict[Layout, bool] = {}
            while layout := chain.next(fits):
                try:
                    fits[layout] = measure(layout)
                except (QueryError, UserError) as error:
                    known.failed.append(RuledOut(layout, str(error)))
                    fits[layout] = False
                tell()

        def follow_all(chains: Sequence[Chain]) -> None:
            # No more threads than can compile at once, so that chains are searched in their order.
            with ThreadPoolExecutor(compilers.most) as threads:
                try:
                    done = wait([threads.submit(follow, chain) for chain in chains], return_when=FIRST_EXCEPTION)[0]
                    for one in done:
                        one.result()
                except BaseException:
                    compilers.stop()
                    raise

        follow_all(known.chains)
        if all(one.remat is None for one in settings) and not known.is_easy(search_batch):
            again = with_remat(config, known.chains)
            known.chains += again
            tell()
            follow_all(again)

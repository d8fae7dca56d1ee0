"""Check all variants of a job, and pack their code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from podrun.runtime.contract import UserError

from ..plan.spec import RunSpec
from ..pod.errors import Mistakes
from ..pod.pod import Pod
from ..request.request import Request, make_spec
from .variants import Variant

if TYPE_CHECKING:
    from ..staging.bundle import Bundle

_NAMED = 5  # variants that a message names


def check_all(
    request: Request,
    variants: Sequence[Variant],
    request_of: Callable[[Request, Variant], Request],
    known: Sequence[str],
    part: Pod | None = None,
) -> list[RunSpec]:
    """Return the specs of all variants.

    Args:
        request: the command line of the job.
        variants: the variants.
        request_of: returns the request of a variant. May raise UserError.
        known: mistakes that were found before.
        part: the pod, or the part of it that a variant runs on, if it was found before.

    Raises:
        UserError: all mistakes; those of single variants name them.
    """
    specs: list[RunSpec] = []
    problems = {problem: [variant.label for variant in variants] for problem in known}
    for variant in variants:
        try:
            specs.append(make_spec(request_of(request, variant), part=part))
        except UserError as error:
            for problem in error.texts if isinstance(error, Mistakes) else [str(error)]:
                problems.setdefault(problem, []).append(variant.label)
    if problems:
        rows = [_row(problem, names, len(variants)) for problem, names in problems.items()]
        raise UserError("\n".join(rows))
    return specs


def _row(problem: str, names: Sequence[str], count: int) -> str:
    if len(names) == count:
        return problem
    more = f"; and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{'; '.join(names[:_NAMED])}{more}: {problem}"


def with_same_code(specs: list[RunSpec]) -> tuple[list[RunSpec], tuple[Bundle, ...]]:
    """Add the code to the specs, so that all variants run its current version. Raises UserError if it cannot be packed."""
    if not specs[0].pod.traits.needs_staging:
        return specs, ()
    from ..run.pack import with_code
    from ..staging.requirements import worker_python

    first, bundles = with_code(specs[0])
    assert first.code is not None
    return [replace(s, code=replace(first.code, python=worker_python(s.pod))) for s in specs], bundles

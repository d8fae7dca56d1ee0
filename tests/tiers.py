"""Tiers of cases: a few for `make test`, which a user runs, more for CI, and all for `make nightly`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def mostly_long(
    cases: Iterable[Any], quick: Callable[[int, Any], bool], ci: Callable[[int, Any], bool] = lambda number, case: True
) -> list[Any]:
    """Return the cases of a `parametrize`, all but the `quick` ones marked long, and nightly if they are not of `ci` either.

    Both functions get the number of a case and the case.
    """

    def marks(number: int, case: Any) -> list[pytest.MarkDecorator]:
        if quick(number, case):
            return []
        return [pytest.mark.long] if ci(number, case) else [pytest.mark.nightly]

    def of_one(number: int, case: Any) -> Any:
        values = case if isinstance(case, tuple) else (case,)
        return pytest.param(*values, marks=marks(number, case))

    return [of_one(number, case) for number, case in enumerate(cases)]


def nightly(*cases: Any) -> list[Any]:
    """Return cases of a `parametrize` that are more of the same: CI leaves them out."""
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.nightly) for case in cases]

"""Two tiers of cases: a few for `make test`, which a user runs, and all for CI."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def mostly_long(cases: Iterable[Any], quick: Callable[[int, Any], bool]) -> list[Any]:
    """Return the cases of a `parametrize`, of which all but those that are `quick` are long; `quick` gets number and case."""

    def of_one(number: int, case: Any) -> Any:
        values = case if isinstance(case, tuple) else (case,)
        return pytest.param(*values, marks=[] if quick(number, case) else [pytest.mark.long])

    return [of_one(number, case) for number, case in enumerate(cases)]

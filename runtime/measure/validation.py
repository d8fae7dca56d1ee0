"""Metrics of the validation sets of a job."""

from __future__ import annotations

from collections.abc import Callable

from ..data.base import Dataset, Examples
from ..events import Metrics
from ..parallel.base import Strategy
from ..tasks.base import Sums


def validate(data: Dataset, strategy: Strategy, sums_of: Callable[[Examples], Sums]) -> Metrics:
    """Return the metrics of the validation set, and the metrics of named sets as NAME/metric.

    The sources of a mixture together are its validation set: each source is evaluated once, and the sums are added up.

    Args:
        data: the data.
        strategy: computes the metrics from sums.
        sums_of: returns the result of `Strategy.sums` for a set.
    """
    sums = {name: sums_of(examples) for name, examples in data.validations.items()}
    of_sources = [sums[name] for name in data.sources]
    whole = strategy.together(of_sources) if of_sources else sums_of(data.validation)
    of_sets = {f"{name}/{key}": value for name, part in sums.items() for key, value in strategy.summarize(part).items()}
    return {**strategy.summarize(whole), **of_sets}

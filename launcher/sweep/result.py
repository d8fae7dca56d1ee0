"""Find the value by which a trial is ranked. PURE."""

from __future__ import annotations

from ..compare.output import names_of_metrics
from ..compare.table import Measurement, compare_variants, full_name


class NoResult(Exception):
    """A trial cannot be ranked; the text is the reason."""


class UnknownMetric(NoResult):
    """A trial has reported other metrics, and not the one by which trials are ranked."""


def result_of(measured: Measurement, metric: str, earlier: str | None) -> tuple[str, float]:
    """Return the full name of the metric, and its last value.

    Args:
        measured: the trial's run, which is done.
        metric: the metric, as sweep.yaml names it.
        earlier: full name of the metric of the trials that are done; None if there are none.

    Raises:
        UnknownMetric: it has not reported the metric, but others.
        NoResult: it has reported none, or not the same one as the other trials, or it is not finite.
    """
    values = measured.last_values
    name = full_name(metric, values)
    if not values:
        raise NoResult("it has reported no metrics")
    if name is None:
        raise UnknownMetric(f"it has reported no {metric}, but {names_of_metrics(compare_variants([measured]))}")
    if earlier is not None and name != earlier:
        raise NoResult(f"it has reported {name} in place of {earlier}, by which the trials before it are ranked")
    value = values[name]
    if value is None:
        raise NoResult(f"its last {name} is not a finite number")
    return name, value

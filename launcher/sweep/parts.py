"""Divide a pod into equal parts, so that as many trials run at once. PURE."""

from __future__ import annotations

from dataclasses import replace

from podrun.runtime.contract import UserError

from ..pod.pod import Pod
from ..pod.slices import Slice


def parts_of(pod: Pod, count: int) -> list[Pod]:
    """Return `count` equal parts of the pod. Parts are equal because results may depend on the number of devices.

    Raises UserError if the pod cannot be divided so.
    """
    if count == 1:
        return [pod]
    shape = _shape_of_part(pod.slice, count)
    # a spare host would belong to one part only
    return [
        replace(pod, slice=shape, hosts=pod.hosts[first : first + shape.hosts], spares=(), min_hosts=None)
        for first in range(0, pod.slice.hosts, shape.hosts)
    ]


def _shape_of_part(slice: Slice, count: int) -> Slice:
    units = slice.hosts if slice.can_shrink else slice.slices
    if not slice.can_shrink and units == 1:
        raise UserError(
            f"side_by_side: {count}: the chips of {slice.name} are wired together, so it has no parts; give 1, or several "
            f"slices, such as {count}x{slice.name}"
        )
    if units % count:
        what = "hosts" if slice.can_shrink else "slices"
        fitting = ", ".join(str(number) for number in range(1, units + 1) if units % number == 0)
        raise UserError(
            f"side_by_side: {count}: the {units} {what} of {slice.name} cannot be divided into {count} equal parts; "
            f"give {fitting}"
        )
    if slice.can_shrink:
        return slice.resized(units // count)
    one = replace(
        slice,
        name=slice.name.partition("x")[2],
        hosts=slice.hosts_per_slice,
        chips=slice.chips // slice.slices,
        slices=1,
    )
    return one.times(units // count)

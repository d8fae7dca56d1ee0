"""Find out how a loop over a generator was left: by `break` or `return`, or by an exception."""

from __future__ import annotations

import dis
from types import FrameType

_POPS = {"POP_TOP", "POP_ITER"}
"""Instructions by which `break` and `return` drop the iterator of a loop. They raise no exceptions."""
_SUSPENDED = {"YIELD_VALUE", "RESUME"}
"""Instructions at which an outer generator, such as a progress bar around the loop, is suspended while it is closed."""


def was_left_on_purpose(caller: FrameType | None) -> bool:
    """Return whether the loop in `caller` was left by `break` or `return`.

    A generator only sees that it is closed; it cannot see the exception that ended the loop. So the instruction at which the
    loop's frame stands is examined.
    """
    while caller is not None:
        name = dis.opname[caller.f_code.co_code[caller.f_lasti]] if caller.f_lasti >= 0 else ""
        if name not in _SUSPENDED:
            return name in _POPS
        caller = caller.f_back
    return False

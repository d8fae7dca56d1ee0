"""Tell how a loop over a generator was left: by `break` or `return`, or by an exception."""

from __future__ import annotations

import dis
from types import FrameType

_POPS = {"POP_TOP", "POP_ITER"}
"""Instructions by which `break` and `return` drop what a loop iterates over. No exception comes from them."""
_SUSPENDED = {"YIELD_VALUE", "RESUME"}
"""Instructions at which a generator stands while it is closed, such as a progress bar around the loop."""


def was_left_on_purpose(caller: FrameType | None) -> bool:
    """Return whether the frame that has let go of a generator did so by `break` or `return`.

    A generator is only told that it is closed: an exception on its way out of the loop is not visible in it.
    """
    while caller is not None:
        name = dis.opname[caller.f_code.co_code[caller.f_lasti]] if caller.f_lasti >= 0 else ""
        if name not in _SUSPENDED:
            return name in _POPS
        caller = caller.f_back
    return False

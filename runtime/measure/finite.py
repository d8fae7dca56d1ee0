"""Watch for steps whose loss or gradient is not finite: skip them as far as the job allows it, then fail."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ..contract import NotFiniteError

_NOTED = 5
_ADVICE = "a lower learning rate, warm-up steps, or clipping may help"


@dataclass
class FiniteCheck:
    """The steps that were not finite, as the host counts them. Whether one changes the state is decided on the devices."""

    allowed: int
    """Number of such steps in a row that are skipped: the job's `skip_nonfinite`."""
    note: Callable[[str], None]
    in_a_row: int = 0
    skipped: int = 0
    """Number of all skipped steps since the process began."""

    def passes(self, step: int, values: dict[str, float]) -> bool:
        """Return whether a step's loss and gradient are finite. If they are not, it was skipped.

        Raises:
            NotFiniteError: they are not, and no more steps may be skipped.
        """
        if math.isfinite(values["loss"]) and math.isfinite(values.get("grad_norm", 0.0)):
            self.in_a_row = 0
            return True
        shown = "  ".join(f"{name} {value:g}" for name, value in values.items())
        if self.in_a_row == self.allowed:
            start = f"the loss or its gradient is not finite in step {step} ({shown})"
            if self.allowed:
                start += f", nor in the {self.allowed} before it, which were skipped (skip_nonfinite)"
            raise NotFiniteError(f"{start}; {_ADVICE}")
        self.in_a_row += 1
        self.skipped += 1
        if self.skipped <= _NOTED or self.skipped % 100 == 0:
            so_far = f"; {self.skipped} so far" if self.skipped > 1 else ""
            self.note(f"step {step} is skipped: its loss or gradient is not finite ({shown}){so_far}")
        return False

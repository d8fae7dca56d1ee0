"""Facts about a job's layouts on a slice, sent to the launcher by the process that compiles."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Held:
    """Bytes that each device holds with a strategy. They do not depend on the batch."""

    state: int = 0
    gradients: int = 0
    problem: str = ""
    """The reason why the strategy cannot train the job; empty if it can."""


@dataclass(frozen=True)
class Survey:
    """Facts about a job on a slice that need no compiling."""

    kind: str
    """Kind of the devices, such as `TPU v5 lite`."""
    usable: int | None
    """Bytes of a device's memory that programs can use; None: unknown."""
    batch: dict[str, str]
    """Type of each array of a batch with the first strategy, such as `int32[16,65]`."""
    examples: int
    """Number of examples in the training set."""
    whole_batch: bool
    """True if the task needs the whole batch at once, so that it cannot be accumulated."""
    held: tuple[Held, ...]
    """By strategy, in the order of the question."""


@dataclass(frozen=True)
class Measured:
    """Result of compiling a job in one layout."""

    fits: bool
    needed: int | None
    """Bytes that a device needs, as far as the compiler says; a lower bound if the step does not fit."""
    usable: int | None
    """Bytes of a device's memory that programs can use; None: unknown."""
    bounds: dict[str, float]
    """Seconds that a step takes at least, by the part of the hardware, such as `compute` or `HBM`; empty: unknown."""
    sent: int
    """Bytes of a step's collectives, per device."""
    unknown_loops: int
    """Loops with an unknown number of iterations, so that bounds and bytes count them once."""
    compile_seconds: float
    memory_here: int
    """Bytes of this machine's memory that compiling took."""
    attention: str = ""
    """The kernel of the model's attention that was compiled, and why; empty if the model has no choice."""

    @property
    def seconds(self) -> float | None:
        """Return the lower bound of a step's time; None if unknown."""
        return max(self.bounds.values(), default=None)

    @property
    def limit(self) -> str:
        """Return the part of the hardware that sets the lower bound; empty if there is none."""
        return max(self.bounds, key=self.bounds.__getitem__, default="")

    @property
    def spare(self) -> int | None:
        """Return the bytes of memory that a device has left, negative if it has too little; None if unknown."""
        return None if self.needed is None or self.usable is None else self.usable - self.needed

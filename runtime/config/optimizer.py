"""Sections of the optimizers and of the learning-rate schedule."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from .base import (
    SELECTS,
    Choice,
    Named,
    Natural,
    NaturalFloat,
    Plugin,
    Positive,
    PositiveFloat,
    Probability,
    Section,
    Tunable,
    Tuned,
)


class OptimizerSection(Section):
    """Base of the sections of optimizers."""

    whole_set: ClassVar[bool] = False
    """True if every step uses the whole training set and determines its own step size."""
    elementwise: ClassVar[bool] = True
    """True if it updates each element by itself, so that its state has the shapes of the parameters."""

    @property
    def uses_line_search(self) -> bool:
        """Return whether the optimizer state keeps the last loss and gradient, with which the next step begins."""
        return False


Clip = Annotated[PositiveFloat | None, Tunable(set_or_null=True)]  # clipping adds a part to the state


def checked_regex(value: str | None) -> str | None:
    try:
        re.compile(value or "")
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{value!r} is not a regular expression: {error}") from None
    return value


Decay = Annotated[str | None, AfterValidator(checked_regex), Tunable()]

_RATE = "Peak learning rate; the schedule gives the rate at each step."
_CLIP = "Global norm that gradients are clipped to; null: no clipping. Lower it if the loss jumps."
_FIRST = "Decay per step of the mean of gradients."
_SECOND = "Decay per step of the mean of squared gradients."
_EPS = "Added to the root of the mean of squared gradients, to avoid a division by 0."
_DECAY = "Weight decay: a step subtracts this times the learning rate times the weights; 0: none."
_DECAYED = (
    "Regular expression that matches the full names of the parameters to decay, such as `.*kernel|wte.embedding`; null: all "
    "that have two or more dimensions, except biases and norms. `podrun inspect` shows which."
)


class FirstOrder(OptimizerSection):
    """Base of the sections of first-order optimizers."""

    learning_rate: Tuned[PositiveFloat] = Field(1e-3, description=_RATE)
    clip_norm: Clip = Field(None, description=_CLIP)


class AdamW(FirstOrder):
    """AdamW (Loshchilov & Hutter 2019). As in nanoGPT, all matrices decay, embeddings included; biases and norms do not."""

    name: Literal["adamw"] = Field("adamw", description=SELECTS)
    learning_rate: Tuned[PositiveFloat] = Field(3e-4, description=_RATE)
    b1: Tuned[Probability] = Field(0.9, description=_FIRST)
    b2: Tuned[Probability] = Field(0.95, description=_SECOND)
    eps: Tuned[PositiveFloat] = Field(1e-8, description=_EPS)
    weight_decay: Tuned[NaturalFloat] = Field(0.1, description=_DECAY)
    decay: Decay = Field(None, description=_DECAYED)
    clip_norm: Clip = Field(1.0, description=_CLIP)


class Adam(FirstOrder):
    """Adam (Kingma & Ba 2015)."""

    name: Literal["adam"] = Field("adam", description=SELECTS)
    b1: Tuned[Probability] = Field(0.9, description=_FIRST)
    b2: Tuned[Probability] = Field(0.999, description=_SECOND)
    eps: Tuned[PositiveFloat] = Field(1e-8, description=_EPS)


class SGD(FirstOrder):
    """Stochastic gradient descent, with momentum."""

    name: Literal["sgd"] = Field("sgd", description=SELECTS)
    learning_rate: Tuned[PositiveFloat] = Field(0.1, description=_RATE)
    momentum: Probability = Field(0.9, description="Decay per step of the mean of gradients; 0: no mean is kept.")
    nesterov: Tuned[bool] = Field(False, description="Use Nesterov momentum.")


class Lion(FirstOrder):
    """Lion (Chen et al. 2023). The same parameters decay as with AdamW."""

    name: Literal["lion"] = Field("lion", description=SELECTS)
    learning_rate: Tuned[PositiveFloat] = Field(1e-4, description=f"{_RATE} About a third of AdamW's is usual.")
    b1: Tuned[Probability] = Field(
        0.9, description="Weight of the momentum, against the gradient, in the direction of a step."
    )
    b2: Tuned[Probability] = Field(0.99, description="Decay per step of the momentum.")
    weight_decay: Tuned[NaturalFloat] = Field(0.0, description=f"{_DECAY} About three times AdamW's is usual.")
    decay: Decay = Field(None, description=_DECAYED)


class Adafactor(FirstOrder):
    """Adafactor (Shazeer & Stern 2018): keeps the second moments of a matrix by row and column, which saves memory."""

    elementwise = False
    name: Literal["adafactor"] = Field("adafactor", description=SELECTS)
    momentum: Probability | None = Field(
        None, description="Decay per step of a mean of the updates; null: no mean is kept, which saves memory."
    )


class Muon(FirstOrder):
    """Muon (Jordan 2024): orthogonalised momentum for the matrices of hidden layers, [in, out]; Adam for everything else.

    As its authors advise, Adam updates embeddings and output heads, which are recognised by name: `embed`, `wte`, `lm_head`
    and others. Stacked layers are orthogonalised one by one. Adam also updates other arrays of more than two dimensions,
    such as the kernels of convolutions.
    """

    elementwise = False
    name: Literal["muon"] = Field("muon", description=SELECTS)
    learning_rate: Tuned[PositiveFloat] = Field(0.02, description=f"{_RATE} Used for the matrices.")
    adam_learning_rate: Tuned[PositiveFloat] = Field(
        3e-4, description="Peak learning rate of Adam, for all other parameters; it follows the same schedule."
    )
    momentum: Probability = Field(0.95, description="Decay per step of the mean of gradients.")
    weight_decay: Tuned[NaturalFloat] = Field(0.0, description=f"{_DECAY} The same parameters decay as with AdamW.")
    decay: Decay = Field(None, description=_DECAYED)


class LBFGS(OptimizerSection):
    """L-BFGS (Liu & Nocedal 1989) on the whole training set, `batch_size: all`. It needs no learning-rate schedule."""

    whole_set = True
    elementwise = False
    name: Literal["lbfgs"] = Field("lbfgs", description=SELECTS)
    line_search: Literal["zoom", "backtracking"] | None = Field(
        "zoom", description="How the size of a step is found; null: every step has step_size."
    )
    step_size: PositiveFloat | None = Field(
        None, description="Size of each step; required with line_search: null, and only then."
    )
    memory: Positive = Field(
        10,
        description="Number of last steps that estimate the curvature; each needs memory for two copies of the parameters.",
    )
    max_evaluations: Tuned[Positive] = Field(
        20, description="Evaluations of loss and gradient that one line search may take."
    )

    @model_validator(mode="after")
    def _check_step(self) -> LBFGS:
        if (self.line_search is None) != (self.step_size is not None):
            raise ValueError("give line_search: zoom or backtracking, or line_search: null and a fixed step_size")
        return self

    @property
    def uses_line_search(self) -> bool:
        return self.line_search is not None


class OptimizerPlugin(Plugin, OptimizerSection):
    """The user's own optimizer."""


Optimizer = Annotated[AdamW | Adam | SGD | Lion | Adafactor | Muon | LBFGS | OptimizerPlugin, Choice("adamw"), Named]


class Curve(Section):
    """Base of the built-in schedules: a linear warm-up to the peak, then a curve down to `final` at the last step."""

    warmup_steps: Natural = Field(
        0, description="Steps in which the rate rises to its peak; raise it if the loss jumps at the start."
    )
    final: NaturalFloat = Field(0.0, description="Learning rate at the last step, as a number (not a ratio).")

    def cut_short(self, steps: int) -> str | None:
        """Return a warning if a training of `steps` steps ends before the warm-up does; None if it does not."""
        if self.warmup_steps < steps:
            return None
        return (
            f"schedule: {self.warmup_steps} warmup_steps are not complete in {steps} steps, so the learning rate does not "
            "reach its peak"
        )


class Cosine(Curve):
    """From the peak down to `final` along half a cosine."""

    name: Literal["cosine"] = Field("cosine", description=SELECTS)


class Linear(Curve):
    """From the peak down to `final` along a straight line."""

    name: Literal["linear"] = Field("linear", description=SELECTS)


class Constant(Curve):
    """Stay at the peak after the warm-up."""

    name: Literal["constant"] = Field("constant", description=SELECTS)
    final: NaturalFloat = Field(0.0, description="Ignored.")


class WSD(Curve):
    """Warm-up, stable, decay (Hu et al. 2024, MiniCPM): stay at the peak, then fall to `final` along a straight line.

    As the rate does not depend on the number of steps before the decay, a checkpoint from there can be trained for longer.
    """

    name: Literal["wsd"] = Field("wsd", description=SELECTS)
    decay_steps: Positive | None = Field(
        None, description="Last steps, in which the rate falls from its peak to final; null: a tenth of all steps."
    )

    def cut_short(self, steps: int) -> str | None:
        """As in `Curve`; also warns if warm-up and decay together are longer than the training."""
        after = steps - self.warmup_steps
        if self.decay_steps is None or after <= 0 or self.decay_steps <= after:
            return super().cut_short(steps)
        return (
            f"schedule: {self.warmup_steps} warmup_steps and {self.decay_steps} decay_steps are more than {steps} steps, "
            f"so the decay takes {after}"
        )


class SchedulePlugin(Plugin):
    """The user's own schedule, called as `attribute(options, peak, steps)`. It returns the rate as a function of the step."""


Schedule = Annotated[Cosine | Linear | Constant | WSD | SchedulePlugin, Choice("cosine"), Named]

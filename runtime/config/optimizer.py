"""Optimizers and learning-rate schedules."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from .base import (
    PICKS,
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
    """Base of all optimizers."""

    whole_set: ClassVar[bool] = False
    """True if every step is of the whole training set, and finds its length itself."""
    elementwise: ClassVar[bool] = True
    """True if all that it computes has the shapes of the parameters, element by element."""

    @property
    def uses_line_search(self) -> bool:
        """Return whether a step leaves the loss and gradient that the next begins with in the state."""
        return False


Clip = Annotated[PositiveFloat | None, Tunable(set_or_null=True)]  # clipping adds a part to the state


def _checked_regex(value: str | None) -> str | None:
    try:
        re.compile(value or "")
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{value!r} is not a regular expression: {error}") from None
    return value


Decay = Annotated[str | None, AfterValidator(_checked_regex), Tunable()]

_RATE = "Learning rate at its peak; the schedule says what it is before and after."
_CLIP = "Global norm that gradients are clipped to; null: they are not. Lower it if the loss jumps."
_FIRST = "Decay per step of the mean of gradients."
_SECOND = "Decay per step of the mean of squared gradients."
_EPS = "Added to the root of that mean, so that nothing is divided by 0."
_DECAY = "Share of the weights taken off per step, times the learning rate; 0: none."
_DECAYED = (
    "Regular expression for the whole names of the parameters to decay, as `.*kernel|wte.embedding`; null: all that have two "
    "or more dimensions, except biases and norms. `podrun inspect` shows which."
)


class FirstOrder(OptimizerSection):
    """Base of all optimizers that follow the gradient."""

    learning_rate: Tuned[PositiveFloat] = Field(1e-3, description=_RATE)
    clip_norm: Clip = Field(None, description=_CLIP)


class AdamW(FirstOrder):
    """AdamW (Loshchilov & Hutter 2019). As in nanoGPT, all matrices are decayed, embeddings too; no biases, no norms."""

    name: Literal["adamw"] = Field("adamw", description=PICKS)
    learning_rate: Tuned[PositiveFloat] = Field(3e-4, description=_RATE)
    b1: Tuned[Probability] = Field(0.9, description=_FIRST)
    b2: Tuned[Probability] = Field(0.95, description=_SECOND)
    eps: Tuned[PositiveFloat] = Field(1e-8, description=_EPS)
    weight_decay: Tuned[NaturalFloat] = Field(0.1, description=_DECAY)
    decay: Decay = Field(None, description=_DECAYED)
    clip_norm: Clip = Field(1.0, description=_CLIP)


class Adam(FirstOrder):
    """Adam (Kingma & Ba 2015)."""

    name: Literal["adam"] = Field("adam", description=PICKS)
    b1: Tuned[Probability] = Field(0.9, description=_FIRST)
    b2: Tuned[Probability] = Field(0.999, description=_SECOND)
    eps: Tuned[PositiveFloat] = Field(1e-8, description=_EPS)


class SGD(FirstOrder):
    """Stochastic gradient descent, with momentum."""

    name: Literal["sgd"] = Field("sgd", description=PICKS)
    learning_rate: Tuned[PositiveFloat] = Field(0.1, description=_RATE)
    momentum: Probability = Field(0.9, description="Decay per step of the mean of gradients; 0: none is kept.")
    nesterov: Tuned[bool] = Field(False, description="Look one step ahead along the momentum.")


class Lion(FirstOrder):
    """Lion (Chen et al. 2023). Decays what AdamW decays."""

    name: Literal["lion"] = Field("lion", description=PICKS)
    learning_rate: Tuned[PositiveFloat] = Field(1e-4, description=f"{_RATE} Take about a third of AdamW's.")
    b1: Tuned[Probability] = Field(0.9, description="Weight of the momentum in the direction of a step.")
    b2: Tuned[Probability] = Field(0.99, description="Decay per step of the momentum.")
    weight_decay: Tuned[NaturalFloat] = Field(0.0, description=f"{_DECAY} Take about three times AdamW's.")
    decay: Decay = Field(None, description=_DECAYED)


class Adafactor(FirstOrder):
    """Adafactor (Shazeer & Stern 2018): second moments of matrices by row and column."""

    elementwise = False
    name: Literal["adafactor"] = Field("adafactor", description=PICKS)
    momentum: Probability | None = Field(
        None, description="Decay per step of a mean of the updates; null: none is kept, which saves memory."
    )


class Muon(FirstOrder):
    """Muon (Jordan 2024): orthogonalised momentum for the matrices of hidden layers, [in, out]; Adam for everything else.

    As its authors say, embeddings and heads are for Adam. They are known by their names, such as `embed`, `wte`, `lm_head`.
    Layers in a stack count one by one; arrays of more than two dimensions, as of convolutions, are for Adam.
    """

    elementwise = False
    name: Literal["muon"] = Field("muon", description=PICKS)
    learning_rate: Tuned[PositiveFloat] = Field(0.02, description=f"{_RATE} It is for the matrices.")
    adam_learning_rate: Tuned[PositiveFloat] = Field(
        3e-4, description="Peak learning rate of Adam, for all but the matrices; it follows the same schedule."
    )
    momentum: Probability = Field(0.95, description="Decay per step of the mean of gradients.")
    weight_decay: Tuned[NaturalFloat] = Field(0.0, description=f"{_DECAY} Decays what AdamW decays.")
    decay: Decay = Field(None, description=_DECAYED)


class LBFGS(OptimizerSection):
    """L-BFGS (Liu & Nocedal 1989) on the whole training set, `batch_size: all`. Its steps need no schedule."""

    whole_set = True
    elementwise = False
    name: Literal["lbfgs"] = Field("lbfgs", description=PICKS)
    line_search: Literal["zoom", "backtracking"] | None = Field(
        "zoom", description="How the length of a step is found; null: always step_size."
    )
    step_size: PositiveFloat | None = Field(
        None, description="Length of each step; needed with line_search: null, and only there."
    )
    memory: Positive = Field(
        10, description="Last steps that the curvature is estimated from; each takes two copies of the parameters."
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


class Schedule(Section):
    """Learning rate by step: linear warm-up, then the named curve down to `final` at the last step."""

    name: Literal["cosine", "linear", "constant"] = Field(
        "cosine", description="Curve from optimizer.learning_rate down to final; constant stays at it."
    )
    warmup_steps: Natural = Field(
        0, description="Steps in which the rate rises to its peak; raise it if the loss jumps at the start."
    )
    final: NaturalFloat = Field(
        0.0, description="Learning rate at the last step, as a number (not a ratio); constant does not use it."
    )

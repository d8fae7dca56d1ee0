"""Optimizers and learning-rate schedules."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from .base import (
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


class FirstOrder(OptimizerSection):
    """Base of all optimizers that follow the gradient."""

    learning_rate: Tuned[PositiveFloat] = 1e-3
    clip_norm: Clip = Field(None, description="Global norm that gradients are clipped to.")


class AdamW(FirstOrder):
    """AdamW (Loshchilov & Hutter 2019). Biases, LayerNorm scales and embeddings are not decayed."""

    name: Literal["adamw"] = "adamw"
    learning_rate: Tuned[PositiveFloat] = 3e-4
    b1: Tuned[Probability] = 0.9
    b2: Tuned[Probability] = 0.95
    eps: Tuned[PositiveFloat] = 1e-8
    weight_decay: Tuned[NaturalFloat] = 0.1
    clip_norm: Clip = Field(1.0, description="Global norm that gradients are clipped to.")


class Adam(FirstOrder):
    """Adam (Kingma & Ba 2015)."""

    name: Literal["adam"] = "adam"
    b1: Tuned[Probability] = 0.9
    b2: Tuned[Probability] = 0.999
    eps: Tuned[PositiveFloat] = 1e-8


class SGD(FirstOrder):
    """Stochastic gradient descent, with momentum."""

    name: Literal["sgd"] = "sgd"
    learning_rate: Tuned[PositiveFloat] = 0.1
    momentum: Probability = 0.9
    nesterov: Tuned[bool] = False


class Lion(FirstOrder):
    """Lion (Chen et al. 2023). Decays what AdamW decays."""

    name: Literal["lion"] = "lion"
    learning_rate: Tuned[PositiveFloat] = 1e-4
    b1: Tuned[Probability] = 0.9
    b2: Tuned[Probability] = 0.99
    weight_decay: Tuned[NaturalFloat] = 0.0


class Adafactor(FirstOrder):
    """Adafactor (Shazeer & Stern 2018): second moments of matrices by row and column."""

    elementwise = False
    name: Literal["adafactor"] = "adafactor"
    momentum: Probability | None = None


class Muon(FirstOrder):
    """Muon (Jordan 2024): orthogonalised momentum for matrices, Adam for everything else."""

    elementwise = False
    name: Literal["muon"] = "muon"
    learning_rate: Tuned[PositiveFloat] = 0.02
    adam_learning_rate: Tuned[PositiveFloat] = Field(3e-4, description="Of Adam; it follows the same schedule.")
    momentum: Probability = 0.95
    weight_decay: Tuned[NaturalFloat] = 0.0


class LBFGS(OptimizerSection):
    """L-BFGS (Liu & Nocedal 1989) on the whole training set, `batch_size: all`. Its steps need no schedule."""

    whole_set = True
    elementwise = False
    name: Literal["lbfgs"] = "lbfgs"
    line_search: Literal["zoom", "backtracking"] | None = Field(
        "zoom", description="How the length of a step is found; null: always step_size."
    )
    step_size: PositiveFloat | None = Field(None, description="With line_search: null.")
    memory: Positive = Field(10, description="Steps that the curvature is estimated from.")
    max_evaluations: Tuned[Positive] = Field(20, description="Of loss and gradient in one line search.")

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

    name: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: Natural = 0
    final: NaturalFloat = Field(0.0, description="Learning rate at the end, as a number (not a ratio).")

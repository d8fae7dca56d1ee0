"""Optimizers and learning-rate schedules."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag, model_validator

from .base import Named, Natural, NaturalFloat, Plugin, Positive, PositiveFloat, Probability, Section, choice


class FirstOrder(Section):
    """Base of all optimizers that follow the gradient."""

    learning_rate: PositiveFloat = 1e-3
    clip_norm: PositiveFloat | None = Field(None, description="Global norm that gradients are clipped to.")


class AdamW(FirstOrder):
    """AdamW (Loshchilov & Hutter 2019). Biases, LayerNorm scales and embeddings are not decayed."""

    name: Literal["adamw"] = "adamw"
    learning_rate: PositiveFloat = 3e-4
    b1: Probability = 0.9
    b2: Probability = 0.95
    eps: PositiveFloat = 1e-8
    weight_decay: NaturalFloat = 0.1
    clip_norm: PositiveFloat | None = Field(1.0, description="Global norm that gradients are clipped to.")


class Adam(FirstOrder):
    """Adam (Kingma & Ba 2015)."""

    name: Literal["adam"] = "adam"
    b1: Probability = 0.9
    b2: Probability = 0.999
    eps: PositiveFloat = 1e-8


class SGD(FirstOrder):
    """Stochastic gradient descent, with momentum."""

    name: Literal["sgd"] = "sgd"
    learning_rate: PositiveFloat = 0.1
    momentum: Probability = 0.9
    nesterov: bool = False


class Lion(FirstOrder):
    """Lion (Chen et al. 2023). Decays what AdamW decays."""

    name: Literal["lion"] = "lion"
    learning_rate: PositiveFloat = 1e-4
    b1: Probability = 0.9
    b2: Probability = 0.99
    weight_decay: NaturalFloat = 0.0


class Adafactor(FirstOrder):
    """Adafactor (Shazeer & Stern 2018): second moments of matrices by row and column."""

    name: Literal["adafactor"] = "adafactor"
    momentum: Probability | None = None


class Muon(FirstOrder):
    """Muon (Jordan 2024): orthogonalised momentum for matrices, Adam for everything else."""

    name: Literal["muon"] = "muon"
    learning_rate: PositiveFloat = 0.02
    adam_learning_rate: PositiveFloat = Field(3e-4, description="Of Adam; it follows the same schedule.")
    momentum: Probability = 0.95
    weight_decay: NaturalFloat = 0.0


class LBFGS(Section):
    """L-BFGS (Liu & Nocedal 1989) on the whole training set, `batch_size: all`. Its steps need no schedule."""

    name: Literal["lbfgs"] = "lbfgs"
    line_search: Literal["zoom", "backtracking"] | None = Field(
        "zoom", description="How the length of a step is found; null: always step_size."
    )
    step_size: PositiveFloat | None = Field(None, description="With line_search: null.")
    memory: Positive = Field(10, description="Steps that the curvature is estimated from.")
    max_evaluations: Positive = Field(20, description="Of loss and gradient in one line search.")

    @model_validator(mode="after")
    def _check_step(self) -> LBFGS:
        if (self.line_search is None) != (self.step_size is not None):
            raise ValueError("give line_search: zoom or backtracking, or line_search: null and a fixed step_size")
        return self


Optimizer = Annotated[
    Annotated[AdamW, Tag("adamw")]
    | Annotated[Adam, Tag("adam")]
    | Annotated[SGD, Tag("sgd")]
    | Annotated[Lion, Tag("lion")]
    | Annotated[Adafactor, Tag("adafactor")]
    | Annotated[Muon, Tag("muon")]
    | Annotated[LBFGS, Tag("lbfgs")]
    | Annotated[Plugin, Tag("plugin")],
    choice("adamw", adamw=AdamW, adam=Adam, sgd=SGD, lion=Lion, adafactor=Adafactor, muon=Muon, lbfgs=LBFGS),
    Named,
]


class Schedule(Section):
    """Learning rate by step: linear warm-up, then the named curve down to `final` at the last step."""

    name: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: Natural = 0
    final: NaturalFloat = Field(0.0, description="Learning rate at the end, as a number (not a ratio).")

"""Sections of the built-in models."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from .base import (
    SELECTS,
    Choice,
    Named,
    NaturalFloat,
    Plugin,
    Positive,
    PositiveFloat,
    Probability,
    Section,
    Tuned,
    nearest_multiples,
)
from .task import ExampleKind

GPT2_PRESETS: dict[str, dict[str, int]] = {
    # Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", table 2.
    "gpt2": {"layers": 12, "heads": 12, "width": 768, "context": 1024},
    "gpt2-medium": {"layers": 24, "heads": 16, "width": 1024, "context": 1024},
    "gpt2-large": {"layers": 36, "heads": 20, "width": 1280, "context": 1024},
    "gpt2-xl": {"layers": 48, "heads": 25, "width": 1600, "context": 1024},
}


class ModelSection(Section):
    """Base of the built-in models."""

    examples: ClassVar[tuple[ExampleKind, ...]]
    """The kinds of examples that the model takes."""
    starts_at_zero: ClassVar[bool] = False
    """True if the initial parameters are the same for every seed."""

    def conflict(self, shape: tuple[int, ...]) -> str | None:
        """Return why the model cannot take examples of `shape`, the shape of one array x; None if it can."""
        return None


class GPT2Model(ModelSection):
    """GPT-2: a pre-LayerNorm transformer decoder with tied embeddings. A preset gives the published sizes."""

    examples = ("tokens",)
    name: Literal["gpt2"] = Field("gpt2", description=SELECTS)
    preset: Tuned[Literal["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"] | None] = Field(
        None, description="Published sizes for layers, heads, width and context; keys given beside it override them."
    )
    layers: Positive = Field(4, description="Transformer blocks.")
    heads: Positive = Field(4, description="Attention heads per block; width must be a multiple of it.")
    width: Positive = Field(128, description="Size of the vector that represents a token.")
    context: Positive = Field(128, description="Longest sequence, in tokens; an example is a window of that length.")
    dropout: Tuned[Probability] = Field(
        0.0,
        description="Share of activations dropped in training; raise it if validation loss rises while training loss falls.",
    )
    remat: Tuned[Literal["none", "block", "dots"]] = Field(
        "none",
        description="What the backward pass computes again, to need less memory: nothing; each block, of which only the input is "
        "kept; or dots: all of a block but its products with weights.",
    )
    initializer_range: Tuned[PositiveFloat] = Field(
        0.02, description="Standard deviation of initial weights; 0.02 as published, for narrow models about 0.05."
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, values: Any) -> Any:
        if isinstance(values, dict):
            preset = values.get("preset")
            return {**GPT2_PRESETS.get(preset, {}), **values} if isinstance(preset, str) else values
        return values

    @model_validator(mode="after")
    def _check_heads(self) -> GPT2Model:
        if self.width % self.heads:
            fits = nearest_multiples(self.width, self.heads)
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}; the nearest that are: {fits}")
        return self


class CNN(ModelSection):
    """The network of Flax's MNIST example: 3x3 convolutions with average pooling, a dense layer, and one per class."""

    examples = ("labels",)
    name: Literal["cnn"] = Field("cnn", description=SELECTS)
    features: tuple[Positive, ...] = Field(
        (32, 64), min_length=1, description="Channels of each convolution, one number per layer."
    )
    dense: Positive = Field(256, description="Width of the dense layer before the classes.")
    dropout: Tuned[Probability] = Field(
        0.0, description="Share of activations dropped in training before the last layer."
    )

    def conflict(self, shape: tuple[int, ...]) -> str | None:
        times = len(self.features)
        if len(shape) not in (2, 3):
            return (
                f"model cnn takes images, [height, width, channels], but the examples have shape {list(shape)}; "
                "take model: mlp, or data with images"
            )
        if min(shape[:2]) < 2**times:
            return (
                f"model.features: {times} convolutions halve an image {times} times, but the examples are "
                f"{shape[0]}x{shape[1]}; give at most {min(shape[:2]).bit_length() - 1} of them"
            )
        return None


class MLP(ModelSection):
    """Dense layers of one width."""

    examples = ("labels", "values")
    name: Literal["mlp"] = Field("mlp", description=SELECTS)
    layers: Positive = Field(2, description="Number of hidden layers.")
    width: Positive = Field(64, description="Units per hidden layer.")
    activation: Literal["tanh", "relu", "gelu"] = Field("tanh", description="Function after each hidden layer.")
    dropout: Tuned[Probability] = Field(
        0.0, description="Share of activations dropped in training after each hidden layer."
    )
    weight_std: Tuned[PositiveFloat | None] = Field(
        None, description="Standard deviation of initial weights; without it 1 / sqrt(inputs of the layer)."
    )
    bias_std: Tuned[NaturalFloat] = Field(0.0, description="Standard deviation of initial biases; 0: all are zero.")


class Linear(ModelSection):
    """One dense layer whose parameters start at zero."""

    examples = ("labels", "values")
    starts_at_zero = True
    name: Literal["linear"] = Field("linear", description=SELECTS)
    bias: bool = Field(True, description="Add a bias to each output; false: weights only.")
    l2: Tuned[NaturalFloat] = Field(
        0.0, description="Adds l2/2 times the sum of the squared weights to the loss; biases are not penalised."
    )


Model = Annotated[GPT2Model | CNN | MLP | Linear | Plugin, Choice("gpt2"), Named]

"""Sections of the built-in models."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer, model_validator

from . import bucket_url
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

AboveOne = Annotated[float, Field(gt=1, allow_inf_nan=False)]
AtLeastOne = Annotated[float, Field(ge=1, allow_inf_nan=False)]

Remat = Annotated[
    Tuned[Literal["none", "block", "dots"]],
    Field(
        description="What the backward pass computes again, to need less memory: nothing; each block, of which only the "
        "input is kept; or dots: all of a block but its products with weights.",
    ),
]

GPT2_PRESETS: dict[str, dict[str, int]] = {
    # Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", table 2.
    "gpt2": {"layers": 12, "heads": 12, "width": 768, "context": 1024},
    "gpt2-medium": {"layers": 24, "heads": 16, "width": 1024, "context": 1024},
    "gpt2-large": {"layers": 36, "heads": 20, "width": 1280, "context": 1024},
    "gpt2-xl": {"layers": 48, "heads": 25, "width": 1600, "context": 1024},
}


Attention = Literal["auto", "xla", "cudnn", "splash"]
_ATTENTION = (
    "Kernel of the attention: auto takes cudnn or splash where devices and job allow it, otherwise xla, and a run says which "
    "and why. xla keeps the scores of all pairs of tokens in memory; cudnn (NVIDIA's GPUs) and splash (TPUs after v3) do "
    "not, and need bfloat16."
)


class ModelSection(Section):
    """Base of the built-in models."""

    examples: ClassVar[tuple[ExampleKind, ...]]
    """The kinds of examples that the model takes."""
    starts_at_zero: ClassVar[bool] = False
    """True if the initial parameters are the same for every seed."""
    has_model_axis: ClassVar[bool] = False
    """True if the model says how the mesh's axis `model` divides its matrices."""

    def model_axis_problem(self, parts: int) -> str | None:
        """Return why the model cannot be divided into `parts` by the mesh's axis `model`; None if it can."""
        return None

    def conflict(self, shape: tuple[int, ...]) -> str | None:
        """Return why the model cannot take examples of `shape`, the shape of one array x; None if it can."""
        return None


class GPT2Model(ModelSection):
    """GPT-2: a pre-LayerNorm transformer decoder with tied embeddings. A preset gives the published sizes."""

    examples = ("tokens",)
    has_model_axis = True
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
    remat: Remat = "none"
    attention: Tuned[Attention] = Field("auto", description=_ATTENTION)
    initializer_range: Tuned[PositiveFloat] = Field(
        0.02, description="Standard deviation of initial weights; 0.02 as published, for narrow models about 0.05."
    )

    @property
    def size(self) -> int:
        """Return the size of a head."""
        return self.width // self.heads

    def model_axis_problem(self, parts: int) -> str | None:
        return _undivided(parts, heads=self.heads)

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


class Rope(Section):
    """Base of the ways to compute the angles of rotary positions."""

    theta: AboveOne = Field(10_000.0, description="Base of the wavelengths: the longest is almost 2 pi theta tokens.")


class DefaultRope(Rope):
    """Rotary positions as published (Su et al. 2021)."""

    name: Literal["default"] = Field("default", description=SELECTS)


class LinearRope(Rope):
    """Positions divided by a factor."""

    name: Literal["linear"] = Field("linear", description=SELECTS)
    factor: AtLeastOne = Field(description="Number that positions are divided by.")


class DynamicRope(Rope):
    """A larger theta for sequences beyond the original context (dynamic NTK)."""

    name: Literal["dynamic"] = Field("dynamic", description=SELECTS)
    factor: AtLeastOne = Field(description="Growth of theta with the length.")
    original_context: Positive = Field(description="Tokens up to which theta stays as it is.")


class YarnRope(Rope):
    """YaRN (Peng et al. 2023): long wavelengths are stretched, short ones stay."""

    name: Literal["yarn"] = Field("yarn", description=SELECTS)
    factor: AtLeastOne = Field(description="Stretch of the context.")
    original_context: Positive = Field(description="Context before the stretch, in tokens.")
    beta_fast: PositiveFloat = Field(32.0, description="Wavelengths that fit more often than this in it stay.")
    beta_slow: PositiveFloat = Field(1.0, description="Wavelengths that fit less often than this in it are stretched.")
    attention_factor: PositiveFloat | None = Field(
        None, description="Factor of queries and keys; without it 0.1 ln(factor) + 1."
    )
    truncate: bool = Field(True, description="Round the limits between both kinds to whole pairs.")


class Llama3Rope(Rope):
    """Llama 3.1: long wavelengths are stretched, short ones stay, with a smooth passage between them."""

    name: Literal["llama3"] = Field("llama3", description=SELECTS)
    factor: AtLeastOne = Field(description="Stretch of the long wavelengths.")
    original_context: Positive = Field(description="Context before the stretch, in tokens.")
    low_freq_factor: PositiveFloat = Field(
        1.0, description="Wavelengths above original_context divided by this are stretched."
    )
    high_freq_factor: PositiveFloat = Field(
        4.0, description="Wavelengths below original_context divided by this stay; must be above low_freq_factor."
    )

    @model_validator(mode="after")
    def _check_factors(self) -> Llama3Rope:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"high_freq_factor {self.high_freq_factor:g} must be above low_freq_factor {self.low_freq_factor:g}"
            )
        return self


AnyRope = Annotated[
    DefaultRope | LinearRope | DynamicRope | YarnRope | Llama3Rope, Choice("default", plugins=False), Named
]


LoraTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

LORA_PARAMETERS = r".*_lora\.[ab]"
"""Matches the full names of the parameters of LoRA."""


class Lora(Section):
    """LoRA (Hu et al. 2021): W + alpha / rank A B takes the place of a matrix W, and only A and B are trained.

    A is [inputs, rank] and begins at random as PEFT's does, B is [rank, outputs] and begins at zero.
    """

    rank: Positive = Field(8, description="Columns of A and rows of B.")
    alpha: PositiveFloat = Field(16.0, description="The product A B is multiplied by alpha / rank.")
    targets: Literal["all-linear"] | tuple[LoraTarget, ...] = Field(
        "all-linear",
        description="Matrices of each layer that get A and B, by their names in PEFT: [q_proj, v_proj], for example; "
        "all-linear: all but the head.",
    )
    dropout: Probability = Field(0.0, description="Share of the inputs of A dropped in training.")

    @field_validator("targets", mode="before")
    @classmethod
    def _check_targets(cls, targets: Any) -> Any:
        targets = [targets] if isinstance(targets, str) and targets != "all-linear" else targets
        known = ", ".join(get_args(LoraTarget))
        if isinstance(targets, list | tuple) and not targets:
            raise ValueError(f"no matrices, so nothing would be trained; give all-linear, or some of {known}")
        if isinstance(targets, list | tuple) and (
            others := [name for name in targets if name not in get_args(LoraTarget)]
        ):
            raise ValueError(f"{others[0]!r} is no matrix of a layer; give all-linear, or some of {known}")
        return targets

    @property
    def scale(self) -> float:
        """Return the factor of the product A B."""
        return self.alpha / self.rank

    def has(self, matrix: str) -> bool:
        """Return whether a matrix of the decoder gets A and B, such as `q` or `down`."""
        return self.targets == "all-linear" or f"{matrix}_proj" in self.targets


class DecoderModel(ModelSection):
    """A transformer decoder made of parts: Llama, Mistral, Qwen, Gemma and models like them, by the values of its keys."""

    examples = ("tokens", "pairs")
    has_model_axis = True
    name: Literal["decoder"] = Field("decoder", description=SELECTS)
    init_from: Tuned[Path | None] = Field(
        None,
        description="Folder on every host, or in a bucket (gs://, s3://), with a model as `save_pretrained` of transformers "
        "writes it: training begins with its weights, and its config.json gives the keys that are not given here "
        "(docs/models.md).",
    )
    lora: Lora | None = Field(
        None,
        description="Train low-rank additions to the matrices of the model in init_from, and nothing else (docs/models.md); "
        "null: train the matrices themselves.",
    )
    vocabulary: Positive | None = Field(
        None,
        description="Token ids that the model has; without it as many as the data. Published models may have more.",
    )
    layers: Positive = Field(4, description="Transformer blocks.")
    width: Positive = Field(128, description="Size of the vector that represents a token.")
    heads: Positive = Field(4, description="Query heads per block.")
    kv_heads: Positive | None = Field(
        None, description="Heads of keys and values, each shared by heads / kv_heads queries; without it heads."
    )
    head_size: Positive | None = Field(
        None, description="Size of a head, even with RoPE; without it width / heads, which must then be whole."
    )
    context: Positive = Field(128, description="Longest sequence, in tokens; an example is a window of that length.")
    mlp: Literal["swiglu", "geglu", "gelu"] = Field(
        "swiglu",
        description="Feed-forward network: gated by SiLU or by GELU, or not gated with GELU (tanh-approximated).",
    )
    mlp_width: Positive | None = Field(None, description="Its hidden width; without it 4 x width.")
    norm: Literal["rms", "rms_plus_1", "layer"] = Field(
        "rms", description="RMSNorm, RMSNorm with the scale 1 + w (Gemma), or LayerNorm; before attention and MLP."
    )
    norm_epsilon: PositiveFloat = Field(1e-6, description="Added to the mean square before its root is taken.")
    post_norms: bool = Field(False, description="Normalise what attention and MLP give as well (Gemma 2 and 3).")
    qk_norm: bool = Field(False, description="Normalise queries and keys of each head, before RoPE (Qwen 3, Gemma 3).")
    bias: Literal["none", "qkv", "all"] = Field(
        "none", description="Biases: on queries, keys and values (Qwen 2), or on all matrices but the head."
    )
    positions: Literal["rope", "learned"] = Field("rope", description="Rotary positions, or a learned vector for each.")
    rope: AnyRope = Field(DefaultRope(), description="Rotary positions.")
    sliding_rope: AnyRope | None = Field(
        None, description="Rotary positions of sliding layers; without it they have those of `rope`."
    )
    layer_types: tuple[Literal["full", "sliding"], ...] = Field(
        ("full",), min_length=1, description="Attention of each layer; a shorter list is repeated."
    )
    window: Positive | None = Field(
        None, description="Tokens that a sliding layer attends to, the token itself among them."
    )
    attention: Tuned[Attention] = Field("auto", description=_ATTENTION)
    attention_scale: PositiveFloat | None = Field(
        None, description="Factor of the attention's scores; without it 1 / sqrt(head_size)."
    )
    attention_soft_cap: PositiveFloat | None = Field(
        None, description="Limit of the attention's scores: cap * tanh(score / cap) (Gemma 2)."
    )
    logit_soft_cap: PositiveFloat | None = Field(None, description="Limit of the logits, likewise.")
    scale_embedding: bool = Field(False, description="Multiply the embedding by sqrt(width) (Gemma).")
    tied_head: bool = Field(True, description="The head is the token embedding; false: a matrix of its own.")
    dropout: Tuned[Probability] = Field(0.0, description="Share of activations dropped in training.")
    remat: Remat = "none"
    scan_layers: Tuned[bool | Literal["auto"]] = Field(
        "auto",
        description="Whether the program computes the layers in a loop. Without one, steps are faster on GPUs, and compiling "
        "takes longer; auto: a loop, but not on GPUs with remat none and fsdp 1.",
    )
    initializer_range: Tuned[PositiveFloat] = Field(
        0.02,
        description="Standard deviation of initial weights; smaller in the layers that add to the residual stream.",
    )

    @field_validator("init_from")
    @classmethod
    def _is_a_place(cls, folder: Path | None) -> Path | None:
        if folder is not None and (problems := bucket_url.mistakes(folder, "the folder", "my-model")):
            raise ValueError("\n".join(problems))
        return folder

    @property
    def is_complete(self) -> bool:
        """Return whether the keys describe the model fully. If not, the config.json in `init_from` must be read."""
        return self.init_from is None or self.model_fields_set | {"lora"} >= type(self).model_fields.keys()

    @model_serializer(mode="wrap")
    def _without_unknown_keys(self, default: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the keys that config.json will give, so that they do not look like keys of the user's."""
        values: dict[str, Any] = default(self)
        if self.is_complete:
            return values
        return {key: value for key, value in values.items() if key == "name" or key in self.model_fields_set}

    @property
    def groups(self) -> int:
        """Return the number of heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def size(self) -> int:
        """Return the size of a head."""
        return self.head_size or self.width // self.heads

    @property
    def hidden_width(self) -> int:
        """Return the hidden width of the MLP."""
        return self.mlp_width or 4 * self.width

    def model_axis_problem(self, parts: int) -> str | None:
        if not self.is_complete:
            return None
        return _undivided(parts, heads=self.heads, kv_heads=self.groups, mlp_width=self.hidden_width)

    @property
    def period(self) -> int:
        """Return the number of layers after which their kinds repeat; all of them if no shorter pattern fits in evenly."""
        kinds = [self.is_sliding(i) for i in range(self.layers)]
        return next(n for n in range(1, self.layers + 1) if kinds[:n] * (self.layers // n) == kinds)

    def is_sliding(self, layer: int) -> bool:
        """Return whether a layer, from 0, attends to a window only."""
        return self.layer_types[layer % len(self.layer_types)] == "sliding"

    @model_validator(mode="after")
    def _check_together(self) -> DecoderModel:
        problems = [*self._lora_problems()]
        if self.is_complete:
            problems += [*self._head_problems(), *self._layer_problems(), *self._rope_problems()]
        if problems:
            raise ValueError("\n".join(problems))
        return self

    def _lora_problems(self) -> Iterator[str]:
        if self.lora is None:
            return
        if self.init_from is None:
            yield (
                "lora trains additions to matrices that stay as they are, but without init_from these would be random; give "
                "init_from, a folder with a model, or remove lora"
            )
        elif self.is_complete and self.mlp == "gelu" and "gate_proj" in self.lora.targets:
            yield "lora.targets has gate_proj, but the MLP of this model has no gate (mlp: gelu); remove it"

    def _head_problems(self) -> Iterator[str]:
        if self.heads % self.groups:
            fits = ", ".join(str(n) for n in range(1, self.heads + 1) if self.heads % n == 0)
            yield f"heads {self.heads} is not divisible by kv_heads {self.groups}; kv_heads may be {fits}"
        if self.head_size is None and self.width % self.heads:
            fits = nearest_multiples(self.width, self.heads)
            yield (
                f"width {self.width} is not divisible by heads {self.heads}; the nearest that are: {fits}; "
                "or give head_size"
            )
        elif self.positions == "rope" and self.size % 2:
            yield f"RoPE turns pairs, but the size of a head is {self.size}: give an even head_size, or positions: learned"

    def _layer_problems(self) -> Iterator[str]:
        if len(self.layer_types) > self.layers:
            yield f"layer_types has {len(self.layer_types)} layers, but layers is {self.layers}"
        if "sliding" in self.layer_types and self.window is None:
            yield "layer_types has sliding layers, so give window, in tokens"
        if "sliding" not in self.layer_types and self.window is not None:
            yield f"window {self.window} is for sliding layers, but layer_types has none; add layer_types: [sliding]"

    def _rope_problems(self) -> Iterator[str]:
        if self.positions == "learned" and (self.rope != DefaultRope() or self.sliding_rope):
            yield "positions: learned has no rotary positions; remove rope and sliding_rope"
        elif self.sliding_rope and "sliding" not in self.layer_types:
            yield "sliding_rope is for sliding layers, but layer_types has none; remove it"
        if self.size <= 2 and any(isinstance(rope, DynamicRope) for rope in (self.rope, self.sliding_rope)):
            yield f"dynamic RoPE needs heads of a size from 4, but it is {self.size}; give a larger head_size"


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


def _undivided(parts: int, **sizes: int) -> str | None:
    """Return a text about the sizes that cannot be divided by `parts`, and numbers that divide them; None if all can be."""
    wrong = [f"{key} {size}" for key, size in sizes.items() if size % parts]
    if not wrong:
        return None
    common = math.gcd(*sizes.values())
    fits = ", ".join(str(n) for n in range(1, common + 1) if common % n == 0)
    return f"it does not divide the model's {' and '.join(wrong)}; it can be {fits}"


Model = Annotated[GPT2Model | DecoderModel | CNN | MLP | Linear | Plugin, Choice("gpt2"), Named]

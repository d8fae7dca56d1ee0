"""The schema of train.yaml: one validated, frozen object that says everything about a training job.

Nothing here imports JAX: the launcher validates a job where JAX is not installed. Sections that have a `name` are seams:
a built-in choice has its own keys, and `package.module:attribute` names the user's own code, which gets `options`.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from .contract import UserError

PLUGIN_PATTERN = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"

Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NaturalFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Section(BaseModel):
    """Base of all sections: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Plugin(Section):
    """The user's own code. The module is found from the directory in which podrun was called."""

    name: Annotated[str, Field(pattern=PLUGIN_PATTERN, description="package.module:attribute")]
    options: dict[str, Any] = Field(default={}, description="Passed to the attribute as it is.")


def choice(default: str, **sections: type[Section]) -> Any:
    """Discriminator of a seam: which section class a mapping is for, by its `name`."""

    def tag(value: Any) -> str:
        name = value.get("name", default) if isinstance(value, dict) else getattr(value, "name", default)
        return "plugin" if ":" in str(name) else str(name)

    allowed = ", ".join(sections)
    return Discriminator(
        tag,
        custom_error_type="unknown_choice",
        custom_error_message=f"`name` must be one of {allowed}, or package.module:attribute",
    )


def named(value: Any) -> Any:
    """`model: gpt2` is short for `model: {name: gpt2}`."""
    return {"name": value} if isinstance(value, str) else value


Named = BeforeValidator(named)


# --- model ----------------------------------------------------------------------------------------------------------


GPT2_PRESETS: dict[str, dict[str, int]] = {
    # Radford et al. 2019, "Language Models are Unsupervised Multitask Learners", table 2.
    "gpt2": {"layers": 12, "heads": 12, "width": 768, "context": 1024},
    "gpt2-medium": {"layers": 24, "heads": 16, "width": 1024, "context": 1024},
    "gpt2-large": {"layers": 36, "heads": 20, "width": 1280, "context": 1024},
    "gpt2-xl": {"layers": 48, "heads": 25, "width": 1600, "context": 1024},
}


class GPT2Model(Section):
    """GPT-2: a pre-LayerNorm transformer decoder with tied embeddings. A preset gives the published sizes."""

    name: Literal["gpt2"] = "gpt2"
    preset: Literal["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"] | None = None
    layers: Positive = 4
    heads: Positive = 4
    width: Positive = 128
    context: Positive = Field(128, description="Longest sequence, in tokens.")
    dropout: Probability = 0.0
    initializer_range: PositiveFloat = Field(
        0.02, description="Standard deviation of initial weights; 0.02 as published."
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
            fits = _nearest_multiples(self.width, self.heads)
            raise ValueError(f"width {self.width} is not divisible by heads {self.heads}; the nearest that are: {fits}")
        return self


Model = Annotated[
    Annotated[GPT2Model, Tag("gpt2")] | Annotated[Plugin, Tag("plugin")],
    choice("gpt2", gpt2=GPT2Model),
    Named,
]


# --- data -----------------------------------------------------------------------------------------------------------


class CharTokenizer(Section):
    """One token per character; the vocabulary is the set of characters of the text."""

    name: Literal["char"] = "char"


class ByteTokenizer(Section):
    """One token per byte of the UTF-8 text: 256 tokens, any text."""

    name: Literal["byte"] = "byte"


class BPETokenizer(Section):
    """Byte-level byte-pair encoding by the `tokenizers` library: loaded from a file, or trained on the text."""

    name: Literal["bpe"] = "bpe"
    file: Path | None = Field(None, description="A tokenizer.json; without it one is trained.")
    vocabulary: Annotated[int, Field(ge=257)] = Field(8192, description="Size of a trained vocabulary.")


Tokenizer = Annotated[
    Annotated[CharTokenizer, Tag("char")] | Annotated[ByteTokenizer, Tag("byte")] | Annotated[BPETokenizer, Tag("bpe")],
    Discriminator(
        lambda v: v.get("name", "byte") if isinstance(v, dict) else getattr(v, "name", "byte"),
        custom_error_type="unknown_choice",
        custom_error_message="`name` must be one of char, byte, bpe",
    ),
    Named,
]

Fraction = Annotated[float, Field(gt=0, lt=1)]


class TextData(Section):
    """Text files: one file, a folder (its files in sorted order), or a glob pattern."""

    name: Literal["text"] = "text"
    path: Annotated[str, Field(min_length=1)]
    tokenizer: Tokenizer = ByteTokenizer()
    validation: Fraction = Field(0.1, description="Share of the text, from its end, kept for validation.")


class PythonSourceData(Section):
    """The Python sources of the interpreter's standard library: real text that is on every machine."""

    name: Literal["python_source"] = "python_source"
    tokenizer: Tokenizer = ByteTokenizer()
    validation: Fraction = Field(0.1, description="Share of the text, from its end, kept for validation.")


class TokensData(Section):
    """A binary file of token ids, mapped into memory; made by any tokenizer beforehand."""

    name: Literal["tokens"] = "tokens"
    path: Path
    validation_path: Path | None = Field(None, description="Without it the end of `path` is used.")
    validation: Fraction = 0.1
    dtype: Literal["uint16", "uint32"] = "uint16"
    vocabulary: Positive = Field(50257, description="Number of token ids; 50257 is GPT-2's.")
    tokenizer_file: Path | None = Field(None, description="A tokenizer.json, to show sampled tokens as text.")


Data = Annotated[
    Annotated[TextData, Tag("text")]
    | Annotated[PythonSourceData, Tag("python_source")]
    | Annotated[TokensData, Tag("tokens")]
    | Annotated[Plugin, Tag("plugin")],
    choice("python_source", text=TextData, python_source=PythonSourceData, tokens=TokensData),
    Named,
]


# --- optimizer ------------------------------------------------------------------------------------------------------


class AdamW(Section):
    """AdamW (Loshchilov & Hutter 2019). Biases, LayerNorm scales and embeddings are not decayed."""

    name: Literal["adamw"] = "adamw"
    learning_rate: PositiveFloat = 3e-4
    b1: Probability = 0.9
    b2: Probability = 0.95
    eps: PositiveFloat = 1e-8
    weight_decay: NaturalFloat = 0.1
    clip_norm: PositiveFloat | None = Field(1.0, description="Global norm that gradients are clipped to.")


Optimizer = Annotated[
    Annotated[AdamW, Tag("adamw")] | Annotated[Plugin, Tag("plugin")],
    choice("adamw", adamw=AdamW),
    Named,
]


class Schedule(Section):
    """Learning rate by step: linear warm-up, then the named curve down to `final` at the last step."""

    name: Literal["cosine", "linear", "constant"] = "cosine"
    warmup_steps: Natural = 0
    final: NaturalFloat = Field(0.0, description="Learning rate at the end, as a number (not a ratio).")


# --- the rest -------------------------------------------------------------------------------------------------------


class Log(Section):
    """Where metrics go. metrics.jsonl is always written: it is the truth."""

    every: Positive = Field(10, description="Steps between two lines of metrics.")
    tensorboard: bool = True
    wandb: str | None = Field(None, description="Project name on Weights & Biases (podrun[wandb]).")


class Eval(Section):
    """Validation during training and after it."""

    every: Natural = Field(100, description="Steps between two evaluations; 0: only after training.")
    batches: Positive | Literal["all"] = Field(20, description="Batches per evaluation; all: the whole split.")


class Checkpoint(Section):
    """Complete training state: asynchronous, atomic, restored onto any slice."""

    every: Natural = Field(100, description="Steps between two checkpoints; 0: only at the end.")
    keep: Positive = Field(2, description="Newest checkpoints to keep.")
    keep_best: Natural = Field(1, description="Checkpoints with the lowest validation loss to keep besides.")


class Sample(Section):
    """Text sampled from the model after training; tokens 0: none."""

    tokens: Natural = 200
    prompt: str = "\n"
    temperature: PositiveFloat = 0.8
    top_k: Natural = Field(0, description="Sample among the k most likely tokens only; 0: among all.")


def _is_variable(name: str) -> str:
    if not name or "=" in name:
        raise ValueError("the name of an environment variable must not be empty, and not contain =")
    return name


Variable = Annotated[str, AfterValidator(_is_variable)]


class Launch(Section):
    """How the pod is started. Command-line flags go before these."""

    slice: str | None = Field(None, description="As --slice.")
    pod: Path | None = Field(None, description="As --pod.")
    workdir: Path | None = Field(None, description="As --workdir.")
    python: str | None = Field(None, description="Interpreter on the hosts.")
    process_per: Literal["host", "device"] = Field(
        "host", description="A process for each host, or one for each of its GPUs (not on TPU)."
    )
    env: dict[Variable, str] = Field(default={}, description="Environment variables of the workers.")
    start_timeout: PositiveFloat = Field(300.0, description="Seconds until all processes must have joined.")
    stop_grace: NaturalFloat = Field(4.0, description="Seconds to reach a point where a stop can save.")
    max_restarts: Natural = Field(0, description="Restarts from the last checkpoint after a failure.")


def _is_task(name: str) -> str:
    return _is_choice(name, ("language_model",))


def _is_parallel(name: str) -> str:
    return _is_choice(name, ("pmap",))


def _is_choice(name: str, allowed: tuple[str, ...]) -> str:
    if name not in allowed and ":" not in name:
        raise ValueError(f"must be one of {', '.join(allowed)}, or package.module:attribute")
    return name


class Config(Section):
    """A training job."""

    task: Annotated[str, AfterValidator(_is_task)] = "language_model"
    model: Model = GPT2Model()
    data: Data = PythonSourceData()
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Schedule()
    parallel: Annotated[str, AfterValidator(_is_parallel)] = "pmap"
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="Type of the computation; parameters are always float32."
    )
    steps: Positive
    batch_size: Positive = Field(description="Examples per step over all devices.")
    accumulate: Positive = Field(1, description="Parts that each device computes its share of a batch in.")
    seed: Natural = 0
    log: Log = Log()
    eval: Eval = Eval()
    checkpoint: Checkpoint = Checkpoint()
    sample: Sample = Sample()
    launch: Launch = Launch()

    @model_validator(mode="after")
    def _check_schedule(self) -> Config:
        if self.schedule.warmup_steps >= self.steps:
            raise ValueError(
                f"schedule.warmup_steps {self.schedule.warmup_steps} must be below steps {self.steps}: "
                "give fewer of them, or more steps"
            )
        peak = getattr(self.optimizer, "learning_rate", math.inf)
        if self.schedule.final > peak:
            raise ValueError(
                f"schedule.final {self.schedule.final:g} is above optimizer.learning_rate {peak:g}: "
                "it is the learning rate at the end, as a number; give a lower one"
            )
        return self


def saved_config(config: Config) -> dict[str, Any]:
    """The job as it is kept beside its results: without `launch`, whose environment may hold secrets."""
    return config.model_dump(mode="json", exclude={"launch"})


def train_schema() -> dict[str, Any]:
    """The JSON Schema of train.yaml, with the short forms that `Named` accepts."""
    schema = Config.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        for key, value in section.get("properties", {}).items():
            if key in ("model", "data", "tokenizer", "optimizer") and "oneOf" in value:
                described = {k: value.pop(k) for k in ("default", "description") if k in value}
                section["properties"][key] = {"anyOf": [{"type": "string"}, value], **described}
    return {"title": "podrun train.yaml", **schema}


def check_batch(config: Config, devices: int) -> None:
    """Raises UserError, with the nearest two sizes that fit, unless the batch divides over devices and parts."""
    parts = devices * config.accumulate
    if config.batch_size % parts == 0:
        return
    by = f"{devices} devices" + (f" x accumulate {config.accumulate}" if config.accumulate > 1 else "")
    if config.batch_size < parts:
        raise UserError(
            f"batch_size {config.batch_size} is too small for {by}: each takes at least one example; "
            f"the smallest size that fits: batch_size={parts}"
        )
    fits = _nearest_multiples(config.batch_size, parts)
    raise UserError(f"batch_size {config.batch_size} is not divisible by {by}; the nearest sizes that are: {fits}")


def _nearest_multiples(number: int, of: int) -> str:
    below = number // of * of
    return f"{below} or {below + of}" if below else f"{of}"


def check_files(config: Config) -> None:
    """Raises UserError if a file that the config names is missing, unreadable or empty on this machine."""
    data = config.data
    if isinstance(data, TextData):
        text_files(data.path)
    if isinstance(data, TokensData):
        for key, path in (("path", data.path), ("validation_path", data.validation_path)):
            _check_file(f"data.{key}", path)
        _check_file("data.tokenizer_file", data.tokenizer_file)
    tokenizer = getattr(data, "tokenizer", None)
    if isinstance(tokenizer, BPETokenizer):
        _check_file("data.tokenizer.file", tokenizer.file)


def text_files(pattern: str) -> list[Path]:
    """The files behind `data.path`, sorted: a file, the files under a folder, or a glob pattern.

    Raises UserError if there is none or if all are empty.
    """
    try:
        files = _matches(pattern)
    except (OSError, ValueError, RuntimeError) as error:  # too long, no such user's home, `**` beside other characters
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise UserError(
            f"data.path: cannot use {pattern[:100]!r}: {reason}; give a file, a folder or a glob pattern"
        ) from None
    if not files:
        raise UserError(
            f"data.path: there is no file, folder or match for {pattern!r} (seen from {Path.cwd()}); "
            "give a path that exists, for example data.path=/path/to/text.txt"
        )
    for file in files:
        _check_file("data.path", file, may_be_empty=True)
    if not any(file.stat().st_size for file in files):
        raise UserError(f"data.path: {pattern} is empty: there is no text to train on; give a file that has text")
    return files


def _matches(pattern: str) -> list[Path]:
    path = Path(pattern).expanduser()
    if path.is_file():
        return [path]
    if path.is_dir():
        return sorted(p for p in path.rglob("*") if p.is_file())
    if not any(c in pattern for c in "*?["):
        return []
    root = Path(path.anchor) if path.is_absolute() else Path()
    relative = str(path.relative_to(path.anchor)) if path.is_absolute() else str(path)
    return sorted(p for p in root.glob(relative) if p.is_file())


def _check_file(key: str, path: Path | None, may_be_empty: bool = False) -> None:
    if path is None:
        return
    try:
        with path.expanduser().open("rb") as file:
            empty = not file.read(1)
    except (OSError, ValueError, RuntimeError) as error:  # the last two: a NUL in it, no such user's home
        reason = getattr(error, "strerror", None) or str(error).rstrip(".")
        raise UserError(
            f"{key}: cannot read {path}: {reason} (seen from {Path.cwd()}); give the path of a file that exists"
        ) from None
    if empty and not may_be_empty:
        raise UserError(f"{key}: {path} is empty; give a file that has something in it")

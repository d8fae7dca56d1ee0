"""The whole job, and the rules between its sections."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from ..contract import UserError
from ..ranking import Ranking
from .attention import named_conflict
from .base import (
    AnyPlugin,
    Natural,
    NaturalFloat,
    Plugin,
    Positive,
    PositiveFloat,
    Probability,
    Section,
    Tunable,
    name_of,
)
from .data import Data, MixtureData, PreparedData, PythonSourceData, SourceName, TextData, TextSource
from .model import LORA_PARAMETERS, DecoderModel, GPT2Model, Model
from .optimizer import AdamW, Cosine, Curve, FirstOrder, Optimizer, Schedule, checked_regex
from .parallel import Parallel, Pmap
from .sections import AnyPrecision, Checkpoint, Dpo, Eval, LaunchSection, Log, Precision, Sample
from .task import TASKS, TaskName, examples_of


class Config(Section):
    """A training job."""

    task: TaskName = Field(
        "language_model", description=f"What is learned: {', '.join(TASKS)}, or package.module:attribute."
    )
    model: Model = Field(GPT2Model(), description="The network; each task has a default.")
    data: Data = Field(PythonSourceData(), description="Source of the examples; each task has a default.")
    validation: dict[SourceName, TextSource] = Field(
        default={},
        description="Further validation sets of a language model, by name: sections like `data` with the name prepared, "
        "tokens, text or python_source, each used as a whole. Their metrics are NAME/loss and so on.",
    )
    optimizer: Optimizer = Field(AdamW(), description="How parameters are updated; each task has a default.")
    trainable: Annotated[str | None, AfterValidator(checked_regex)] = Field(
        None,
        description="Regular expression that matches the full names of the parameters to train, such as `.*bias|lm_head.*`; "
        "the others are frozen: they stay as they are, and need no memory for gradients and optimizer state. null: all.",
    )
    schedule: Schedule = Field(Cosine(), description="Learning rate by step; not for lbfgs.")
    parallel: Parallel = Field(
        Pmap(), description="Parallelism strategy: how state and batch are divided over the devices."
    )
    precision: AnyPrecision = Field(
        Precision(),
        description="Data types; float32 or bfloat16 alone is that of the computation, where bfloat16 is faster.",
    )
    steps: Positive | None = Field(None, description="Steps to train for; or give epochs.")
    epochs: PositiveFloat | None = Field(
        None, description="Passes over the training set to train for, in place of steps; each reports its mean loss."
    )
    stop_at: Positive | None = Field(
        None,
        description="Step after which the run ends with a checkpoint, before the last step: the schedule stays that of all "
        "steps, so a run with a later one, or null, goes on exactly. null: none.",
    )
    drop_last: bool = Field(
        False,
        description="Leave out the examples at the end of an epoch that do not fill a batch; false: the next batch begins "
        "with them.",
    )
    batch_size: Positive | Literal["all"] = Field(
        description="Examples per step over all devices, a multiple of the number of devices; all: the whole training set, "
        "which stays on the devices."
    )
    accumulate: Positive = Field(
        1,
        description="Gradient accumulation: parts in which a device computes its share of a batch; raise it to save memory.",
    )
    ema: Probability | None = Field(
        None,
        description="Decay per step of an exponential moving average of the parameters, which evaluation uses; null: none.",
    )
    z_loss: NaturalFloat = Field(
        0.0,
        description="Weight of log²Z, the square of the logarithm of the softmax's denominator, added to the loss of a "
        "language model (PaLM has 1e-4), so that logits do not drift; 0: none.",
    )
    dpo: Dpo = Field(Dpo(), description="How task dpo compares the answers of a pair.")
    skip_nonfinite: Natural = Field(
        0,
        description="Steps in a row that may have a gradient that is not finite: these change nothing but the position in "
        "the data, and the schedule does not count them; one more ends the run. 0: the first one ends it.",
    )
    seed: Natural = Field(0, description="Seed of initial parameters, order of examples, dropout and sampling.")
    log: Log = Field(Log(), description="Where metrics are written, and how often.")
    eval: Eval = Field(Eval(), description="When to validate, and on how much.")
    checkpoint: Checkpoint = Field(Checkpoint(), description="When to save, and how much to keep.")
    sample: Sample = Field(Sample(), description="Text to sample after training a language model.")
    callbacks: tuple[AnyPlugin, ...] = Field(
        (),
        description="Your own objects that are called at the start, after a step that is logged, after an evaluation and at "
        "the end: package.module:attribute, or sections with this `name` and `options` (docs/plugins.md).",
    )
    launch: LaunchSection = Field(
        LaunchSection(), description="How the run is launched; most keys have a command-line option as well."
    )

    @property
    def task_is_users(self) -> bool:
        """Return whether the task is the user's own code, not a built-in one."""
        return self.task not in TASKS

    @property
    def trained_names(self) -> str | None:
        """Return the regular expression that matches the full names of the parameters that are trained; None: all are."""
        return self.trainable if getattr(self.model, "lora", None) is None else LORA_PARAMETERS

    def for_evaluation(self) -> Config:
        """Return the job without its type of gradients, so that it may have another strategy."""
        return self.model_copy(update={"precision": self.precision.model_copy(update={"gradients": "float32"})})

    @property
    def dropout(self) -> float:
        """Return the largest dropout rate of the model and its LoRA; 0 if the section does not give one."""
        lora = getattr(self.model, "lora", None)
        return max(getattr(self.model, "dropout", 0.0), 0.0 if lora is None else lora.dropout)

    @property
    def brings_data(self) -> bool:
        """Return whether the launcher copies the data to hosts that are other machines."""
        return getattr(self.data, "bring", False)

    @field_validator("epochs")
    @classmethod
    def _check_length(cls, epochs: float | None, others: ValidationInfo) -> float | None:
        if "steps" not in others.data:  # `steps` is invalid: reported already
            return epochs
        steps = others.data["steps"]
        if steps is None and epochs is None:
            raise ValueError("required, but neither steps nor epochs is given; give steps: 1000, or epochs: 5")
        if steps is not None and epochs is not None:
            raise ValueError(f"steps is given as well ({steps}); give one of the two, and null for the other")
        return epochs

    def total_steps(self, examples: int, step: int = 0, position: int = 0) -> int:
        """Return the number of the last step.

        Args:
            examples: number of examples in the training set.
            step: number of steps done already, if the job is resumed.
            position: number of examples consumed by them; a resumed job may have had another batch size before.

        Raises:
            UserError: an epoch has no examples.
        """
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        goal = max(1, math.ceil(self.epochs * self.epoch_size(examples) - 1e-6))
        return step + max(0, math.ceil((goal - position) / self._batch(examples)))

    def epoch_size(self, examples: int) -> int:
        """Return the number of examples in an epoch, of a training set of `examples`. Raises UserError if it is 0."""
        batch = self._batch(examples)
        if not self.drop_last:
            return examples
        if batch > examples:
            raise UserError(
                f"drop_last: the training set has {examples} examples, fewer than batch_size {batch}, and all are left out; "
                "give a smaller batch_size, or drop_last: false"
            )
        return examples // batch * batch

    def _batch(self, examples: int) -> int:
        return examples if self.batch_size == "all" else self.batch_size

    @model_validator(mode="before")
    @classmethod
    def _fill_by_task(cls, values: Any) -> Any:
        """Fill in the task's defaults for sections that are missing or have no name."""
        task = values.get("task") if isinstance(values, dict) else None
        if not isinstance(task, str) or task not in TASKS:
            return values
        traits, filled = TASKS[task], {**values}
        for key, name in (("model", traits.model), ("data", traits.data), ("optimizer", traits.optimizer)):
            given = values.get(key, {})
            if isinstance(given, dict):
                filled[key] = {"name": name, **given}
        if traits.batch_size is not None:
            filled.setdefault("batch_size", traits.batch_size)
        return filled

    @model_validator(mode="after")
    def _check_together(self) -> Config:
        problems = [
            *_task_problems(self),
            *_lora_problems(self),
            *_dpo_problems(self),
            *_frozen_problems(self),
            *precision_problems(self),
            *_optimizer_problems(self),
            *_batch_problems(self),
            *_stop_problems(self),
            *_loss_problems(self),
            *_eval_problems(self),
            *_memory_problems(self),
            *filter(None, [self.parallel.conflict(self.model, self.optimizer), named_conflict(self)]),
        ]
        if problems:
            raise ValueError("\n".join(problems))
        return self


def fitting(task: str) -> dict[str, list[str]]:
    """Return the names of the models and data that fit a built-in task, by key; the default comes first."""
    traits = TASKS[task]
    names = {}
    for key, default in (("model", traits.model), ("data", traits.data)):
        sections = get_args(Config.model_fields[key].annotation)
        fit = [name_of(s) for s in sections if traits.examples in getattr(s, "examples", ())]
        only = traits.models if key == "model" and traits.models else fit
        names[key] = sorted([name for name in fit if name in only], key=lambda name: name != default)
    return names


def _task_problems(config: Config) -> list[str]:
    if config.task_is_users:
        return []
    return [
        f"{key}: {section.name} does not fit task {config.task}, which takes {', '.join(names)} or "
        "package.module:attribute"
        for (key, names), section in zip(fitting(config.task).items(), (config.model, config.data), strict=True)
        if not isinstance(section, Plugin) and section.name not in names
    ]


def _dpo_problems(config: Config) -> list[str]:
    if config.task != "dpo":
        is_default = config.task_is_users or config.dpo == Dpo()
        return [] if is_default else [f"dpo: only task dpo has it, and the task is {config.task}; remove it"]
    problems = []
    if isinstance(config.model, DecoderModel) and config.model.lora is None:
        problems.append(
            "model.lora: task dpo compares the model with what it was before, which is the model without LoRA; give "
            "model.lora={} or its keys, such as model.lora.rank=16"
        )
    if isinstance(config.data, PreparedData) and config.data.packing == "fit":
        problems.append("data.packing: fit packs documents into rows, and task dpo learns from pairs; remove it")
    return problems


def _frozen_problems(config: Config) -> list[str]:
    if config.trained_names is not None or config.precision.frozen == "float32":
        return []
    return [
        f"precision.frozen: {config.precision.frozen} is the type of parameters that are not trained, but all are; give "
        "trainable or model.lora, or remove it"
    ]


def precision_problems(config: Config) -> list[str]:
    """Return a line for each key of `precision` that the job cannot have."""
    precision, strategy, problems = config.precision, config.parallel.name, []
    if precision.gradients != "float32":
        if strategy not in ("pmap", "shard_map"):
            problems.append(
                f"precision.gradients: {precision.gradients} is for parallel: pmap and shard_map, not {strategy}; take one "
                "of them, or remove it"
            )
        if config.optimizer.uses_line_search:
            problems.append(
                f"precision.gradients: {precision.gradients} is too coarse for the line search of optimizer "
                f"{config.optimizer.name}; remove it"
            )
    if precision.output is not None and not isinstance(config.model, GPT2Model | DecoderModel):
        problems.append("precision.output is for model gpt2 and decoder; remove it, or take one of them")
    return problems


def _lora_problems(config: Config) -> list[str]:
    if config.trainable is None or config.trained_names == config.trainable:
        return []
    return ["trainable: model.lora trains its own parameters, and no others; remove trainable, or model.lora"]


def _optimizer_problems(config: Config) -> list[str]:
    schedule, optimizer = config.schedule, config.optimizer
    problems = []
    if isinstance(optimizer, Plugin) and schedule != Cosine():
        problems.append(f"schedule: {optimizer.name} returns its own schedule; remove this one")
    if not optimizer.whole_set:
        if (
            isinstance(optimizer, FirstOrder)
            and isinstance(schedule, Curve)
            and schedule.final > optimizer.learning_rate
        ):
            problems.append(
                f"schedule.final {schedule.final:g} is above optimizer.learning_rate {optimizer.learning_rate:g}: "
                "it is the learning rate at the end, as a number; give a lower one"
            )
        return problems
    name = optimizer.name
    if schedule != Cosine():
        problems.append(f"schedule: {name} determines the size of its steps itself; remove the schedule")
    if config.batch_size != "all":
        problems.append(
            f"batch_size {config.batch_size}: {name} compares losses from step to step, so each must be over the "
            "whole training set; give batch_size: all, or another optimizer for mini-batches"
        )
    if config.accumulate > 1:
        problems.append(f"accumulate: {name} evaluates the whole batch at once; remove it, or take another optimizer")
    if dropout := config.dropout:
        problems.append(
            f"model.dropout {dropout:g}: {name} compares losses from step to step, but dropout changes the network at "
            "each step; remove it, or take another optimizer"
        )
    return problems


def _batch_problems(config: Config) -> list[str]:
    if getattr(config.data, "skip", ()) and (config.epochs is not None or config.batch_size == "all"):
        key = "epochs" if config.epochs is not None else "batch_size: all"
        return [
            f"data.skip leaves out batches by their numbers, which {key} has no use for; give steps and a batch_size"
        ]
    if isinstance(config.data, MixtureData) and config.drop_last:
        return ["drop_last: a mixture goes through each source at its own pace and has no epochs; remove it"]
    if isinstance(config.data, MixtureData) and config.epochs is not None:
        return [
            "epochs: a mixture goes through each source at its own pace; give steps (the log has the epochs of each)"
        ]
    if config.batch_size == "all" and examples_of(config.task) == "tokens":
        return ["batch_size: all needs examples that stay the same, but a text is cut into new windows in every epoch"]
    return []


def _stop_problems(config: Config) -> list[str]:
    if config.stop_at is None or config.steps is None or config.stop_at <= config.steps:
        return []
    return [
        f"stop_at: {config.stop_at} is after the last step, {config.steps}; give an earlier one, or raise steps, or remove it"
    ]


def _loss_problems(config: Config) -> list[str]:
    problems = []
    if config.z_loss and examples_of(config.task) not in ("tokens", None):
        problems.append(f"z_loss: only task language_model has it, and the task is {config.task}; remove it")
    if config.skip_nonfinite and config.optimizer.uses_line_search:
        name = config.optimizer.name
        problems.append(
            f"skip_nonfinite: a step of {name} begins with the loss of the step before, and would fail again; remove it"
        )
    return problems


def _memory_problems(config: Config) -> list[str]:
    if not config.checkpoint.memory_every or not config.parallel.model_per_device:
        return []
    return [
        f"checkpoint.memory_every: under parallel {config.parallel.name} each device trains a model of its own, whose "
        "state is kept on disk only; remove the key"
    ]


def _eval_problems(config: Config) -> list[str]:
    problems = []
    if config.validation and examples_of(config.task) not in ("tokens", "pairs", None):
        problems.append(
            f"validation: only language_model and dpo have further sets, and the task is {config.task}; remove it"
        )
    problems += [
        f"validation.{name}.{key}: the key is for `data`; a further validation set is used as a whole; remove it"
        for name, section in config.validation.items()
        for key in ("bring", "skip", "validation", "validation_path", "tokenizer", "tokenizer_file")
        if key in type(section).model_fields and getattr(section, key) != type(section).model_fields[key].default
    ]
    if isinstance(config.data, MixtureData) and (twice := config.data.sources.keys() & config.validation.keys()):
        problems.append(f"validation: {', '.join(sorted(twice))} is the name of a source of data; take another name")
    if config.eval.patience is not None and config.eval.every == 0:
        problems.append(
            f"eval.patience {config.eval.patience} counts evaluations, but there are none before the end (eval.every: 0); "
            "give eval.every"
        )
    if config.task_is_users:
        return problems
    known = {metric: f"{word} {metric}" for word, metric in map(str.split, TASKS[config.task].metrics)}
    best = Ranking.parse(config.eval.best)
    metric = best.metric
    sets, slash, of_set = metric.rpartition("/")
    if slash and sets in evaluated_sets(config):
        metric = of_set
    if config.parallel.model_per_device:
        metric = metric.removeprefix("mean_member_").removeprefix("best_member_")
    if metric not in known:
        names = ", ".join(known)
        problems.append(f"eval.best: an evaluation of task {config.task} has no metric {best.metric!r}; it has {names}")
    elif known[metric].split()[0] != str(best).split()[0]:
        order = known[metric].split()[0]
        problems.append(f"eval.best: {str(best)!r} is the worst evaluation; write '{order} {best.metric}'")
    return problems


def evaluated_sets(config: Config) -> list[str]:
    """Return the names of the validation sets that have metrics of their own."""
    of_data = config.data.sources if isinstance(config.data, MixtureData) else {}
    return [*of_data, *config.validation]


def writes_text(config: Config) -> bool:
    """Return whether the trained model writes text, as far as the job says it: one language model, with a tokenizer."""
    data = config.data
    has_tokenizer = isinstance(data, TextData | PythonSourceData) or getattr(data, "tokenizer_file", None) is not None
    return config.task in ("language_model", "dpo") and not config.parallel.model_per_device and has_tokenizer


def load_config(path: Path) -> Config:
    """Read the job that the launcher has validated and written as JSON. Raises OSError or ValueError."""
    return Config.model_validate_json(path.read_bytes())


SavedConfig = dict[str, Any]
"""A job as JSON: the values of the sections by name. One that was saved may be of another version, with other keys."""


def saved_config(config: Config) -> SavedConfig:
    """Return the job as JSON, as it is saved with its results.

    `launch` is left out, because its environment may hold secrets, and `stop_at`, because it belongs to one run of the job.
    """
    return config.model_dump(mode="json", exclude={"launch", "stop_at"})


def tunable_keys(section: str) -> dict[str, Tunable]:
    """Return the keys of `section` that may change when a job is resumed, each with its `Tunable` mark.

    All classes that the section may be (`model`: GPT2Model, CNN ...) are looked at.
    """
    choices = get_args(Config.model_fields[section].annotation)
    return {
        key: mark
        for choice in choices
        for key, field in choice.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Tunable)
    }


def train_schema() -> dict[str, Any]:
    """Return the JSON Schema of train.yaml, including the short forms that `Named` accepts."""
    schema = Config.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        for key, value in section.get("properties", {}).items():
            if key in ("model", "data", "tokenizer", "optimizer", "schedule", "parallel") and "oneOf" in value:
                described = {k: value.pop(k) for k in ("default", "description") if k in value}
                section["properties"][key] = {"anyOf": [{"type": "string"}, value], **described}
            named = value.get("additionalProperties")
            if isinstance(named, dict) and "oneOf" in named:  # without a name several of them may fit
                value["additionalProperties"] = {"anyOf": [{"type": "string"}, *named["oneOf"]]}
    length = {"anyOf": [{"required": ["steps"]}, {"required": ["epochs"]}]}
    return {"title": "podrun train.yaml", **schema, **length}

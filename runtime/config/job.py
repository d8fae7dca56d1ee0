"""The whole job, and what its sections must agree on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from .base import Natural, Plugin, Positive, Probability, Section
from .data import Data, PythonSourceData
from .model import GPT2Model, Linear, Model
from .optimizer import LBFGS, Adafactor, AdamW, Muon, Optimizer, Schedule
from .parallel import Ensemble, Explicit, Parallel, Pmap
from .sections import Checkpoint, Eval, Launch, Log, Sample

_TEXT = ("text", "python_source", "tokens")
_ARRAYS = ("digits", "idx", "make_classification", "npz", "parquet", "array_record")

MODELS: dict[str, tuple[str, ...]] = {
    "language_model": ("gpt2",),
    "classification": ("cnn", "mlp", "linear"),
    "regression": ("mlp", "linear"),
    "logistic_regression": ("linear",),
}
"""The models that a task can train, its default first."""

DATA: dict[str, tuple[str, ...]] = {
    "language_model": ("python_source", "text", "tokens"),
    "classification": _ARRAYS,
    "regression": ("sine", "npz", "parquet", "array_record"),
    "logistic_regression": ("make_classification", "digits", "idx", "npz", "parquet", "array_record"),
}
"""The data that a task can learn from, its default first."""


def _is_task(name: str) -> str:
    if name not in MODELS and ":" not in name:
        raise ValueError(f"must be one of {', '.join(MODELS)}, or package.module:attribute")
    return name


class Config(Section):
    """A training job."""

    task: Annotated[str, AfterValidator(_is_task)] = "language_model"
    model: Model = GPT2Model()
    data: Data = PythonSourceData()
    optimizer: Optimizer = AdamW()
    schedule: Schedule = Schedule()
    parallel: Parallel = Pmap()
    precision: Literal["float32", "bfloat16"] = Field(
        "float32", description="Type of the computation; parameters are always float32."
    )
    steps: Positive
    batch_size: Positive | Literal["all"] = Field(
        description="Examples per step over all devices; all: the whole training set, kept on the devices."
    )
    accumulate: Positive = Field(1, description="Parts that each device computes its share of a batch in.")
    ema: Probability | None = Field(
        None, description="Decay of a moving average of the parameters, which evaluation then uses."
    )
    seed: Natural = 0
    log: Log = Log()
    eval: Eval = Eval()
    checkpoint: Checkpoint = Checkpoint()
    sample: Sample = Sample()
    launch: Launch = Launch()

    @model_validator(mode="before")
    @classmethod
    def _fill_by_task(cls, values: Any) -> Any:
        """The sections that are not given, or have no name, are the task's own."""
        task = values.get("task") if isinstance(values, dict) else None
        if not isinstance(task, str) or task not in MODELS or task == "language_model":
            return values
        filled = {**values}
        for key, names in (("model", MODELS[task]), ("data", DATA[task])):
            given = values.get(key, {})
            if isinstance(given, dict):
                filled[key] = {"name": names[0], **given}
        if task == "logistic_regression":
            filled.setdefault("batch_size", "all")
            if isinstance(given := values.get("optimizer", {}), dict):
                filled["optimizer"] = {"name": "lbfgs", **given}
        return filled

    @model_validator(mode="after")
    def _check_together(self) -> Config:
        problems = [
            *_task_problems(self),
            *_optimizer_problems(self),
            *_batch_problems(self),
            *_parallel_problems(self),
        ]
        if problems:
            raise ValueError("\n".join(problems))
        return self


def _task_problems(config: Config) -> list[str]:
    problems = []
    for key, section, allowed in (("model", config.model, MODELS), ("data", config.data, DATA)):
        names = allowed.get(config.task)
        if names and not isinstance(section, Plugin) and section.name not in names:
            problems.append(
                f"{key}: {section.name} does not fit task {config.task}, which takes {', '.join(names)} or "
                "package.module:attribute"
            )
    return problems


def _optimizer_problems(config: Config) -> list[str]:
    schedule, optimizer = config.schedule, config.optimizer
    if isinstance(optimizer, LBFGS):
        problems = []
        if schedule != Schedule():
            problems.append("schedule: lbfgs finds the length of its steps itself; remove the schedule")
        if config.batch_size != "all":
            problems.append(
                f"batch_size {config.batch_size}: lbfgs compares losses from step to step, so each must be that of the "
                "whole training set; give batch_size: all, or another optimizer for mini-batches"
            )
        if config.accumulate > 1:
            problems.append("accumulate: lbfgs evaluates the whole batch at once; remove it, or take another optimizer")
        if dropout := getattr(config.model, "dropout", 0.0):
            problems.append(
                f"model.dropout {dropout:g}: lbfgs compares losses from step to step, and with dropout each would be that of "
                "another network; remove it, or take another optimizer"
            )
        return problems
    problems = []
    if schedule.warmup_steps >= config.steps:
        problems.append(
            f"schedule.warmup_steps {schedule.warmup_steps} must be below steps {config.steps}: "
            "give fewer of them, or more steps"
        )
    if not isinstance(optimizer, Plugin) and schedule.final > optimizer.learning_rate:
        problems.append(
            f"schedule.final {schedule.final:g} is above optimizer.learning_rate {optimizer.learning_rate:g}: "
            "it is the learning rate at the end, as a number; give a lower one"
        )
    return problems


def _parallel_problems(config: Config) -> list[str]:
    problems = []
    if isinstance(config.parallel, Ensemble) and isinstance(config.model, Linear):
        problems.append(
            "parallel: ensemble of linear models, which all start from zeros and see the same data, would be copies of "
            "one; take another model, or another way of being parallel"
        )
    divided = isinstance(config.parallel, Explicit) and config.parallel.mesh.fsdp > 1
    if divided and isinstance(config.optimizer, (LBFGS, Muon, Adafactor)):
        problems.append(
            f"parallel: explicit with fsdp does not know how to lay out what {config.optimizer.name} computes; "
            "take parallel.name=jit, or fsdp: 1"
        )
    return problems


def _batch_problems(config: Config) -> list[str]:
    if config.batch_size == "all" and config.task == "language_model":
        return ["batch_size: all is for tasks with examples that stay the same; a text is cut anew in every epoch"]
    return []


def saved_config(config: Config) -> dict[str, Any]:
    """The job as it is kept beside its results: without `launch`, whose environment may hold secrets."""
    return config.model_dump(mode="json", exclude={"launch"})


def train_schema() -> dict[str, Any]:
    """The JSON Schema of train.yaml, with the short forms that `Named` accepts."""
    schema = Config.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        for key, value in section.get("properties", {}).items():
            if key in ("model", "data", "tokenizer", "optimizer", "parallel") and "oneOf" in value:
                described = {k: value.pop(k) for k in ("default", "description") if k in value}
                section["properties"][key] = {"anyOf": [{"type": "string"}, value], **described}
    return {"title": "podrun train.yaml", **schema}

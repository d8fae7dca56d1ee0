"""The built-in tasks: the kind of examples each learns from, and the defaults of a job that names only its task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator

ExampleKind = Literal["tokens", "pairs", "labels", "values"]
"""`tokens`: windows of token ids. `pairs`: two conversations each, one with a chosen and one with a rejected answer.

`labels`: arrays x, each with a class y. `values`: arrays x, each with numbers y."""


@dataclass(frozen=True)
class TaskTraits:
    """Properties of a built-in task. The strings are names of sections."""

    examples: ExampleKind
    """Kind of examples that the task learns from: data must give them, and the model must take them."""
    model: str
    """Default model; `data`, `optimizer` and `batch_size` are defaults likewise."""
    data: str
    optimizer: str = "adamw"
    batch_size: Literal["all"] | None = None
    """None if there is no default: the job has to give one."""
    metrics: tuple[str, ...] = ("min loss",)
    """The metrics of an evaluation, each after min or max: whether a lower or a higher value is better."""
    models: tuple[str, ...] = ()
    """The only models that the task trains; empty: all that take its examples."""


_CLASSES = ("min loss", "max accuracy")

TASKS = {
    "language_model": TaskTraits(
        "tokens", "gpt2", "python_source", metrics=("min loss", "min perplexity", "max accuracy")
    ),
    "dpo": TaskTraits(
        "pairs", "decoder", "prepared", metrics=("min loss", "max accuracy", "max margin"), models=("decoder",)
    ),
    "classification": TaskTraits("labels", "cnn", "digits", metrics=_CLASSES),
    "regression": TaskTraits("values", "mlp", "sine", metrics=("min loss", "min rmse")),
    "logistic_regression": TaskTraits("labels", "linear", "make_classification", "lbfgs", "all", _CLASSES, ("linear",)),
}


def examples_of(task: str) -> ExampleKind | None:
    """Return the kind of examples of a built-in task; None for a user's task."""
    return TASKS[task].examples if task in TASKS else None


def _is_task(name: str) -> str:
    if name not in TASKS and ":" not in name:
        raise ValueError(f"must be one of {', '.join(TASKS)}, or package.module:attribute")
    return name


TaskName = Annotated[str, AfterValidator(_is_task)]

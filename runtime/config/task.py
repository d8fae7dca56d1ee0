"""The built-in tasks: what each learns from, and what a job takes that names no more than the task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator

ExampleKind = Literal["tokens", "labels", "values"]
"""Windows of tokens; arrays x, each with a label y; arrays x, each with values y."""


@dataclass(frozen=True)
class TaskTraits:
    """Properties of a task that the launcher knows as well. Names are those of sections."""

    examples: ExampleKind
    """Kind of examples that it learns from: it fits data that has them, and models that take them."""
    model: str
    """Model of a job that names none; the same for `data`, `optimizer` and `batch_size`."""
    data: str
    optimizer: str = "adamw"
    batch_size: Literal["all"] | None = None
    """None: the job has to give it."""
    models: tuple[str, ...] = ()
    """The only models that it trains; empty: all that take its examples."""


TASKS = {
    "language_model": TaskTraits("tokens", "gpt2", "python_source"),
    "classification": TaskTraits("labels", "cnn", "digits"),
    "regression": TaskTraits("values", "mlp", "sine"),
    "logistic_regression": TaskTraits("labels", "linear", "make_classification", "lbfgs", "all", models=("linear",)),
}


def examples_of(task: str) -> ExampleKind | None:
    """Return the kind of examples of a built-in task; None for a user's, about which nothing is known."""
    return TASKS[task].examples if task in TASKS else None


def _is_task(name: str) -> str:
    if name not in TASKS and ":" not in name:
        raise ValueError(f"must be one of {', '.join(TASKS)}, or package.module:attribute")
    return name


TaskName = Annotated[str, AfterValidator(_is_task)]

"""Sections without choices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from .base import Natural, NaturalFloat, Positive, PositiveFloat, Section


class Log(Section):
    """Destinations of metrics. metrics.jsonl is always written: it is the truth."""

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
    """Text sampled from the model after training; none with tokens 0."""

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
    """Settings of the start. Command-line flags go before these."""

    slice: str | None = Field(None, description="As --slice.")
    pod: Path | None = Field(None, description="As --pod.")
    workdir: Path | None = Field(None, description="As --workdir.")
    python: str | None = Field(None, description="Interpreter on the hosts.")
    process_per: Literal["host", "device"] = Field(
        "host", description="A process for each host, or one for each of its GPUs (not on TPU)."
    )
    env: dict[Variable, str] = Field(default={}, description="Environment variables of the workers.")
    instrument: bool = Field(
        True, description="Help a user program's Python to join the pod and to report its failure."
    )
    start_timeout: PositiveFloat = Field(300.0, description="Seconds until all processes must have joined.")
    stall_timeout: PositiveFloat | None = Field(
        None,
        description="Seconds without progress in a step that count as a hang; other phases get a multiple (default 60). "
        "A user program is only watched if it is given: then it is seconds without output.",
    )
    stop_grace: NaturalFloat = Field(4.0, description="Seconds to reach a point where a stop can save.")
    max_restarts: Natural = Field(0, description="Restarts from the last checkpoint after a failure.")
    max_preemptions: Natural | None = Field(
        None, description="Restarts after a preemption; without it 100, or none if max_restarts is 0."
    )

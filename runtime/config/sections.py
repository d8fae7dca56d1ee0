"""Sections of train.yaml that are not seams: log, eval, checkpoint, sample, launch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SerializerFunctionWrapHandler, model_serializer

from ..events import SHOWN
from ..ranking import Ranking
from .base import PLUGIN_PATTERN, Natural, NaturalFloat, Positive, PositiveFloat, Section
from .launch import Launch
from .xla_presets import unknown_presets


class Log(Section):
    """Destinations of metrics. metrics.jsonl is always written and has all of them."""

    every: Positive = Field(
        10, description="Steps between two lines of metrics; a line is about its own step, not a mean over several."
    )
    show: tuple[str, ...] = Field(
        SHOWN,
        description="Metrics on the console's line of a step, in `status` and in `ps`, by their names in metrics.jsonl; all "
        "of them are on the page of the run.",
    )
    tensorboard: bool = Field(True, description="Write metrics for TensorBoard, to tensorboard/ in the workdir.")
    wandb: str | None = Field(None, description="Weights & Biases project to report to (podrun[wandb]); null: none.")
    tracker: str | None = Field(
        None,
        pattern=PLUGIN_PATTERN,
        description="Your connection to another experiment tracker, package.module:attribute: an object with `start`, `log` "
        "and `end`, which is called without arguments to make it (docs/plugins.md); null: none.",
    )


def _is_ranking(text: str) -> str:
    return str(Ranking.parse(text))


class Dpo(Section):
    """Direct preference optimization (Rafailov et al. 2023)."""

    beta: PositiveFloat = Field(
        0.1,
        description="How strongly the model is held to what it was before: the lower, the further it may move away.",
    )


class Eval(Section):
    """Validation during training and after it."""

    every: Natural = Field(100, description="Steps between two evaluations; 0: only after training.")
    batches: Positive | Literal["all"] = Field(20, description="Batches per evaluation; all: the whole split, exactly.")
    best: Annotated[str, AfterValidator(_is_ranking)] = Field(
        "min loss",
        description="What makes an evaluation the best: min or max, and one of its metrics, such as max accuracy. It "
        "decides which checkpoints keep_best keeps, which one --step best is, and when patience ends.",
    )
    patience: Positive | None = Field(
        None,
        description="Evaluations in a row without a better one than the best so far, after which training ends early; "
        "null: it never does.",
    )


DType = Literal["float32", "bfloat16"]


class Precision(Section):
    """Data types of a job. Parameters that are trained and the optimizer's state are always float32."""

    compute: DType = Field(
        "float32", description="Data type of the computation. bfloat16 is faster on TPUs and new GPUs."
    )
    frozen: DType = Field(
        "float32",
        description="Data type of the parameters that are not trained (trainable, model.lora); bfloat16 takes half of the "
        "memory.",
    )
    gradients: DType = Field(
        "float32",
        description="Data type in which pmap and shard_map sum the gradients over the devices. bfloat16 sends half of the "
        "bytes. Microbatches and the optimizer add in float32.",
    )
    output: DType | None = Field(
        None,
        description="Data type in which gpt2 and decoder compute their outputs, the logits, which become float32 then; null: "
        "that of the computation.",
    )

    @model_serializer(mode="wrap")
    def _short(self, default: SerializerFunctionWrapHandler) -> Any:
        """Write `bfloat16` for `{compute: bfloat16}`, and no newer keys unless they are used: older versions know neither."""
        values = default(self)
        given = {name: value for name, value in values.items() if value != type(self).model_fields[name].default}
        return self.compute if given.keys() <= {"compute"} else {"compute": self.compute, **given}


def _of_computation(value: Any) -> Any:
    return {"compute": value} if isinstance(value, str) else value


AnyPrecision = Annotated[Precision, BeforeValidator(_of_computation, json_schema_input_type=DType | Precision)]


class Checkpoint(Section):
    """Complete training state: asynchronous, atomic, restored onto any slice."""

    every: Natural | Literal["auto"] = Field(
        100,
        description="Steps between two checkpoints, the most that a fault can cost; 0: only at the end; auto: as often as "
        "training stops for at most 1 % of the time, and never before the last one is complete (docs/checkpoints.md).",
    )
    memory_every: Natural = Field(
        0,
        description="Steps between two checkpoints in the memory of the hosts, of which each has a copy on another host: a "
        "process or host that is lost then costs at most so many steps, and a restart reads no disk or bucket "
        "(docs/checkpoints.md); 0: none.",
    )
    keep: Positive = Field(2, description="Newest checkpoints to keep; older ones are removed.")
    keep_best: Natural = Field(1, description="Checkpoints with the best evaluations (eval.best) to keep in addition.")


class Sample(Section):
    """Text sampled from the model after training; none with tokens 0."""

    tokens: Natural = Field(200, description="Length of the text in tokens; 0: none.")
    prompt: str = Field("\n", description="Text that the sample continues.")
    temperature: PositiveFloat = Field(
        0.8, description="Divides the logits: below 1 likely tokens are preferred, above 1 the text is more random."
    )
    top_k: Natural = Field(0, description="Sample among the k most likely tokens only; 0: among all.")


def _is_variable(name: str) -> str:
    if not name or "=" in name:
        raise ValueError("the name of an environment variable must not be empty or contain =")
    return name


Variable = Annotated[str, AfterValidator(_is_variable)]


def _listed(names: Any) -> Any:
    return [names] if isinstance(names, str) else names


def _are_presets(names: tuple[str, ...]) -> tuple[str, ...]:
    if problem := unknown_presets(names):
        raise ValueError(problem)
    return names


XLAPresets = Annotated[
    tuple[str, ...],
    AfterValidator(_are_presets),
    BeforeValidator(_listed, json_schema_input_type=str | tuple[str, ...]),
]


class LaunchSection(Section, Launch):
    """How a run is launched. Command-line options override these keys."""

    slice: str | None = Field(
        Launch.slice, description="What the pod is, such as v3-32 or cpu-2x4; --slice overrides it."
    )
    pod: Path | None = Field(Launch.pod, description="Pod file, which says where the hosts are; --pod overrides it.")
    workdir: Path | None = Field(
        Launch.workdir,
        description="Folder of the results, or gs://..., s3://...; --workdir overrides it. Without either: runs/NAME.",
    )
    python: str | None = Field(
        Launch.python,
        description="Interpreter on the hosts, for example /opt/venv/bin/python; without it the one of the pod file.",
    )
    process_per: Literal["host", "device"] = Field(
        Launch.process_per,
        description="Start one process per host, or one per device: a GPU, or a CPU device. A TPU host has one.",
    )
    env: dict[Variable, str] = Field(
        default={},
        description="Environment variables of the workers, by name; secrets belong under `secrets` in the pod file.",
    )
    xla: XLAPresets = Field(
        Launch.xla,
        description="Presets of XLA's flags, by name, for what the slice has: on TPUs latency_hiding, async_collectives, "
        "reduce_scatter_layout, overlap_between_slices; on GPUs latency_hiding, pipelined_collectives, "
        "large_collectives, deterministic (docs/compile.md).",
    )
    instrument: bool = Field(
        Launch.instrument,
        description="Help a user's Python program to join the pod and to report its failure; false: leave it alone.",
    )
    join: bool = Field(
        Launch.join,
        description="Join a user's Python program to the pod when it imports JAX, for programs that never call "
        "jax.distributed.initialize() or podrun.init(); --join sets it.",
    )
    start_timeout: PositiveFloat = Field(
        Launch.start_timeout, description="Seconds within which all processes must join; raise it for very large pods."
    )
    stall_timeout: PositiveFloat | None = Field(
        Launch.stall_timeout,
        description="Seconds without progress in a step that count as a hang (default 60); other phases get a multiple. "
        "A user program is watched only if this is given: then it is seconds without output.",
    )
    stop_grace: NaturalFloat = Field(
        Launch.stop_grace,
        description="Seconds that a process may take to begin saving after it was asked to stop; raise it for longer steps.",
    )
    verify_every: Natural = Field(
        Launch.verify_every,
        description="Steps between two comparisons, bit for bit, of what all processes hold and compute alike, which name a "
        "host that computes wrongly (docs/replay.md); 0: none. Not for a user program.",
    )
    max_restarts: Natural = Field(
        Launch.max_restarts, description="Restarts from the last checkpoint after a failure; 0: a failure ends the run."
    )
    max_preemptions: Natural | None = Field(
        Launch.max_preemptions, description="Restarts after preemptions; default 100, or none if max_restarts is 0."
    )

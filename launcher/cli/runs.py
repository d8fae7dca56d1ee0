"""Commands about runs that exist: `ps`, `status`, `logs`, `report`, `watch`, `attach` and others; `root.py` adds them."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .guard import TYPED, guard
from .options import complete_slice, pod_options

if TYPE_CHECKING:
    from ..commands.model_source import Step


def _parse_step(ctx: click.Context, param: click.Parameter, value: str | None) -> Step:
    if value is None:
        return None
    if value == "best":
        return "best"
    if not re.fullmatch("[0-9]{1,18}", value, re.ASCII):
        raise click.BadParameter(f"{value!r} is not a step; give a number, or best", ctx, param)
    return int(value)


def _finite(ctx: click.Context, param: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number", ctx, param)
    return value


STATES = ("pending", "running", "done", "failed", "interrupted", "abandoned")
"""Values of `run_summary.RunStatus`, which is not imported for the help."""

_step = click.option(
    "--step",
    callback=_parse_step,
    metavar="N|best",
    help="The checkpoint of this step; best: of the best evaluation (eval.best).  [default: the newest]",
)


@click.command()
@click.option("--all", "-a", "show_all", is_flag=True, help="List all runs, not just the latest that have ended.")
@click.option("--name", metavar="TEXT", help="List all runs with this text in their name.")
@click.option("--tag", metavar="TEXT", help="List all runs with this tag.")
@click.option("--state", type=click.Choice([*STATES]), help="List all runs in this state.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def ps(show_all: bool, name: str | None, tag: str | None, state: str | None, as_json: bool) -> None:
    """List your runs: all that are still going, and the latest that have ended.

    \b
    States: running, done, failed CODE, interrupted, and abandoned. The launcher of an abandoned
    run is gone: `podrun attach RUN` takes the run over, `podrun stop RUN` ends it.
    """

    def action() -> int:
        from ..commands.ps import PsRequest, ps

        return ps(PsRequest(show_all, as_json, name, tag, state))

    guard(action)


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def status(run: str | None, as_json: bool) -> None:
    """Show what every process of a run is doing, or how the run ended; of an array, a row for each of its runs.

    RUN is the name of a run, or a part of its id; the id of an array, or its end; without it, the newest run or array.

    \b
    Example: podrun status 4f2a
    """

    def action() -> int:
        from ..rundir.arrays import find_array

        if array := find_array(run):
            from ..commands.arrays import array_status

            return array_status(array, as_json)
        from ..commands.status import status

        return status(run, as_json)

    guard(action)


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@click.option(
    "--follow", "-f", is_flag=True, help="Follow the output until the run ends; Ctrl-C does not stop the run."
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Only output of this host: tpu-0, or tpu-[0-3]; may be repeated.",
)
@click.option("--since", metavar="TIME", help="Only what arrived since then: 10m (ago), 10:30, or 2026-01-31T10:30.")
@click.option(
    "--lines",
    "-n",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only the last N lines of each process.  [with -f: 20]",
)
@click.option("--raw", is_flag=True, help="Show every byte unchanged, also control characters.")
def logs(
    run: str | None, follow: bool, hosts: tuple[str, ...], since: str | None, lines: int | None, raw: bool
) -> None:
    """Show the output of a run's processes, in the order of its arrival; of an array, that of one run after the other.

    RUN is the name of a run, or a part of its id; the id of an array, or its end; without it, the newest run or array.
    Colours stay; other control characters are shown as text, such as \\x1b.

    \b
    Examples:
      podrun logs -f
      podrun logs 4f2a --host tpu-3 -n 100
      podrun logs 4f2a --since 10m | grep -i error
    """

    def action() -> int:
        from ..commands.logs import LogsRequest
        from ..commands.logs import logs as show
        from ..rundir.arrays import find_array

        request = LogsRequest(run, follow, hosts, since, lines, raw)
        if array := find_array(run):
            from ..commands.arrays import array_logs

            return array_logs(array, request)
        return show(request)

    guard(action)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines.")
@click.argument("run", required=False, metavar="[RUN]")
def attach(run: str | None, as_json: bool) -> None:
    """Watch a run, or all runs of an array, from any shell; Ctrl-C does not stop them.

    RUN is the name of a run, or a part of its id; the id of an array, or its end; without it, the newest run or array.
    The exit code is that of the run; of an array, that of its first run that has failed.

    \b
    Example: podrun attach 4f2a
    """

    def action() -> int:
        from ..rundir.arrays import find_array

        if array := find_array(run):
            from ..commands.arrays import attach_array

            return attach_array(array, as_json)
        from ..commands.attach import attach

        return attach(run, as_json)

    guard(action)


@click.command()
@click.option("--now", is_flag=True, help="Do not wait for a checkpoint.")
@click.argument("run", required=False, metavar="[RUN]")
def stop(run: str | None, now: bool) -> None:
    """Stop a run, or all runs of an array; they save a checkpoint first, as after Ctrl-C.

    RUN is the name of a run, or a part of its id, or the id of an array, or its end; without it, the only run that is going.

    \b
    Example: podrun stop 4f2a
    """

    def action() -> int:
        from ..rundir.arrays import find_array

        if run is not None and (array := find_array(run)):
            from ..commands.arrays import stop_array

            return stop_array(array, now)
        from ..commands.stop import stop

        return stop(run, now)

    guard(action)


def _complete_results(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the completions of `incomplete`; for the first word also the runs."""
    from ..results.selection import KINDS
    from ..rundir.runs import all_runs

    runs = [] if ctx.params.get("words") else [run.run_id for run in all_runs()]
    return [word for word in [*KINDS, *runs] if word.startswith(incomplete)]


@click.command()
@click.argument(
    "words",
    nargs=-1,
    metavar="[RUN|URL] [metrics|samples|checkpoints|logs|files|STEP ...]",
    shell_complete=_complete_results,
)
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the results.  [default: pulled/NAME-OF-THE-WORKDIR]",
)
def pull(words: tuple[str, ...], to: Path | None) -> None:
    """Download the results of a run: all, or only metrics, samples, checkpoints, logs, or the checkpoints of some steps.

    RUN is the name of a run, or a part of its id; without it, the newest run. The run may still be going.
    URL is a workdir in a bucket, of any run: gs://BUCKET/PATH or s3://BUCKET/PATH.
    Every digest is verified. A further call downloads only what is missing, also after an interruption.
    files: what a program wrote beside its code on each host, to files/HOST; before restarts, to files/HOST.earlier-1 ...
    The folder can be used as a workdir: the same job with --workdir DIR resumes from its newest checkpoint.

    \b
    Exit code: 0 complete, 1 a checkpoint is damaged on its host, 69 the host or bucket cannot be reached.

    \b
    Examples:
      podrun pull
      podrun pull 4f2a metrics 2000 --to results
      podrun pull gs://my-bucket/train checkpoints
    """

    def action() -> int:
        from ..commands.pull import pull as pull_request

        return pull_request(words, to)

    guard(action)


@click.command()
@click.argument("target", required=False, metavar="[RUN|WORKDIR|CHECKPOINT|URL]")
@_step
@click.option(
    "--format",
    "form",
    type=click.Choice(["safetensors", "npz", "hf", "peft"]),
    default="safetensors",
    show_default=True,
)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File or folder to write, which must not exist.  [default: WORKDIR-STEP.FORMAT in the current folder]",
)
def export(target: str | None, step: Step, form: str, output: Path | None) -> None:
    """Write the model of a checkpoint to one file, or to a folder that transformers (hf) or PEFT opens (peft).

    The file has the model's arrays by name: the moving average if the job has one (ema), else the parameters. Config and
    tokenizer are in its metadata, a BPE tokenizer also in a tokenizer.json beside it. The checkpoint is verified first.
    Of a job with LoRA, hf has the whole model with A B added to its matrices, and peft only A and B.

    \b
    Examples:
      podrun export                     # the newest run
      podrun export runs/train --step 2000 --format npz -o model.npz
      podrun export s3://my-bucket/train
      podrun export 4f2a --format hf -o my-model
    """

    def action() -> int:
        from ..commands.export import export as execute_request

        return execute_request(target, step, form, output)

    guard(action)


@click.command()
@click.argument("target", required=False, metavar="[RUN|WORKDIR]")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write.  [default: report-RUN.html in the current folder]",
)
def report(target: str | None, output: Path | None) -> None:
    """Write a report on a run: one HTML file that loads nothing from elsewhere.

    It shows how the run ended and why, curves, where the time went, slow processes, what was run, and the last lines of the
    logs. RUN is the name of a run, or a part of its id; without it, the newest run. The report on a WORKDIR has the steps of
    all its runs.

    \b
    Examples:
      podrun report
      podrun report 4f2a -o tiny.html
      podrun report runs/gpt2_tiny
    """

    def action() -> int:
        from ..commands.report import report as write_report

        return write_report(target, output)

    guard(action)


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@click.option(
    "--hosts",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="Number of hosts.  [default: as many as the run has]",
)
@click.option(
    "--mtbf",
    metavar="TIME",
    help="Time between two failures of one host: 30d, 12h.  [default: as on the run's record]",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def forecast(run: str | None, hosts: int | None, mtbf: str | None, as_json: bool) -> None:
    """Forecast the goodput of a run on a pod of any size, the best interval between saves, and what would help most.

    The times to save, restore and start again, and the failures, are those on the record of the run. RUN is the name of a
    run, or a part of its id; without it, the newest run.

    \b
    Examples:
      podrun forecast 4f2a
      podrun forecast 4f2a --hosts 1024 --mtbf 30d
    """

    def action() -> int:
        from ..commands.forecast import forecast as show

        return show(run, hosts, mtbf, as_json)

    guard(action)


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="Port of the page.  [default: a free one]")
@click.option("--open", "open_browser", is_flag=True, help="Open the page in a browser.")
def watch(run: str | None, port: int | None, open_browser: bool) -> None:
    """Serve a live page of a run, which shows each step within a second. Ctrl-C ends the page, not the run.

    RUN is the name of a run, or a part of its id; without it, the newest run. The page leads to all other runs, and to
    plots of several runs. Only this machine can connect, and only with the token in the printed address.

    \b
    Examples:
      podrun watch --open
      podrun watch 4f2a
    """

    def action() -> int:
        from ..commands.watch import watch as serve

        return serve(run, port or 0, open_browser=open_browser)

    guard(action)


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@click.option(
    "--steps", type=click.IntRange(1, 100), default=5, metavar="N", help="Number of steps to trace.  [default: 5]"
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME",
    help="Host to trace: tpu-0, or tpu-[0-3]; may be repeated.  [default: the host of process 0]",
)
@click.option(
    "--to", type=click.Path(path_type=Path), metavar="DIR", help="Folder for the trace.  [default: the run directory]"
)
def profile(run: str | None, steps: int, hosts: tuple[str, ...], to: Path | None) -> None:
    """Record a profiler trace of the next steps of a run, and download it.

    The traced steps take longer, but their results do not change. RUN is the name of a run, or a part of its id; without it,
    the newest run. Ctrl-C cancels the trace; the run continues.

    \b
    Examples:
      podrun profile
      podrun profile 4f2a --steps 10 --host tpu-[0-1]
    """

    def action() -> int:
        from ..commands.profile_run import profile as trace

        return trace(run, steps, hosts, to)

    guard(action)


@click.command()
@click.argument("target", required=False, metavar="[RUN|WORKDIR|CHECKPOINT|URL|FOLDER]")
@click.option("--prompt", "-p", metavar="TEXT", help="Text to continue; - reads it from stdin.")
@click.option(
    "--batch",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Continue each line of a file, and print a line of JSON for each.",
)
@click.option(
    "--tokens",
    "-n",
    type=click.IntRange(min=1),
    metavar="N",
    help="Most tokens of a text.  [default: 128, or as many as the model's context has room for]",
)
@click.option(
    "--temperature",
    type=click.FloatRange(min=0),
    default=1.0,
    callback=_finite,
    show_default=True,
    metavar="NUMBER",
    help="Divides the logits; 0 takes the most likely token each time.",
)
@click.option(
    "--top-k", type=click.IntRange(min=0), default=0, metavar="N", help="Draw from the N most likely tokens only."
)
@click.option(
    "--top-p",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=1.0,
    callback=_finite,
    metavar="SHARE",
    help="Draw from the fewest tokens that have this share of the probability together.",
)
@click.option(
    "--min-p",
    type=click.FloatRange(min=0, max=1),
    default=0.0,
    callback=_finite,
    metavar="SHARE",
    help="Leave out tokens with less than this share of the largest probability.",
)
@click.option(
    "--seed", type=click.IntRange(min=0, max=2**32 - 1), default=0, show_default=True, metavar="N", help="Of the draws."
)
@click.option(
    "--stop", "stops", multiple=True, metavar="TEXT", help="End before this text; may be given several times."
)
@_step
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="A tokenizer.json, for a model that was trained on token files.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a line of JSON with prompt and text.")
@click.option("--local", is_flag=True, help="Use the GPUs or TPUs of this machine.")
@click.option("--slice", "-s", metavar="TYPE", shell_complete=complete_slice, help="Devices, if not all: gpu-1x4.")
@click.option("--simulate", is_flag=True, help="Use the slice's number of virtual CPU devices.")
def generate(
    target: str | None,
    prompt: str | None,
    batch: Path | None,
    tokens: int | None,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    seed: int,
    stops: tuple[str, ...],
    step: Step,
    tokenizer: Path | None,
    as_json: bool,
    local: bool,
    slice: str | None,
    simulate: bool,
) -> None:
    """Continue a text by a trained model, on this machine's CPU, or its GPUs or TPUs.

    The model is that of a checkpoint, or a published one in a folder that transformers has written. Text appears as it is
    written. The same seed gives the same text. The model `decoder` caches what it has computed for earlier tokens; other
    models compute the whole text again for each token. A model that is too large for a device is divided over all of them.

    \b
    Examples:
      podrun generate 4f2a --prompt "To be, or"
      podrun generate runs/train -p "Once upon" --temperature 0.8 --top-k 40 --tokens 256
      podrun generate Llama-3.2-1B -p "The capital of France is" --temperature 0 --stop .
      podrun generate 4f2a --batch prompts.txt > texts.jsonl
      podrun generate Llama-3.1-70B -p "Once upon" --local
    """

    def action() -> int:
        from podrun.runtime.queries import SamplingFields

        from ..commands.generate import GenerateRequest
        from ..commands.generate import generate as write
        from ..inventory.pod_request import PodRequest

        sampling = SamplingFields(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
        chosen = {"local": local, "simulate": simulate}
        where = PodRequest(slice, inventories={name: True for name, given in chosen.items() if given})
        return write(
            GenerateRequest(target, step, prompt, batch, tokens, sampling, seed, stops, tokenizer, as_json, where)
        )

    guard(action)


def _task_names(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in (value or "").split(",")) if value is not None else ()
    if "" in names:
        raise click.BadParameter("a name is empty; give names with commas between them: hellaswag,arc_easy")
    return names


@click.command()
@click.argument("words", nargs=-1, metavar="[RUN|WORKDIR|CHECKPOINT|URL|FOLDER] [key.path=value ...]")
@_step
@click.option(
    "--data",
    metavar="PATH",
    help="File, folder or pattern with other data, or with the run's data at another place.  [default: the data of the run]",
)
@click.option(
    "--tokenizer",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    metavar="FILE",
    help="A tokenizer.json for a text, if the model has none.",
)
@click.option("--metric", "metrics", multiple=True, metavar="NAME", help="Print this metric only; may be repeated.")
@click.option(
    "--lm-eval",
    "tasks",
    callback=_task_names,
    metavar="TASK,...",
    help="Tasks of EleutherAI's lm-evaluation-harness in place of data: names or YAML files.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Examples of each task.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@pod_options()
@click.pass_context
def evaluate(
    ctx: click.Context,
    /,
    words: tuple[str, ...],
    step: Step,
    data: str | None,
    tokenizer: Path | None,
    metrics: tuple[str, ...],
    tasks: tuple[str, ...],
    limit: int | None,
    as_json: bool,
    **where: Any,
) -> None:
    """Compute the validation metrics of a trained model, on this machine's CPU, or on a pod.

    The model is that of a checkpoint, or a published one in a folder that transformers has written. The metrics are those
    of the run's own validation, over as many batches (`eval.batches`), up to rounding; with `ema`, of the averaged
    parameters. Other data is evaluated completely, but files of arrays only in their part for validation. A published model
    needs --data with a text.

    With options that name a pod, as for training, its hosts evaluate the checkpoint together, and need memory for their
    parts of the parameters only. The run's mesh may be replaced: parallel.mesh.fsdp=4.

    \b
    Examples:
      podrun evaluate                   # the newest run
      podrun evaluate runs/train --step best --json
      podrun evaluate runs/train --data other.txt
      podrun evaluate Llama-3.2-1B --data notes.txt
      podrun evaluate Llama-3.2-1B --lm-eval hellaswag,arc_easy --limit 200
      podrun evaluate runs/train --pod pod.yaml --slice v5e-16
    """

    def action() -> int:
        from ..commands.evaluate import EvaluateRequest
        from ..commands.evaluate import evaluate as measure
        from ..inventory.pod_request import PodRequest

        has_target = bool(words) and ("=" not in words[0] or Path(words[0]).exists())
        target, overrides = (words[0], words[1:]) if has_target else (None, words)
        pod = PodRequest.from_options(where)
        typed = tuple(ctx.meta.get(TYPED, ()))
        return measure(
            EvaluateRequest(target, step, data, tokenizer, metrics, as_json, pod, tasks, limit, overrides, typed)
        )

    guard(action)


def _replayed_steps(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, int]:
    if not re.fullmatch("[0-9]{1,12}(-[0-9]{1,12})?", value, re.ASCII) or int(value.partition("-")[0]) < 1:
        raise click.BadParameter(
            f"{value!r} is not a step; give a number, or the first and the last, such as 1190-1210"
        )
    first, _, last = value.partition("-")
    if last and int(last) < int(first):
        raise click.BadParameter(f"{value!r} ends before it begins; write {last}-{first}")
    return int(first), int(last or first)


def _hosts(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(",")) if value is not None else ()
    if "" in names:
        raise click.BadParameter("a name is empty; give names with commas between them: host-0,host-3")
    return names


@click.command()
@click.argument("run", metavar="[RUN]", required=False)
@click.option(
    "--step", callback=_replayed_steps, required=True, metavar="N|A-B", help="The step to compute again, or the range."
)
@click.option(
    "--on", callback=_hosts, metavar="HOST,...", help="Hosts of the pod, as `podrun logs` names them.  [default: all]"
)
@click.option(
    "--times", type=click.IntRange(1, 20), default=3, metavar="N", help="Number of repetitions.  [default: 3]"
)
@click.option(
    "--inject",
    multiple=True,
    metavar="FAULT",
    help="In a simulated pod: rehearse wrong_sum or bitflip, such as wrong_sum:host=2.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
@pod_options()
@click.pass_context
def replay(
    ctx: click.Context,
    /,
    run: str | None,
    step: tuple[int, int],
    on: tuple[str, ...],
    times: int,
    inject: tuple[str, ...],
    as_json: bool,
    **where: Any,
) -> None:
    """Compute steps of a run again from its checkpoint, and say which host computes otherwise.

    The newest checkpoint before the steps is restored in whole, and the steps after it are repeated on all hosts. Digests of
    each parameter and gradient are compared, bit for bit: between repetitions, between hosts, with the digests that the run
    has recorded (launch.verify_every), and with its checkpoint of the last step. Nothing is written to the workdir. Without
    RUN it is the newest run that trains; without options that name a pod, the hosts are those of the run.

    \b
    Exit code: 0 the same everywhere, 78 a host computes or has computed wrongly, 2 the program is
    not deterministic, or the record cannot be read.

    \b
    Examples:
      podrun replay --step 1200                           # of the newest run
      podrun replay RUN --step 1195-1205 --times 5 --json
      podrun replay RUN --step 1200 --on host-3
      podrun replay RUN --step 1200 --pod other.yaml
      podrun replay RUN --step 1200 --inject wrong_sum:host=2    # on a simulated pod
    """

    def action() -> int:
        from ..commands.replay import ReplayRequest
        from ..commands.replay import replay as compute_again
        from ..inventory.pod_request import PodRequest

        pod = PodRequest.from_options(where)
        typed = tuple(ctx.meta.get(TYPED, ()))
        return compute_again(ReplayRequest(run, *step, on, times, inject, as_json, pod, typed))

    guard(action)


def _step_range(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, int] | None:
    if value is None:
        return None
    if not re.fullmatch("[0-9]{1,12}(:[0-9]{1,12})?", value, re.ASCII):
        raise click.BadParameter(
            f"{value!r} is not a step; give a number, or the first and the last, such as 1190:1210"
        )
    first, _, last = value.partition(":")
    return int(first), int(last or first)


@click.command()
@click.argument("target", metavar="RUN|WORKDIR")
@click.option(
    "--step",
    "steps",
    callback=_step_range,
    metavar="STEP[:LAST]",
    help="A step, or the first and the last of several.",
)
@click.option("--around-spike", is_flag=True, help="The steps before the largest jump of the loss.")
@click.option("--full", is_flag=True, help="Print the whole text of each example.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def batches(target: str, steps: tuple[int, int] | None, around_spike: bool, full: bool, as_json: bool) -> None:
    """Print the examples that steps of a run have seen: source, document, place and text.

    They are computed again from the run's seed and its data, which must be on this machine at the same path. To train without
    them, resume from an earlier checkpoint with these steps in `data.skip`.

    \b
    Examples:
      podrun batches 4f2a --step 1200
      podrun batches runs/train --step 1190:1210 --full
      podrun batches runs/train --around-spike
    """

    def action() -> int:
        from ..commands.batches import batches as show

        if (steps is None) != around_spike:
            raise click.UsageError("give either --step or --around-spike")
        return show(target, steps, full, as_json)

    guard(action)


COMMANDS: tuple[click.Command, ...] = (
    ps,
    status,
    logs,
    report,
    forecast,
    watch,
    profile,
    attach,
    stop,
    pull,
    export,
    generate,
    evaluate,
    replay,
    batches,
)

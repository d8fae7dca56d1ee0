"""Commands about runs that exist: `ps`, `status`, `logs`, `report`, `watch`, `attach` and others; `root.py` adds them."""

from __future__ import annotations

from pathlib import Path

import click

from .guard import guard


@click.command()
@click.option("--all", "-a", "show_all", is_flag=True, help="All that ended, too, not just the last ones.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def ps(show_all: bool, as_json: bool) -> None:
    """List your runs: those that go on, and the last that ended.

    \b
    States: running, done, failed CODE, interrupted, and abandoned: not ended, but its
    launcher is gone; `podrun attach RUN` takes it over, `podrun stop RUN` ends it.
    """

    def action() -> int:
        from ..commands.ps import ps

        return ps(show_all, as_json)

    guard(action)


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def status(run: str | None, as_json: bool) -> None:
    """Say what every process of a run does, or how the run ended.

    RUN is the beginning or the end of a run's id; without it, the newest run.

    \b
    Example: podrun status 4f2a
    """

    def action() -> int:
        from ..commands.status import status

        return status(run, as_json)

    guard(action)


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run ends; Ctrl-C leaves it alone.")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="Only of this host: tpu-0, or tpu-[0-3].")
@click.option("--since", metavar="TIME", help="What arrived after that: 10m ago, or at 10:30 or 2026-01-31T10:30.")
@click.option(
    "--lines", "-n", type=click.IntRange(min=0), metavar="N", help="Only the last N of each process.  [with -f: 20]"
)
@click.option("--raw", is_flag=True, help="Every byte as it was printed, also those that a terminal obeys.")
def logs(
    run: str | None, follow: bool, hosts: tuple[str, ...], since: str | None, lines: int | None, raw: bool
) -> None:
    """Show what the processes of a run printed, in the order in which it arrived here.

    RUN is the beginning or the end of a run's id; without it, the newest run.
    Control characters are shown as \\x1b and the like; colours stay.

    \b
    Examples:
      podrun logs -f
      podrun logs 4f2a --host tpu-3 -n 100
      podrun logs 4f2a --since 10m | grep -i error
    """

    def action() -> int:
        from ..commands.logs import LogsRequest
        from ..commands.logs import logs as show

        return show(LogsRequest(run, follow, hosts, since, lines, raw))

    guard(action)


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines.")
@click.argument("run", required=False, metavar="[RUN]")
def attach(run: str | None, as_json: bool) -> None:
    """Watch a run, from any shell; Ctrl-C leaves it running. RUN: its id or the end of it; the newest without.

    \b
    Example: podrun attach 4f2a
    """

    def action() -> int:
        from ..commands.attach import attach

        return attach(run, as_json)

    guard(action)


@click.command()
@click.option("--now", is_flag=True, help="Do not wait for a checkpoint.")
@click.argument("run", required=False, metavar="[RUN]")
def stop(run: str | None, now: bool) -> None:
    """End a run: it saves a checkpoint, as after Ctrl-C. RUN: its id or the end of it; the only one that runs without.

    \b
    Example: podrun stop 4f2a
    """

    def action() -> int:
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
    metavar="[RUN|URL] [metrics|samples|checkpoints|logs|STEP ...]",
    shell_complete=_complete_results,
)
@click.option("--to", type=click.Path(path_type=Path), metavar="DIR", help="[default: pulled/NAME-OF-THE-WORKDIR]")
def pull(words: tuple[str, ...], to: Path | None) -> None:
    """Bring the results of a run here: all of them, or metrics, samples, checkpoints, logs, or checkpoints by step.

    RUN is the beginning or the end of a run's id; without it, the newest run. It may still go on.
    URL is a workdir in a bucket, of any run: gs://BUCKET/PATH or s3://BUCKET/PATH.
    Every digest is verified. Called again it brings only what is missing, also after an interruption.
    DIR can be used as a workdir: the same job with --workdir DIR goes on from its newest checkpoint.

    \b
    Exit code: 0 all is here, 1 a checkpoint is damaged on its host, 69 the host or bucket cannot be reached.

    \b
    Examples:
      podrun pull
      podrun pull 4f2a metrics 2000 --to results
      podrun pull gs://my-bucket/train checkpoints
    """

    def action() -> int:
        from ..commands.pull import PullRequest
        from ..commands.pull import pull as pull_request

        return pull_request(PullRequest(words, to))

    guard(action)


@click.command()
@click.argument("target", metavar="RUN|WORKDIR|URL")
@click.option(
    "--step", type=click.IntRange(min=0), metavar="N", help="The checkpoint of this step.  [default: the newest]"
)
@click.option("--format", "form", type=click.Choice(["safetensors", "npz"]), default="safetensors", show_default=True)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="A new file.  [default: WORKDIR-STEP.FORMAT, here]",
)
def export(target: str, step: int | None, form: str, output: Path | None) -> None:
    """Write the model of a checkpoint to one file, under the names that it gives its arrays.

    The weights are those that are evaluated: the moving average if the job has one (ema), else the parameters. Config
    and tokenizer are in the file's metadata, a BPE also in a tokenizer.json beside it. The checkpoint is verified first.

    \b
    Examples:
      podrun export 4f2a
      podrun export runs/train --step 2000 --format npz -o model.npz
      podrun export s3://my-bucket/train
    """

    def action() -> int:
        from ..commands.export import ExportRequest
        from ..commands.export import export as execute_request

        return execute_request(ExportRequest(target, step, form, output))

    guard(action)


@click.command()
@click.argument("target", required=False, metavar="[RUN|WORKDIR]")
@click.option(
    "--output", "-o", type=click.Path(path_type=Path), metavar="FILE", help="[default: report-RUN.html, here]"
)
def report(target: str | None, output: Path | None) -> None:
    """Write a page about a run: one HTML file, which opens from disk and loads nothing.

    How it ended and why, curves, where the time went, who is slow, what was run, the last lines of the logs. RUN is the
    beginning or the end of a run's id; without it, the newest run. Of a WORKDIR the page has the steps of all its runs.

    \b
    Examples:
      podrun report
      podrun report 4f2a -o tiny.html
      podrun report runs/gpt2_tiny
    """

    def action() -> int:
        from ..commands.report import ReportRequest
        from ..commands.report import report as write_report

        return write_report(ReportRequest(target, output))

    guard(action)


@click.command()
@click.argument("run", required=False, metavar="[RUN]")
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="[default: one that is free]")
@click.option("--open", "open_browser", is_flag=True, help="Open it in a browser.")
def watch(run: str | None, port: int | None, open_browser: bool) -> None:
    """Serve the page of a run, live: a step is on it within a second. Ctrl-C ends the page, not the run.

    RUN is the beginning or the end of a run's id; without it, the newest run. From its page all other runs can be looked
    at, and laid over each other. Only this machine can connect, and only with the token in the address that is printed.

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
@click.option("--steps", type=click.IntRange(1, 100), default=5, metavar="N", help="How many steps.  [default: 5]")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="[default: the host of process 0]")
@click.option("--to", type=click.Path(path_type=Path), metavar="DIR", help="[default: the run's directory here]")
def profile(run: str | None, steps: int, hosts: tuple[str, ...], to: Path | None) -> None:
    """Trace the next steps of a run that goes on, and bring the trace here.

    The steps stay as they are, and those of the host that is traced take longer. RUN is the beginning or the end of a
    run's id; without it, the newest run. Ctrl-C gives up; the run goes on.

    \b
    Examples:
      podrun profile
      podrun profile 4f2a --steps 10 --host tpu-[0-1]
    """

    def action() -> int:
        from ..commands.profile_run import ProfileRequest
        from ..commands.profile_run import profile as trace

        return trace(ProfileRequest(run, steps, hosts, to))

    guard(action)


COMMANDS: tuple[click.Command, ...] = (ps, status, logs, report, watch, profile, attach, stop, pull, export)

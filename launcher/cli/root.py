"""The command line: parse arguments, call one function, print. Each command imports its heavy modules itself."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from ..view.terminal import guarded_streams
from .guard import PROGRAM, TYPED, typed_program
from .guard import guard as _guard
from .options import QUEUE_OPTIONS, complete_job, complete_slice, pod_options, with_joined_values
from .process import PIPE_CLOSED

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from ..remote.prestart import Prestart
    from ..request.request import Request

_EXAMPLES = """\b
Examples:
  podrun --local train.yaml
  podrun --slice v3-32 --simulate examples/gpt2_tiny.yaml
  podrun --slice cpu-2x2 --simulate train.yaml steps=200 optimizer.learning_rate=1e-3
  podrun --slice v3-32 --simulate --dry-run train.yaml
  podrun slices v5
"""

_EXIT_CODES = """\b
Exit codes:
  0 done                      2 bad input, nothing was trained
  1 the training failed      69 a host or process never started, or was lost
  75 preempted, saved        76 lost another process, and no other cause was found
  77 hung, no progress       78 a host computes something else than the others
  130 Ctrl-C (128+N: ended by signal N)
  141 the reader of podrun's output is gone
  any other code is that of the first process that failed
"""


_OTHER_NAMES = {
    **dict.fromkeys(("list", "ls", "runs", "jobs"), "ps` lists the runs"),
    **dict.fromkeys(("kill", "cancel", "abort", "down"), "stop` ends a run"),
    **dict.fromkeys(("rm", "remove", "delete", "prune"), "clean` removes what runs have left on hosts"),
    **dict.fromkeys(("tail", "output"), "logs -f` shows what a run prints"),
    **dict.fromkeys(("train", "start", "launch"), "train.yaml` starts a run, `podrun -- python train.py` a program"),
    **dict.fromkeys(("top", "dashboard", "ui"), "watch` shows runs in a browser"),
    **dict.fromkeys(("download", "fetch", "cp"), "pull` copies the results of a run here"),
    **dict.fromkeys(("config", "keys"), "schema` prints all keys of train.yaml"),
}
"""Names that commands have in other tools, with a hint about podrun's command."""

_MODULES = {
    **dict.fromkeys(("ps", "status", "logs", "report", "forecast", "watch", "profile", "attach", "stop"), "runs"),
    **dict.fromkeys(("pull", "export", "generate", "evaluate", "replay", "batches"), "runs"),
    **dict.fromkeys(("exec", "ssh", "clean", "checkpoints", "hold", "release"), "pods"),
    **dict.fromkeys(("new", "data", "prepare", "inspect", "compile", "fit"), "job"),
    **{name: name for name in ("hosts", "tpu", "compare", "sweep", "render")},
}
"""The module of this room that declares a command, imported when that command is needed. The others are declared here."""


class _DefaultRun(click.Group):
    """Command group in which `podrun train.yaml` means `podrun run train.yaml`."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        with guarded_streams():
            return super().main(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.commands, *_MODULES})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in _MODULES:
            for command in import_module(f".{_MODULES[cmd_name]}", __package__).COMMANDS:
                self.add_command(command)
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[TYPED] = args
        if "--" in args:  # a user program follows, whose options click would mix with podrun's
            at = args.index("--")
            ctx.meta[PROGRAM] = tuple(args[at + 1 :])
            args = args[:at] or ["run"]
        args = ["--pull=" if word == "--pull" else word for word in args]  # the next word is a job, not the folder
        args = with_joined_values(args)
        known = {"--help", "-h", "--version", *self.list_commands(ctx)}
        if args and args[0] not in known:
            self._check_spelling(ctx, args[0])
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def _check_spelling(self, ctx: click.Context, word: str) -> None:
        """Raise an error that suggests a command if `word` looks like a misspelled one, as `stat` does."""
        if word.startswith("-") or set(word) & set("./=") or Path(word).exists():
            return
        if word in _OTHER_NAMES:
            _leave(
                click.UsageError(f"there is no command or job {word!r}; `podrun {_OTHER_NAMES[word]}", ctx), "podrun"
            )
        import difflib  # only for errors

        if near := difflib.get_close_matches(word, self.list_commands(ctx), n=2):
            _leave(
                click.UsageError(f"there is no command or job {word!r}; did you mean {' or '.join(near)}?", ctx),
                "podrun",
            )

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _pipe_closed():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with _pipe_closed():
                return super().invoke(ctx)
        except click.UsageError as error:
            _leave(error, _typed_command(ctx.meta.get(TYPED, ())))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Return the completions: commands, then files for `podrun train.yaml`.

        Commands come first, because bash ignores those after files.
        """
        from click.shell_completion import CompletionItem

        files = [] if incomplete.startswith("-") else [CompletionItem(incomplete, type="file")]
        return [*files, *super().shell_complete(ctx, incomplete)]

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[OPTIONS] train.yaml [key.path=value ...]")
        formatter.write_usage(ctx.command_path, "[OPTIONS] [key.path=value ...] -- PROGRAM [ARGUMENT ...]", "       ")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        run_context = click.Context(self.commands["run"], info_name="run", parent=ctx)
        self.commands["run"].format_options(run_context, formatter)
        self.format_commands(ctx, formatter)


@contextmanager
def _pipe_closed() -> Iterator[None]:
    """Exit with podrun's code if the output was closed; click would exit with 1."""
    try:
        yield
    except BrokenPipeError:
        sys.exit(PIPE_CLOSED)


def _leave(error: click.UsageError, command: str) -> NoReturn:
    """Print a usage error in podrun's style, with the command whose help to read, and exit."""
    message = error.format_message().strip().removesuffix(".")
    remedy = f"`{command} --help` lists what it takes"
    if isinstance(error, click.NoSuchOption) and (meant := _program(error) or _override(error)):
        message, remedy = f"no such option {error.option_name!r}", meant
    click.echo(f"podrun: {message[:1].lower()}{message[1:]}\n{remedy}", err=True)
    sys.exit(error.exit_code)


def _typed_command(words: Sequence[str]) -> str:
    """Return the command that was typed, such as `podrun tpu up`. Errors of click's parser do not say it."""
    path: list[str] = ["podrun"]
    command: click.Command = main
    for word in words:
        subcommand = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        if subcommand is None:
            break
        path, command = [*path, word], subcommand
    return " ".join(path) if len(path) > 1 else "podrun run"


def _override(error: click.NoSuchOption) -> str | None:
    """Return the override to type instead of an option such as `--steps 100`; None if train.yaml has no such key."""
    if error.ctx is None:
        return None
    from ..yamlfile.option_key import meant_override

    return meant_override(error.option_name, error.ctx.meta.get(TYPED, ()))


def _program(error: click.NoSuchOption) -> str | None:
    """Return the corrected command line if the option belongs to a program that was typed without `--`; otherwise None."""
    typed = error.ctx.meta.get(TYPED, ()) if error.ctx else ()
    words = list(typed[typed.index("run") + 1 :] if typed[:1] == ["run"] else typed)
    at = next((number for number, word in enumerate(words) if word.endswith(".py")), None)
    if at is None or not any(word.partition("=")[0] == error.option_name for word in words[at:]):
        return None
    return f"a program and its options come after two dashes: podrun ... -- python {shlex.join(words[at:])}"


def _show_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if not wanted or ctx.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("podrun")
    except PackageNotFoundError:
        number = "not installed"
    click.echo(f"podrun, version {number}")
    ctx.exit()


@click.group(
    cls=_DefaultRun,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EXAMPLES + "\n\n" + _EXIT_CODES,
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Train a JAX model, or run a program of yours, on a TPU pod slice or GPU cluster, this machine, or a simulated pod."""


@main.command()
@pod_options()
@click.option(
    "--workdir",
    "-w",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder of checkpoints and metrics; the same folder resumes the run.  [default: runs/NAME-OF-TRAIN-YAML]",
)
@click.option("--dry-run", is_flag=True, help="Print command, environment and files of each host, and start nothing.")
@click.option(
    "--detach", "-d", is_flag=True, help="Return when all hosts have started; the run continues in the background."
)
@click.option(
    "--pull", metavar="[=DIR]", help="At the end, download metrics, samples and the newest checkpoint to DIR."
)
@click.option(
    "--compile-ahead/--no-compile-ahead",
    default=None,
    help=f"With {QUEUE_OPTIONS}: compile while the job waits.  [default: if the compiler is installed]",
)
@click.option(
    "--array",
    multiple=True,
    metavar="KEY=A,B",
    help=f"With {QUEUE_OPTIONS}: a run for each value of a key of train.yaml, as one job array; several --array give all "
    "combinations. A program gets the value as the environment variable KEY, and in place of {KEY} in its arguments.",
)
@click.option(
    "--at-once",
    type=click.IntRange(1),
    metavar="N",
    help="With --array: at most N of its runs train at the same time.",
)
@click.option(
    "--join",
    is_flag=True,
    help="Join a program that never calls jax.distributed.initialize() to the pod (launch.join).",
)
@click.option("--name", default="", metavar="TEXT", help="Name of the run in status and report.")
@click.option("--tag", "tags", multiple=True, metavar="TEXT", help="Tag of the run; may be repeated.")
@click.option("--note", default="", metavar="TEXT", help="Note about the run.")
@click.option("--json", "as_json", is_flag=True, help="Print events as JSON lines.")
@click.option(
    "--inject",
    multiple=True,
    metavar="FAULT",
    help="Inject a fault into a simulated pod, such as kill:host=1@step=20; may be repeated (docs/faults.md).",
)
@click.argument(
    "job", nargs=-1, metavar="train.yaml [key.path=value ...] | -- PROGRAM [ARGS ...]", shell_complete=complete_job
)
@click.pass_context
def run(
    ctx: click.Context,
    /,
    job: tuple[str, ...],
    workdir: Path | None,
    dry_run: bool,
    detach: bool,
    pull: str | None,
    compile_ahead: bool | None,
    array: tuple[str, ...],
    at_once: int | None,
    join: bool,
    name: str,
    tags: tuple[str, ...],
    note: str,
    as_json: bool,
    inject: tuple[str, ...],
    **where: Any,
) -> None:
    """Train, or run a program of your own. The word `run` may be left out: podrun train.yaml, podrun -- PROGRAM.

    \b
    Examples:
      podrun --local train.yaml
      podrun --slice v3-32 --simulate train.yaml
      podrun --slice cpu-1x2 --simulate train.yaml steps=50 model.layers=2
      podrun --slice cpu-2x1 --simulate --inject kill:host=1@step=20 train.yaml launch.max_restarts=1
      podrun --pod pod.yaml --detach train.yaml
      podrun --pod pod.yaml -- python my_train.py --my-option
    """
    program = typed_program(ctx, job)
    if job and job[0] in main.list_commands(ctx) and not Path(job[0]).exists():
        raise click.UsageError(f"a command comes before its options: podrun {job[0]} ...", ctx)

    def action() -> int:
        from ..commands.prestart import prestart

        train = None if program else Path(job[0])
        starts = train is not None and where["simulate"] and not (dry_run or detach or array)
        with prestart(where["slice"] if starts else None, where["num_slices"] or 1) as prestarted:
            from ..inventory.pod_request import PodRequest
            from ..plan.spec import Label
            from ..request.request import Request

            request = Request(
                train=train,
                overrides=(*(job if program else job[1:]), *(["launch.join=true"] if join else [])),
                workdir=workdir,
                dry_run=dry_run,
                json=as_json,
                program=program,
                detach=detach,
                inject=inject,
                pull=pull,
                compile_ahead=compile_ahead,
                label=Label(name, tags, note),
                command=tuple(ctx.meta.get(TYPED, ())),
                where=PodRequest.from_options(where, train),
            )
            return _run_or_submit(request, array, at_once, prestarted)

    _guard(action)


def _run_or_submit(request: Request, array: tuple[str, ...], at_once: int | None, prestarted: Prestart | None) -> int:
    from podrun.runtime.contract import UserError

    from ..request.queue_options import queue_name

    queue = queue_name(request)
    if at_once is not None and not array:
        raise UserError("--at-once is for --array KEY=A,B, which submits a run for each value")
    if array and not queue:
        raise UserError(
            f"--array submits a job array: give the options of the job with {QUEUE_OPTIONS}, such as --slurm=time=2:00:00; "
            "`podrun compare --over KEY=A,B` runs one variant after the other anywhere"
        )
    if request.compile_ahead and not queue:
        raise UserError(
            f"--compile-ahead is for a run that waits in a queue ({QUEUE_OPTIONS}); `podrun compile` compiles now"
        )
    if queue and array:
        from ..commands.submit_array import submit_array

        return submit_array(request, queue, array, at_once)
    if queue:
        from ..commands.submit import submit

        return submit(request, queue)
    from ..commands.run import run as run_request

    return run_request(request, prestarted)


@main.command()
@click.argument("file", type=click.Path(path_type=Path), default="pod.yaml", metavar="[FILE]")
@click.option("--slice", "-s", metavar="TYPE", shell_complete=complete_slice, help="Shape of the pod: v3-32, gpu-2x8.")
@click.option(
    "--hosts", metavar="LIST", help="Hosts: names, addresses, ranges (tpu-[0-3]), a hostfile; or local, simulate."
)
@click.option("--user", metavar="NAME", help="User on the hosts.  [default: from your SSH configuration]")
@click.option("--key", metavar="FILE", help="Private key.  [default: your SSH agent and configuration]")
@click.option("--workdir", "-w", metavar="DIR", help="Folder for the results, shared by the hosts or on the first one.")
@click.option("--python", metavar="PATH", help="Path of Python 3.11+ on the hosts.")
@click.option(
    "--offline",
    is_flag=True,
    help="The hosts have no package index: this machine downloads the packages of the environment, and sends them.",
)
@click.option("--yes", "-y", is_flag=True, help="Do not ask; settings that are not given are left out.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
def init(file: Path, offline: bool, yes: bool, force: bool, **given: str | None) -> None:
    """Ask a few questions, and write a pod file: FILE, or pod.yaml.

    \b
    Examples:
      podrun init
      podrun init tpu.yaml --slice v3-32 --hosts "tpu-[0-3]" --user me --yes
    """

    def action() -> None:
        from ..commands.init import init as write_pod_file

        write_pod_file(file, given, offline=offline, yes=yes, force=force)

    _guard(action)


@main.command()
@pod_options(simulate="Check this machine, as the hosts of a simulated pod.")
@click.option(
    "--workdir", "-w", metavar="DIR|URL", help="Workdir to test: a folder that the hosts share, or a URL of a bucket."
)
@click.option("--bandwidth", is_flag=True, help="Also run an all-reduce over all devices, and print its GB/s.")
@click.option("--json", "as_json", is_flag=True, help="Print all facts and findings as JSON.")
def check(workdir: str | None, bandwidth: bool, as_json: bool, **where: Any) -> None:
    """Check whether every host is ready for a run; show which is not, and what to do.

    \b
    Exit code: 0 ready, 2 a run would fail, 69 a host cannot be reached.

    \b
    Examples:
      podrun check --pod pod.yaml
      podrun check --slice gpu-2x8 --hosts gpu-a,gpu-b --workdir /shared/runs
      podrun check --pod pod.yaml --bandwidth
    """

    def action() -> int:
        from ..commands.check import check as check_request
        from ..inventory.pod_request import PodRequest

        return check_request(PodRequest.from_options(where), workdir, as_json, bandwidth)

    _guard(action)


@main.command()
@click.argument("type", required=False, metavar="[TYPE]", shell_complete=complete_slice)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def slices(type: str | None, as_json: bool) -> None:
    """List the TPU slice types, or those that start with TYPE.

    \b
    Examples:
      podrun slices            all TPU types
      podrun slices v5p        one generation
      podrun slices v3-32      one slice
      podrun slices gpu-2x8    2 hosts of 8 GPUs (cpu-HxD likewise)
    """

    def action() -> None:
        import json
        from dataclasses import asdict

        from ..pod.slices import find_slices, slice_table

        slices_found = find_slices(type)
        click.echo(json.dumps([asdict(s) for s in slices_found], indent=1) if as_json else slice_table(slices_found))

    _guard(action)


@main.command()
def schema() -> None:
    """Print the JSON Schema of train.yaml, for editors.

    \b
    Example: podrun schema > train.schema.json, and on top of train.yaml:
      # yaml-language-server: $schema=train.schema.json
    """

    def action() -> None:
        import json

        from podrun.runtime.config import train_schema

        click.echo(json.dumps(train_schema(), indent=1))

    _guard(action)


@main.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    Example: eval "$(podrun completion bash)"
    """
    from click.shell_completion import get_completion_class

    kind: Any = get_completion_class(shell)
    script = kind(main, {}, "podrun", "_PODRUN_COMPLETE").source()
    # a word that ends in . or = is incomplete: no space after it
    click.echo(
        script.replace("    return 0\n", "    [[ ${COMPREPLY[0]} == *[.=] ]] && compopt -o nospace\n    return 0\n")
    )

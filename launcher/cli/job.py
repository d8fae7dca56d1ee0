"""Commands about a job before it runs: `new`, `data`, `prepare`, `inspect`, `compile`, `fit`; `root.py` adds them."""

from __future__ import annotations

from pathlib import Path

import click

from podrun.runtime.contract import UserError

from .guard import guard
from .options import complete_job, complete_slice


def _complete_template(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the templates that begin with `incomplete`."""
    from ..templates.templates import template_names

    return [name for name in template_names() if name.startswith(incomplete)]


@click.command()
@click.argument("task", required=False, metavar="[TASK]", shell_complete=_complete_template)
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    default="train.yaml",
    metavar="FILE",
    help="File to write, which must not exist.  [default: train.yaml]",
)
def new(task: str | None, output: Path) -> None:
    """Write a commented train.yaml for a task; without TASK, list the tasks.

    \b
    Examples:
      podrun new
      podrun new language_model
      podrun new classification -o digits.yaml
    """

    def action() -> None:
        from ..commands.new import list_templates
        from ..commands.new import new as write_job

        if task is None:
            list_templates()
        else:
            write_job(task, output)

    guard(action)


def _complete_data(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Return the data sets that begin with `incomplete`."""
    from ..datasets.table import DATA_SETS

    return [name for name in DATA_SETS if name.startswith(incomplete)]


@click.command()
@click.argument("name", required=False, metavar="[NAME]", shell_complete=_complete_data)
@click.option(
    "--to",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for the data.  [default: a folder NAME in the current one]",
)
def data(name: str | None, to: Path | None) -> None:
    """List public data sets, or download one and verify its digests.

    \b
    Exit code: 0 complete, 1 a digest is wrong, 69 the server cannot be reached.

    \b
    Examples:
      podrun data
      podrun data fashion-mnist
      podrun data tinyshakespeare --to texts
    """

    def action() -> int | None:
        from ..commands.data import fetch, list_data

        if name is not None:
            return fetch(name, to)
        if to is not None:
            raise UserError("--to is for a data set: podrun data NAME --to DIR; `podrun data` lists them")
        list_data()
        return None

    guard(action)


@click.command()
@click.option("--slice", "-s", metavar="TYPE", help="Slice to run on.  [default: launch.slice, or cpu-1x1]")
@click.option("--mesh", metavar="AXES", help="Show arrays on a mesh such as data=4,model=2, instead of a job.")
@click.option(
    "--array",
    "arrays",
    multiple=True,
    metavar="ARRAY",
    help="With --mesh: an array, 16@data,32@model or with a name A=16@data,32; may be repeated.",
)
@click.option(
    "--expr", metavar="EXPRESSION", help="With --array: an expression of the arrays.  [default for two: A @ B]"
)
@click.option(
    "--compile-for",
    metavar="KIND",
    help="cpu, tpu, or a GPU such as h100.  [default: what the slice is, if its compiler is installed; else cpu]",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the report on a job as a page, one HTML file, in place of printing it.",
)
@click.argument("train", type=click.Path(path_type=Path), metavar="[train.yaml]", required=False)
@click.argument("overrides", nargs=-1, metavar="[key.path=value ...]", shell_complete=complete_job)
def inspect(
    train: Path | None,
    overrides: tuple[str, ...],
    slice: str | None,
    mesh: str | None,
    arrays: tuple[str, ...],
    expr: str | None,
    compile_for: str | None,
    as_json: bool,
    output: Path | None,
) -> None:
    """Show parameters, layout over the devices, FLOPs and memory of a job before it runs, or the layout of arrays on a mesh.

    Nothing is trained. The step is compiled on this machine from shapes alone, so the model may be larger than this machine's
    memory. If the compiler of the slice's TPUs or GPUs is installed (podrun's extras tpu and cuda), it compiles, and tells
    whether the step fits; otherwise the step is compiled for as many virtual CPU devices. The answer is stored under
    PODRUN_HOME, and used again until the job, its data, code or packages change.

    \b
    Examples:
      podrun inspect train.yaml
      podrun inspect train.yaml --slice v3-32 model.layers=24 -o inspect.html
      podrun inspect train.yaml --slice cpu-2x4 "parallel={name: jit, mesh: {fsdp: 4}}"
      podrun inspect --mesh data=4,model=2 --array "16@data,32@model" --array "32@model,8"
      podrun inspect --mesh x=2,y=4 --array A=16@x,32@y --expr "2*sin(A)**2 + 1"
    """

    def action() -> int:
        from ..commands.inspect_job import InspectRequest, inspect_arrays
        from ..commands.inspect_job import inspect as inspect_request

        if mesh is not None and train is None and slice is None:
            if output:
                raise UserError("-o writes the page of a job, and --mesh has none; leave -o out, or give a train.yaml")
            return inspect_arrays(mesh, arrays, expr, as_json)
        if mesh is not None or arrays or expr is not None:
            raise UserError(
                "--mesh, --array and --expr go together, without train.yaml or --slice: the mesh says how many devices "
                "there are; the mesh of a job is its parallel.mesh"
            )
        if train is None:
            raise UserError("what is to be inspected? give a train.yaml, or --mesh and --array")
        if output and as_json:
            raise UserError("-o writes a page and --json prints JSON; give one of them")
        return inspect_request(InspectRequest(train, overrides, slice, as_json, compile_for, output))

    guard(action)


@click.command("compile")
@click.option(
    "--slice",
    "-s",
    metavar="TYPE",
    shell_complete=complete_slice,
    help="Slice to compile for.  [default: launch.slice]",
)
@click.option("--pod", type=click.Path(path_type=Path), metavar="FILE", help="Pod file, for its slice and `env`.")
@click.option("--gpu", metavar="MODEL", help="Which GPUs gpu-2x8 means, for example h100.")
@click.option(
    "--install",
    type=click.Choice(["tpu", "cuda"]),
    help="Compile nothing, but download the compiler of TPUs or NVIDIA GPUs into podrun's folder.",
)
@click.argument("train", type=click.Path(path_type=Path), metavar="[train.yaml]", required=False)
@click.argument("overrides", nargs=-1, metavar="[key.path=value ...]", shell_complete=complete_job)
def compile_command(
    train: Path | None,
    overrides: tuple[str, ...],
    slice: str | None,
    pod: Path | None,
    gpu: str | None,
    install: str | None,
) -> None:
    """Compile a job before it runs, and keep the compiled programs on this machine; nothing is trained.

    A run of the same job on this slice sends them to its hosts with the code, and loads them in place of compiling. Compiling
    for TPUs and GPUs needs none of them here, but their compiler (podrun's extras tpu and cuda); for CPUs a simulated pod
    compiles.

    --install puts such a compiler into podrun's folder instead of your environment: the version that belongs to your JAX, or
    to that of the train.yaml's launch.python. `inspect`, `fit` and `compile` find it there.

    \b
    Examples:
      podrun compile --install tpu
      podrun compile train.yaml --slice v5e-16
      podrun compile train.yaml --slice gpu-2x8 --gpu h100 model.layers=24
      podrun compile train.yaml --pod pod.yaml
    """

    def action() -> int:
        if install:
            from ..commands.install_compiler import install_compiler

            if slice or pod or gpu:
                raise UserError(
                    "--install takes no --slice, --pod or --gpu: the compiler of TPUs or GPUs is for all of them"
                )
            return install_compiler(install, train, overrides)
        if train is None:
            raise UserError("what is to be compiled? give a train.yaml, or --install tpu for the compiler alone")
        from ..commands.compile_job import CompileRequest, compile_job

        return compile_job(CompileRequest(train, overrides, slice, pod, gpu))

    guard(action)


@click.command()
@click.option(
    "--slice",
    "-s",
    metavar="TYPE",
    shell_complete=complete_slice,
    help="Slice to search, or 'v5e-*': the smallest that fits.  [default: launch.slice]",
)
@click.option("--gpu", metavar="MODEL", help="Which GPUs gpu-2x8 means, for example h100.")
@click.option("--batch", is_flag=True, help="Search the largest batch size that fits, at accumulate 1.")
@click.option(
    "--over",
    multiple=True,
    metavar="KEY=A,B",
    help="Search these values as well; KEY is model.remat, launch.xla or parallel.mesh.model. Several --over give all "
    "combinations.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.argument("train", type=click.Path(path_type=Path), metavar="train.yaml")
@click.argument("overrides", nargs=-1, metavar="[key.path=value ...]", shell_complete=complete_job)
def fit(
    train: Path,
    overrides: tuple[str, ...],
    slice: str | None,
    gpu: str | None,
    batch: bool,
    over: tuple[str, ...],
    as_json: bool,
) -> None:
    """Search the layouts of a job for those that fit a slice, and for the fastest, without having the slice.

    The strategy is that of train.yaml, or pmap and jit. Searched are fsdp and accumulate, and model.remat where memory is
    short; parallel.mesh.model stays as it is. Layouts that cannot work or fit are ruled out by arithmetic. The others are
    compiled by the compiler of the slice's TPUs or GPUs (podrun's extras tpu and cuda), and the answers are kept. Ctrl-C
    shows what is known so far.

    \b
    Exit code: 0 a layout fits, 2 none does, 1 the job's code fails.

    \b
    Examples:
      podrun fit train.yaml --slice v5e-16
      podrun fit train.yaml --slice 'v5e-*' batch_size=512
      podrun fit train.yaml --slice gpu-2x8 --gpu a100 --batch
      podrun fit train.yaml --slice v5e-16 --over model.remat=none,block --over launch.xla=[],latency_hiding
    """

    def action() -> int:
        from ..commands.fit import FitRequest
        from ..commands.fit import fit as fit_request

        return fit_request(FitRequest(train, overrides, slice, gpu, batch, over, as_json))

    guard(action)


@click.command()
@click.argument("sources", nargs=-1, metavar="SOURCES...")
@click.option("--output", "-o", type=click.Path(path_type=Path), metavar="FOLDER", help="Folder to write.")
@click.option(
    "--tokenizer", metavar="T", help="byte, char, a tokenizer.json, or the folder of a model that has a tokenizer.json."
)
@click.option(
    "--eos",
    metavar="TOKEN",
    help="Token that ends each document.  [default: what the files beside tokenizer.json name]",
)
@click.option("--column", metavar="NAME", help="Column with the text of jsonl, Parquet and Arrow.  [default: text]")
@click.option("--template", metavar="TEXT", help="Text with columns in braces: '{question}\\n{answer}'.")
@click.option(
    "--chat", is_flag=True, help="Conversations, by the chat template of the model: only answers are learned."
)
@click.option("--pairs", is_flag=True, help="Pairs of answers, one chosen and one rejected, for task dpo.")
@click.option("--workers", type=click.IntRange(1, 1024), metavar="N", help="Processes.  [default: one for each core]")
@click.option("--strict", is_flag=True, help="End at the first bad line.")
@click.option("--overwrite", is_flag=True, help="Begin anew in a folder that was prepared otherwise.")
@click.option("--show", type=click.Path(path_type=Path), metavar="FOLDER", help="Show what a prepared folder has.")
@click.option("--verify", is_flag=True, help="With --show: compare all files with their digests.")
@click.option(
    "--seed", type=click.IntRange(0), default=0, metavar="N", help="With --show: selects its samples.  [default: 0]"
)
def prepare(
    sources: tuple[str, ...],
    output: Path | None,
    tokenizer: str | None,
    eos: str | None,
    column: str | None,
    template: str | None,
    chat: bool,
    pairs: bool,
    workers: int | None,
    strict: bool,
    overwrite: bool,
    show: Path | None,
    verify: bool,
    seed: int,
) -> None:
    """Write text as a folder of token ids, by several processes; or show such a folder.

    SOURCES are files, folders, glob patterns, and gs:// or s3:// URLs: text (one file is one document), .jsonl, Parquet and
    Arrow files, folders of datasets.save_to_disk; text and .jsonl also as .gz and .zst. The folder has the same bytes for any
    number of workers. After Ctrl-C or a kill the same command goes on where it was.

    \b
    Examples:
      podrun prepare corpus/ -o tokens --tokenizer byte
      podrun prepare a.jsonl.gz 'b/*.parquet' -o tokens --tokenizer models/llama --column content
      podrun prepare qa.jsonl -o tokens --tokenizer tokenizer.json --template '{question}\\n{answer}'
      podrun prepare chat.jsonl -o tokens --tokenizer models/llama --chat
      podrun prepare preferences.jsonl -o pairs --tokenizer models/llama --pairs
      podrun prepare --show tokens
    """

    def action() -> int:
        from podrun.runtime.queries import PrepareQuery

        from ..commands.prepare import prepare as write_folder
        from ..commands.prepare import show_prepared

        if show is not None:
            if any((sources, output, tokenizer, eos, column, template, chat, pairs, workers, strict, overwrite)):
                raise UserError("--show goes alone, or with --verify and --seed: podrun prepare --show FOLDER")
            return show_prepared(show, verify, seed)
        if verify:
            raise UserError("--verify is for --show: podrun prepare --show FOLDER --verify")
        if not sources or output is None or tokenizer is None:
            given = {"SOURCES": sources, "-o FOLDER": output, "--tokenizer T": tokenizer}
            missing = " and ".join(name for name, value in given.items() if not value)
            raise UserError(
                f"{missing} missing: podrun prepare SOURCES... -o FOLDER --tokenizer T, where T is byte, char, a "
                "tokenizer.json, or the folder of a model"
            )
        query: PrepareQuery = {
            "sources": [*sources],
            "folder": str(output.expanduser().absolute()),
            "tokenizer": tokenizer,
            "eos": eos,
            "column": column,
            # \n and \t are hard to type in a shell
            "template": template and template.replace("\\n", "\n").replace("\\t", "\t"),
            "chat": chat,
            "pairs": pairs,
            "workers": workers,
            "strict": strict,
            "overwrite": overwrite,
        }
        return write_folder(query)

    guard(action)


COMMANDS: tuple[click.Command, ...] = (new, data, prepare, inspect, compile_command, fit)

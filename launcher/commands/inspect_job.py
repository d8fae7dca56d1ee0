"""`podrun inspect`: show a job before it runs, in one process on this machine."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter

from podrun.runtime.config import Config, files_of
from podrun.runtime.config.xla_presets import with_presets
from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.job_report import as_json
from podrun.runtime.queries import ArraysQuery, InspectAnswer, InspectQuery, TooLargeAnswer
from podrun.runtime.target import Target

from ..inventory.pod_request import PodRequest
from ..pod.pod import Pod
from ..pod.slices import Slice
from ..pod.target import GPUS, target_of
from ..report.inspect_page import page_of, page_of_excess
from ..report.write_html import check_writable, write_page
from ..request.kept_answers import interpreter, keep_answer, kept_answer, settings
from ..request.query_process import QueryError, QueryProcess, query_environment
from ..request.request import Request, make_spec
from ..request.train_file import read_config
from ..view.times import moment
from ..view.waiting import waiting

_ANSWER: TypeAdapter[InspectAnswer | TooLargeAnswer] = TypeAdapter(InspectAnswer | TooLargeAnswer)
_MOST_DEVICES = 512
"""Maximum number of devices for --mesh; more take minutes."""


@dataclass(frozen=True)
class InspectRequest:
    """Command-line options of `podrun inspect`."""

    train: Path
    overrides: tuple[str, ...] = ()
    slice: str | None = None
    json: bool = False
    compile_for: str | None = None
    """`cpu`, `tpu`, or a model of GPUs; None: the devices of the slice, if their compiler is installed."""
    output: Path | None = None
    """File for a page; None: print the report."""


def inspect_arrays(mesh: str, arrays: tuple[str, ...], expression: str | None, as_json: bool) -> int:
    """Print the layout of the arrays, and of an expression over them, on the mesh; return 0. Raises UserError."""
    if not arrays:
        raise UserError(
            "--mesh lays out arrays, but there is none; "
            'for example: podrun inspect --mesh data=4,model=2 --array A=16@data,32@model --expr "2*sin(A)**2 + 1"'
        )
    axes = _parse_mesh(mesh)
    devices = math.prod(axes.values())
    query: ArraysQuery = {
        "mesh": axes,
        "arrays": list(arrays),
        "expression": expression,
        "width": _width(),
        "json": as_json,
    }
    try:
        with waiting(f"laying out the arrays over {devices} virtual devices"):
            print(_ask(query, sys.executable, query_environment(_virtual(devices))))
    except QueryError as error:
        return _failed(error)
    return ExitCode.DONE


def _parse_mesh(text: str) -> dict[str, int]:
    """Parse axes such as `data=4,model=2`. Raises UserError."""
    axes: dict[str, int] = {}
    for part in text.replace(" ", "").split(","):
        name, _, size = part.partition("=")
        if not name.isidentifier() or not size.isdecimal() or int(size[:9]) == 0 or name in axes:
            raise UserError(f"--mesh {text}: {part!r} is not a new axis and its size; write it like data=4,model=2")
        axes[name] = int(size[:9])
    if math.prod(axes.values()) > _MOST_DEVICES:
        raise UserError(
            f"--mesh {text}: {math.prod(axes.values())} devices; at most {_MOST_DEVICES} are simulated here"
        )
    return axes


def inspect(request: InspectRequest) -> int:
    """Print the report on the job and return 0, or the reason why its code fails and return 1. Raises UserError."""
    config, pod = _check(request)
    if request.output:
        check_writable(request.output)
    target = _target(request, pod.slice)
    query: InspectQuery = {
        "target": asdict(target) if target else None,
        "target_is_wanted": request.compile_for is not None,
        "config": config.model_dump(mode="json"),
        "slice": pod.slice.name,
        "title": str(request.train),
        "width": _width(),
    }
    launch = config.launch
    python = interpreter(launch.python)
    given = with_presets({**pod.env, **launch.env}, launch.xla, target.platform if target else "cpu")
    env = query_environment({**given, **_virtual(pod.slice.devices)}, is_for_hosts=target is not None)
    data = [str(path.absolute()) for named in files_of(config) for path in named.files]
    question = {**query, "python": python, "env": settings(env, given), "folder": os.getcwd(), "data": data}
    answer = kept_answer(question, _ANSWER)
    if answer is None:
        asked = time.time()
        try:
            with waiting(f"compiling the step for {pod.slice.devices} devices"):
                answer = _ANSWER.validate_json(_ask(query, python, env))
        except QueryError as error:
            return _failed(error)
        if "://" not in json.dumps(query["config"]["data"]):  # buckets may change unseen
            keep_answer(question, _ANSWER, answer, [*answer.files, *data], asked)
    if isinstance(answer, TooLargeAnswer):
        if request.output:
            page = page_of_excess(answer.excess, answer.problem, request.train.name, moment(time.time()))
            write_page(request.output, page)
        raise UserError(answer.problem)
    if request.output:
        write_page(request.output, page_of(answer.report, request.train.name, moment(time.time())))
    else:
        print(as_json(answer.report) if request.json else answer.text)
    return ExitCode.DONE


def _target(request: InspectRequest, slice: Slice) -> Target | None:
    """Return the devices to compile for; None: virtual devices of this machine's CPU. Raises UserError."""
    wanted = request.compile_for
    if wanted == "cpu":
        return None
    if wanted is None:
        try:
            return target_of(slice)
        except UserError:  # a slice that the compiler knows otherwise; the report says that it is of the CPU
            return None
    if wanted == "tpu" and slice.kind == "tpu":
        try:
            return target_of(slice)
        except UserError as error:
            raise UserError(f"{error}; give --compile-for cpu") from None
    if slice.kind == "gpu" and wanted != "tpu":
        return target_of(slice, wanted)
    raise UserError(
        f"--compile-for {wanted}: {slice.name} is a slice of {slice.kind.upper()}s; give cpu"
        + {"tpu": " or tpu", "gpu": f", or one of {', '.join(GPUS)}"}.get(slice.kind, "")
    )


def _check(request: InspectRequest) -> tuple[Config, Pod]:
    """Resolve the job as a simulated run. Raises one UserError with all mistakes."""
    spec = make_spec(
        Request(
            train=request.train,
            overrides=request.overrides,
            where=PodRequest(_slice(request), inventories={"simulate": True}, train=request.train),
            workdir=Path(tempfile.gettempdir()),  # nothing is written, so the job's own workdir need not exist
        )
    )
    assert isinstance(spec.job, Config)
    return spec.job, spec.pod


def _slice(request: InspectRequest) -> str | None:
    """Return the slice in the options or in train.yaml, otherwise a single device; None: the pod file names the slice."""
    if request.slice:
        return request.slice
    try:
        launch = read_config(request.train, request.overrides).launch
    except UserError:  # the main path reports it, with all other mistakes
        return "cpu-1x1"
    return launch.slice or (None if launch.pod else "cpu-1x1")


def _width() -> int:
    return min(shutil.get_terminal_size((100, 24)).columns, 120)


def _virtual(devices: int) -> dict[str, str]:
    return {"JAX_NUM_CPU_DEVICES": str(devices)}


def _ask(query: InspectQuery | ArraysQuery, python: str, env: Mapping[str, str]) -> str:
    """Return the answer of a new process. Raises UserError and QueryError."""
    return QueryProcess(python, "podrun.runtime.inspect_job", env, "compiled the step").ask(query)


def _failed(error: QueryError) -> int:
    """Print why the process failed and what to do. Returns the exit code."""
    if error.is_raised:
        print(
            f"podrun: the job fails before its first step: {error}\n"
            "`podrun --slice cpu-1x1 --simulate` with the same train.yaml shows the whole traceback",
            file=sys.stderr,
        )
    else:
        print(f"podrun: {error}{', a smaller slice or a smaller model' * error.is_killed}", file=sys.stderr)
    return ExitCode.FAILED

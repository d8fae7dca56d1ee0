"""`podrun fit`: which layouts of a job fit a slice, and which is fastest, asked of the slice's compiler on this machine."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from podrun.runtime.config import Config
from podrun.runtime.contract import ExitCode, UserError
from podrun.runtime.target import Target

from ..compare.variants import Axis, parse_axis
from ..fit.layouts import Settings, remat_of
from ..fit.outcome import Outcome
from ..fit.search import Search, search
from ..pod.errors import Mistakes
from ..pod.slices import GENERATIONS, Slice, find_slices, parse_slice
from ..pod.target import GPUS, target_of
from ..request.config_checks import config_checks
from ..request.query_process import QueryError
from ..request.train_file import read_config
from ..view.waiting import waiting

_MODEL_AXIS = "parallel.mesh.model"
_SEARCHED = ("model.remat", "launch.xla", _MODEL_AXIS)
"""Keys that `--over` accepts."""
_ANY = "-*"
"""End of a slice's name that means all sizes of its generation."""


@dataclass(frozen=True)
class FitRequest:
    """Command-line options of `podrun fit`."""

    train: Path
    overrides: tuple[str, ...] = ()
    slice: str | None = None
    gpu: str | None = None
    """Model of the GPUs; None if the slice's name tells it."""
    batch: bool = False
    """Search the largest batch size."""
    over: tuple[str, ...] = ()
    """Further keys and values to search, such as `model.remat=none,block`."""
    json: bool = False


def fit(request: FitRequest) -> int:
    """Print the layouts that fit, and return 0; 2 if none does, 1 if the job's code fails, 130 after Ctrl-C or SIGTERM.

    Raises:
        UserError: mistakes in the job or the options, or the slice's compiler is not installed.
    """
    config = read_config(request.train, request.overrides)
    mistakes = Mistakes()
    for check in config_checks(config, None, is_local=True):
        mistakes.check(check)
    slices = mistakes.check(lambda: _slices(request, config)) or []
    if request.batch and config.batch_size == "all":
        mistakes.add("--batch: batch_size is all, the whole training set; give a number, or leave --batch out")
    axes = mistakes.check(lambda: _axes(request)) or []
    settings = mistakes.check(lambda: _settings(request, axes)) or []
    models = mistakes.check(lambda: _models(config, axes)) or []
    mistakes.raise_any()
    outcomes: list[Outcome] = []
    for slice, target in slices:
        try:
            outcomes.append(_search(request, config, slice, target, settings, models))
        except QueryError as error:
            print(f"podrun: {'the job fails before its first step: ' * error.is_raised}{error}", file=sys.stderr)
            return ExitCode.FAILED
        known = outcomes[-1].known
        if known.best or not outcomes[-1].is_complete or (known.failed and not known.measured):
            break
    *smaller, outcome = outcomes
    return _show(request, outcome, smaller)


def _slices(request: FitRequest, config: Config) -> list[tuple[Slice, Target]]:
    """Return the slices to search, the smallest first. Raises UserError."""
    name = request.slice or config.launch.slice
    if name is None:
        raise UserError("which slice? give --slice v5e-16, or --slice 'v5e-*' for the smallest v5e that fits")
    if not name.endswith(_ANY):
        slice = parse_slice(name)
        return [(slice, _target(request, slice))]
    try:
        sizes = find_slices(name.removesuffix("*"))
    except UserError:
        generations = ", ".join(generation.name for generation in GENERATIONS)
        raise UserError(f"--slice {name}: '-*' stands for the sizes of a TPU generation: {generations}") from None
    return [(slice, _target(request, slice)) for slice in sorted(sizes, key=lambda slice: slice.devices)]


def _target(request: FitRequest, slice: Slice) -> Target:
    """Return the devices to compile for. Raises UserError."""
    if request.gpu and slice.kind != "gpu":
        raise UserError(f"--gpu {request.gpu}: it is for slices such as gpu-2x8; leave it out")
    try:
        target = target_of(slice, request.gpu)
    except UserError as error:
        raise UserError(f"{error}; give a slice of another generation") if slice.kind == "tpu" else error from None
    if target is not None:
        return target
    if slice.kind == "gpu":
        raise UserError(f"{slice.name}: which GPUs? give --gpu {'|'.join(GPUS)}, or a slice such as h100-16")
    raise UserError(
        f"{slice.name}: memory and speed of CPUs are not known to podrun, so nothing can be compared; "
        "give a slice of TPUs or GPUs, such as v5e-16 or h100-8"
    )


def _axes(request: FitRequest) -> list[Axis]:
    """Return the keys of `--over` with their values. Raises UserError."""
    axes = [parse_axis(text) for text in request.over]
    keys = [axis.key for axis in axes]
    typed = {override.partition("=")[0] for override in request.overrides}
    for key in keys:
        if key not in _SEARCHED:
            searched = ", ".join(_SEARCHED)
            raise UserError(
                f"--over {key}: podrun fit searches {searched}; `podrun compare` trains with values of any key"
            )
        if keys.count(key) > 1:
            raise UserError(f"--over {key} is there twice: give all its values in one")
        if key in typed:
            raise UserError(f"{key} has one value on the command line and several in --over: remove one of the two")
    return axes


def _models(config: Config, axes: Sequence[Axis]) -> list[int]:
    """Return the sizes of the mesh's axis `model` to search; empty: only the job's own size. Raises UserError."""
    values = next((axis.values for axis in axes if axis.key == _MODEL_AXIS), ())
    if wrong := [value for value in values if not value.isdecimal() or int(value) < 1]:
        raise UserError(f"--over {_MODEL_AXIS}: {wrong[0]} is no number of devices; give some from 1, such as 1,2,4")
    if values and "parallel" in config.model_fields_set and "mesh" not in type(config.parallel).model_fields:
        raise UserError(f"--over {_MODEL_AXIS}: {config.parallel.name} has no mesh; take parallel.name=jit")
    return [int(value) for value in values]


def _settings(request: FitRequest, axes: Sequence[Axis]) -> list[Settings]:
    """Return all combinations of the values in `--over`, without the axis `model`. Raises UserError."""
    axes = [axis for axis in axes if axis.key != _MODEL_AXIS]
    keys = [axis.key for axis in axes]
    settings = []
    for values in itertools.product(*(axis.values for axis in axes)):
        given = [f"{key}={value}" for key, value in zip(keys, values, strict=True)]
        job = read_config(request.train, [*request.overrides, *given])
        remat = remat_of(job) if "model.remat" in keys else None
        settings.append(Settings(remat, tuple(job.launch.xla) if "launch.xla" in keys else None))
    return settings


def _search(
    request: FitRequest, config: Config, slice: Slice, target: Target, settings: list[Settings], models: list[int]
) -> Outcome:
    """Search one slice, and return the results; they are incomplete after Ctrl-C or SIGTERM."""
    known = Search(slice)
    began = time.monotonic()
    is_complete = True
    with waiting(f"looking at the job on {slice.name}") as change:

        def tell() -> None:
            best = known.best[:1]
            least = f"; the best so far: {best[0].name(config)}" if best else ""
            change(f"{slice.name}: layouts known: {len(known.measured)}, to compile: at most {known.left}{least}")

        # A search may take an hour: what ends it by SIGTERM, as `timeout` or a queue does, gets what is known as well.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            search(known, config, target, request.batch, settings, models, tell)
        except KeyboardInterrupt:
            is_complete = False
        finally:
            signal.signal(signal.SIGTERM, before)
    seconds = time.monotonic() - began
    return Outcome(request.train, request.overrides, config, known, seconds, is_complete)


def _show(request: FitRequest, outcome: Outcome, smaller: list[Outcome]) -> int:
    """Print the results, and return the exit code. `smaller`: results for smaller slices, on which nothing fits."""
    if request.json:
        values = {**outcome.as_json(), "smaller_slices": [one.as_json() for one in smaller]}
        print(json.dumps(values, indent=1))
    else:
        for one in smaller:
            print(f"{one.known.slice.name}: {one.nearest()}")
        print(outcome.text(min(shutil.get_terminal_size((120, 24)).columns, 120)))
    if outcome.known.not_kept:
        print(f"podrun: the answers are not kept for another search: {outcome.known.not_kept}", file=sys.stderr)
    if not outcome.is_complete:
        return ExitCode.INTERRUPTED
    if outcome.known.best:
        return ExitCode.DONE
    print(f"podrun: {outcome.nothing()}", file=sys.stderr)
    return ExitCode.FAILED if outcome.known.failed and not outcome.known.too_large else ExitCode.BAD_CONFIG

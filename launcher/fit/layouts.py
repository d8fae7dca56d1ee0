"""Enumerate the layouts of a job on a slice, and rule out those that cannot work or fit by arithmetic. PURE.

A layout says how a job is divided over the devices. Layouts that differ only in `accumulate` or only in the batch size
form a `Chain`: from one to the next, memory and speed fall. So the first layout that fits is the best of its chain, and
bisection finds it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from podrun.runtime.config import Config, check_slice
from podrun.runtime.config.job import precision_problems
from podrun.runtime.config.parallel import Jit, Mesh, Parallel, Pmap
from podrun.runtime.contract import UserError
from podrun.runtime.layout_facts import Held, Survey
from podrun.runtime.wording import in_bytes

from ..pod.slices import Slice

_MOST_EXAMPLES = 1 << 14
"""Largest number of examples on a device that the search for a batch size tries."""


@dataclass(frozen=True)
class Settings:
    """Values of keys that are searched together with the layout; None: the job's own value."""

    remat: str | None = None
    """The value of `model.remat`."""
    xla: tuple[str, ...] | None = None
    """The presets of `launch.xla`."""


@dataclass(frozen=True, eq=False)
class Layout:
    """One way to divide a job over the devices of a slice. Compared by identity: a search makes each layout once."""

    parallel: Parallel
    accumulate: int
    batch_size: int | Literal["all"]
    settings: Settings = Settings()

    def of(self, config: Config) -> Config:
        """Return the job in this layout."""
        job = config.model_copy(
            update={"parallel": self.parallel, "accumulate": self.accumulate, "batch_size": self.batch_size}
        )
        if self.settings.remat is not None:
            job = job.model_copy(update={"model": job.model.model_copy(update={"remat": self.settings.remat})})
        if self.settings.xla is not None:
            job = job.model_copy(update={"launch": job.launch.model_copy(update={"xla": self.settings.xla})})
        return job

    def keys(self, config: Config) -> list[str]:
        """Return the overrides, such as `accumulate=2`, that give the job this layout."""
        now, grid = config.parallel, self.parallel.grid
        keys = []
        if self.parallel.name != now.name:
            keys.append(f"parallel.name={self.parallel.name}")
        if now.grid.data != grid.data:
            keys.append(f"parallel.mesh.data={grid.data}")
        if now.grid.fsdp != grid.fsdp:
            keys.append(f"parallel.mesh.fsdp={grid.fsdp}")
        if now.grid.model != grid.model:
            keys.append(f"parallel.mesh.model={grid.model}")
        if self.accumulate != config.accumulate:
            keys.append(f"accumulate={self.accumulate}")
        if self.batch_size != config.batch_size:
            keys.append(f"batch_size={self.batch_size}")
        remat, xla = self.settings.remat, self.settings.xla
        if remat not in (None, remat_of(config)):
            keys.append(f"model.remat={remat}")
        if xla not in (None, tuple(config.launch.xla)):
            keys.append(f"launch.xla=[{', '.join(xla or ())}]")
        return keys

    def name(self, config: Config) -> str:
        """Return a short name that tells the layouts of a job apart: `jit fsdp=4 accumulate=2`."""
        grid = self.parallel.grid
        axes = "".join(f" {axis}={n}" for axis, n in (("fsdp", grid.fsdp), ("model", grid.model)) if n > 1)
        parts = f" accumulate={self.accumulate}" if self.accumulate > 1 else ""
        size = f" batch_size={self.batch_size}" if self.batch_size != config.batch_size else ""
        remat = f" remat={self.settings.remat}" if self.settings.remat is not None else ""
        xla = f" xla={'+'.join(self.settings.xla) or 'none'}" if self.settings.xla is not None else ""
        return f"{self.parallel.name}{axes}{parts}{size}{remat}{xla}"


@dataclass(frozen=True)
class RuledOut:
    """A layout that need not be compiled, and why."""

    layout: Layout
    reason: str


@dataclass(frozen=True)
class Chain:
    """Layouts of which each takes less memory and is slower than the one before.

    Args:
        layouts: the fastest first.
        start: index of the layout that is compiled first.
    """

    layouts: tuple[Layout, ...]
    start: int = 0

    def next(self, fits: Mapping[Layout, bool]) -> Layout | None:
        """Return the layout to compile next; None if it is known which one is the first that fits, or that none does.

        `fits`: whether each layout compiled so far fits.
        """
        least, most = -1, len(self.layouts)  # the last that does not fit, and the first that fits
        for number, layout in enumerate(self.layouts):
            if layout in fits:
                least, most = (least, min(most, number)) if fits[layout] else (number, most)
        if most - least <= 1:
            return None
        is_new = least == -1 and most == len(self.layouts)
        return self.layouts[self.start if is_new else (least + most) // 2]


def strategies(
    config: Config, slice: Slice, search_batch: bool = False, models: Sequence[int] = ()
) -> tuple[list[Parallel], list[RuledOut]]:
    """Return the strategies to search, each with every fsdp that the slice allows, and the layouts ruled out.

    If train.yaml has no strategy, these are pmap, which is the default, and jit, which can divide the state. `explicit`
    is compiled to the same executable as `jit`, and `shard_map` to the same as `pmap` (docs/compile.md). Strategies
    that communicate least come first.

    Args:
        config: the job.
        slice: the slice to run on.
        search_batch: the batch size is searched, so the job's own need not fit.
        models: sizes of the mesh's axis `model` to search; empty: the job's own.
    """
    chosen: list[Parallel] = [config.parallel] if "parallel" in config.model_fields_set else [Pmap(), Jit()]
    possible, out = [], []
    for section in (one for name in chosen for one in _divided(name, slice, models)):
        layout = Layout(section, 1, _shares(section, slice) if search_batch else config.batch_size)
        if reason := _conflict(layout, config, slice):
            out.append(RuledOut(layout, reason))
        else:
            possible.append(section)
    return possible, out


def _divided(section: Parallel, slice: Slice, models: Sequence[int]) -> list[Parallel]:
    """Return the strategy with every fsdp that the slice allows; unchanged if it cannot divide the state."""
    if "mesh" not in type(section).model_fields:
        return [section] if 1 in (models or [1]) else []
    meshes = []
    for model in models or [section.grid.model]:
        # A copy of the state stays within a slice. A size that does not is refused with the reason.
        devices = slice.devices // slice.slices
        sizes = _divisors(devices // model) if devices % model == 0 else [1]
        meshes += [Mesh(fsdp=size, model=model) for size in sizes]
    return [section.model_copy(update={"mesh": mesh}) for mesh in meshes]


def _conflict(layout: Layout, config: Config, slice: Slice) -> str:
    """Return why the job cannot have this layout on the slice; empty if it can."""
    try:
        check_slice(layout.of(config), slice.devices, slice.slices, slice.kind)
    except UserError as error:
        return "; ".join(str(error).splitlines())
    problems = precision_problems(layout.of(config))
    return layout.parallel.conflict(config.model, config.optimizer) or "; ".join(problems)


def chains(
    config: Config,
    slice: Slice,
    sections: Sequence[Parallel],
    known: Survey,
    search_batch: bool = False,
    settings: Sequence[Settings] = (Settings(),),
) -> tuple[list[Chain], list[RuledOut]]:
    """Return the layouts worth compiling, and those ruled out.

    Args:
        config: the job.
        slice: the slice to run on.
        sections: the strategies that `strategies` returned.
        known: the facts about the job with each of them.
        search_batch: search the largest batch size instead of the smallest `accumulate`.
        settings: values of other keys; all of them are searched.
    """
    possible, out = [], []
    for section, held, chosen in (
        (*one, chosen) for one in zip(sections, known.held, strict=True) for chosen in settings
    ):
        layouts, start = (
            _batches(config, slice, section, known) if search_batch else _parts(config, slice, section, known)
        )
        layouts = [replace(layout, settings=chosen) for layout in layouts]
        reasons = [_reason(layout, held, known.usable) for layout in layouts]
        out += [RuledOut(layout, reason) for layout, reason in zip(layouts, reasons, strict=True) if reason]
        left = [layout for layout, reason in zip(layouts, reasons, strict=True) if not reason]
        if left:
            possible.append(Chain(tuple(left), min(start, len(left) - 1)))
    return possible, out


def remat_of(config: Config) -> str | None:
    """Return the value of `model.remat`; None if the model has no such key."""
    return getattr(config.model, "remat", None)


def with_remat(config: Config, possible: Sequence[Chain]) -> list[Chain]:
    """Return the chains with `model.remat`: first `dots`, which computes less twice, then `block`, which stores less.

    Returns no chains if the job chooses `model.remat` itself, or its model has no such key.
    """
    if remat_of(config) is None or "remat" in config.model.model_fields_set:
        return []
    offered = get_args(type(config.model).model_fields["remat"].annotation)
    again = []
    for chain in possible:
        layouts = [(layout, "block") for layout in chain.layouts]
        steps = [step for step in ((chain.layouts[0], "dots"), *layouts) if step[1] in offered]
        if steps:
            of = [replace(one, settings=replace(one.settings, remat=remat)) for one, remat in steps]
            again.append(Chain(tuple(of), chain.start and chain.start + len(of) - len(layouts)))
    return again


def smallest(config: Config, section: Parallel, slice: Slice) -> Config:
    """Return the job with this strategy and one example per device."""
    size = config.batch_size if config.batch_size == "all" else _shares(section, slice)
    return Layout(section, 1, size).of(config)


def _parts(config: Config, slice: Slice, section: Parallel, known: Survey) -> tuple[list[Layout], int]:
    """Return the layouts that differ in `accumulate`, the fastest first, and the index of the one to compile first."""
    size, shares = config.batch_size, _shares(section, slice)
    if size == "all":
        return [Layout(section, config.accumulate, size)], 0
    whole = known.whole_batch or config.optimizer.whole_set
    return [Layout(section, parts, size) for parts in ([1] if whole else _divisors(size // shares))], 0


def _batches(config: Config, slice: Slice, section: Parallel, known: Survey) -> tuple[list[Layout], int]:
    """Return the layouts that differ in the batch size, the largest first, and the index of the one to compile first."""
    size, shares = config.batch_size, _shares(section, slice)
    assert size != "all"
    powers = max(1, min(known.examples // shares, _MOST_EXAMPLES)).bit_length()
    now = min(max(1, size // shares).bit_length(), powers)
    return [Layout(section, 1, shares << power) for power in reversed(range(powers))], powers - now


def _reason(layout: Layout, held: Held, usable: int | None) -> str:
    """Return why a layout cannot fit; empty if it may fit. `usable`: bytes of a device; None: unknown."""
    if held.problem:
        return held.problem
    # With several parts the sum of their gradients is held beside the state. With one part the compiler may use up each
    # gradient before it computes the next.
    gradients = held.gradients if layout.accumulate > 1 else 0
    if usable is None or held.state + gradients <= usable:
        return ""
    if held.state > usable:
        return f"the state takes {in_bytes(held.state)} of a device, which has {in_bytes(usable)}"
    both = f"{in_bytes(held.state)} and {in_bytes(gradients)}"
    return f"the state and the sum of gradients take {both} of a device, which has {in_bytes(usable)}"


def _shares(section: Parallel, slice: Slice) -> int:
    return max(1, slice.devices // section.grid.model) if section.divides_batch else 1


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]

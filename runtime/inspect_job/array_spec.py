"""Parse the arrays of `podrun inspect --mesh`, such as `16@data,32@model`; on_mesh.py describes the syntax."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jax.sharding import PartitionSpec

from ..contract import UserError
from .expression import FUNCTIONS

_DIMENSION = re.compile(r"(\d{1,12})(?:@(?:(\w+)|\(([\w, ]+)\)))?", re.ASCII)
_NAMED = re.compile(r"\s*([^=\s]+)\s*=(.*)", re.DOTALL)
_ALONE = re.compile(r"(.*?)\s+on\s+(\S+)\s*", re.DOTALL)
_LARGEST = 10**15
"""Maximum number of elements of an array; XLA counts bytes in 64 bits."""
EXAMPLE = '"16@data,32@model"'


@dataclass(frozen=True)
class Spec:
    """A parsed array."""

    text: str
    name: str
    named: bool
    """True if the user gave the name; otherwise it is a letter, by the array's position."""
    shape: tuple[int, ...]
    axes: tuple[tuple[str, ...], ...]
    """For each dimension, the axes of the mesh that divide it."""
    device: int | None = None
    """Number in the mesh of the only device that has the array; None: it is on all devices."""

    @property
    def partition(self) -> PartitionSpec:
        return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in self.axes))

    def title(self, with_name: bool) -> str:
        return self.text if self.named or not with_name else f"{self.name}={self.text}"


def parse_arrays(texts: Sequence[str], mesh: Mapping[str, int]) -> dict[str, Spec]:
    """Parse the arrays, by name.

    Raises UserError, which lists all that are malformed, do not fit the mesh, or share a name.
    """
    specs: dict[str, Spec] = {}
    problems = []
    for number, text in enumerate(texts):
        try:
            spec = parse_array(text, mesh, chr(ord("A") + number) if number < 26 else f"A{number}")
        except UserError as error:
            problems.append(str(error))
            continue
        if spec.name in specs:
            problems.append(f"--array {text}: there is another array {spec.name}; give it another name, as other=...")
        specs[spec.name] = spec
    if problems:
        raise UserError("\n".join(problems))
    return specs


def parse_array(text: str, mesh: Mapping[str, int], letter: str = "A") -> Spec:
    """Parse one array, called `letter` if it has no name. Raises UserError if it is malformed or does not fit the mesh."""
    named = _NAMED.fullmatch(text)
    name, rest = (named[1], named[2]) if named else (letter, text)
    if not name.isidentifier() or keyword.iskeyword(name) or name in FUNCTIONS:
        why = "a function" if name in FUNCTIONS else "not a name"
        raise UserError(f"--array {text}: {name} is {why}; call the array something like x, as x={rest.strip()}")
    alone = _ALONE.fullmatch(rest)
    sizes = (alone[1] if alone else rest).replace(" ", "")
    parts = re.findall(r"[^,(]+(?:\([^)]*\))?", sizes)
    matches = [_DIMENSION.fullmatch(part) for part in parts]
    if not parts or not all(matches) or ",".join(parts) != sizes:
        raise UserError(
            f"--array {text}: not an array; write its sizes and the mesh axes that divide them, such as {EXAMPLE}, "
            '"32@(data,model),8" or "A=16,32 on 0"'
        )
    shape = tuple(int(match[1]) for match in matches if match)
    axes = tuple(tuple(filter(None, (match[2] or match[3] or "").split(","))) for match in matches if match)
    _check_axes(text, shape, axes, mesh)
    return Spec(text.strip(), name, bool(named), shape, axes, _device(text, alone[2], axes, mesh) if alone else None)


def _check_axes(text: str, shape: tuple[int, ...], axes: tuple[tuple[str, ...], ...], mesh: Mapping[str, int]) -> None:
    used = [axis for entry in axes for axis in entry]
    for axis in used:
        if axis not in mesh:
            raise UserError(f"--array {text}: the mesh has no axis {axis!r}; it has {', '.join(mesh)}")
        if used.count(axis) > 1:
            raise UserError(f"--array {text}: the axis {axis} divides it twice; an axis can divide one dimension only")
    for size, entry in zip(shape, axes, strict=True):
        pieces = math.prod(mesh[axis] for axis in entry)
        if size % pieces or not size:
            raise UserError(
                f"--array {text}: {size} does not divide into {pieces} parts ({' x '.join(entry) or 'it is empty'}); "
                f"{max(1, size // pieces) * pieces} would"
            )
    if math.prod(shape) > _LARGEST:
        raise UserError(f"--array {text}: {math.prod(shape)} numbers; at most {_LARGEST} are laid out")


def _device(text: str, number: str, axes: tuple[tuple[str, ...], ...], mesh: Mapping[str, int]) -> int:
    devices = math.prod(mesh.values())
    if not re.fullmatch("[0-9]{1,9}", number) or int(number) >= devices:
        raise UserError(f"--array {text}: there is no device {number}; the mesh has 0 to {devices - 1}")
    if any(axes):
        raise UserError(f"--array {text}: an array on one device is not divided; leave out the axes, or `on {number}`")
    return int(number)

"""Expand `--over key=a,b` into the variants of a job or a program, each with a readable name and a folder. PURE."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import yaml

from podrun.runtime.contract import UserError

from ..pod.errors import Mistakes
from ..yamlfile.yaml_file import parse

MAX_VARIANTS = 100
_FOLDER = 100  # maximum length of a folder's name
_SHOWN = 200  # characters of an option in messages
_PARTNER = {"[": "]", "{": "}"}
_QUOTED = re.compile(r"""\"(?:[^"\\]|\\.)*\"|'(?:[^']|'')*'""", re.DOTALL)
_LINE_BREAK = re.compile(r"\\.|[\r\n]", re.DOTALL)  # or an escape, which stays
OF_THE_POD = ("launch", "launch.slice", "launch.pod", "launch.workdir")
"""Keys that all runs on one pod have in common."""
_LAUNCH, _ENV = "launch.", "launch.env."
LOG_EVERY = "log.every"


@dataclass(frozen=True)
class AxisOption:
    """An option that names a key and its values."""

    name: str
    example: str
    least: int
    """Number of variants that all its values together must give at least."""
    most: int
    """Maximum number of variants; more are probably a typing mistake."""


OVER = AxisOption("--over", "for example --over parallel=pmap,single", 2, MAX_VARIANTS)


@dataclass(frozen=True)
class Axis:
    """One `--over` option: a key, and its values as text."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class Variant:
    """A combination of values, one per key."""

    name: str
    folder: str
    values: tuple[tuple[str, str], ...]
    repeat: int = 1
    """Number of this run of the variant, counted from 1; greater than 1 only with `--repeat`."""

    @property
    def label(self) -> str:
        """Return the name of this run of the variant: `lr=1e-3`, and `lr=1e-3 #2` for the second one."""
        return self.name if self.repeat == 1 else f"{self.name} #{self.repeat}"

    def overrides(self, given: Sequence[str]) -> tuple[str, ...]:
        """Return all overrides of a job, as `keys` does. Every step is logged by default."""
        typed = self.keys(given)
        keys = {text.partition("=")[0] for text in typed}
        return (*typed, *([] if keys & {"log", LOG_EVERY} else [f"{LOG_EVERY}=1"]))

    def keys(self, given: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the `given` overrides and the variant's. The name of a section comes before the section's keys."""
        typed = [*given, *map("=".join, self.values)]
        return tuple(sorted(typed, key=lambda text: text.partition("=")[0].count(".")))

    def program(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return the words of a program with `{key}` replaced by values. Values without a place become `--key=value`."""
        placed = self.placed(words)
        options = (f"--{key}={value}" for key, value in self._plain_values().items() if key not in placed)
        return (*self.filled(words), *options)

    def placed(self, words: Sequence[str]) -> set[str]:
        """Return the keys whose `{key}` is in the words of a program."""
        return {key for key in self._plain_values() if any(_place(key) in word for word in words)}

    def filled(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return the words of a program with `{key}` replaced by values."""
        values = self._plain_values()
        pattern = re.compile("|".join(re.escape(_place(key)) for key in values) or r"(?!)")
        return tuple(pattern.sub(lambda match: values[match[0][1:-1]], word) for word in words)

    def variables(self) -> tuple[str, ...]:
        """Return the `launch.env` keys that set an environment variable for each key that can be the name of one."""
        values = self._plain_values().items()
        return tuple(f"{_ENV}{key}={json.dumps(value)}" for key, value in values if is_variable(key))

    def _plain_values(self) -> dict[str, str]:
        """Return the values for a program by key, without the keys of `launch`."""
        return {key: _plain(value) for key, value in self.values if not key.startswith(_LAUNCH)}

    def launch_keys(self, given: Sequence[str]) -> tuple[str, ...]:
        """Return the `launch` keys of a program: the `given` ones and the variant's."""
        values = ((key, _text(key, value)) for key, value in self.values if key.startswith(_LAUNCH))
        return (*given, *map("=".join, values))


def is_variable(key: str) -> bool:
    """Return whether a key can be the name of an environment variable."""
    return re.fullmatch(r"[A-Za-z_]\w*", key, re.ASCII) is not None


def _place(key: str) -> str:
    return f"{{{key}}}"


def _plain(value: str) -> str:
    """Return a value without the quotes around it, as a shell would pass it to a program."""
    if not _QUOTED.fullmatch(value):
        return value
    if value[0] == "'":
        return value[1:-1].replace("''", "'")
    try:
        return str(parse(_LINE_BREAK.sub(_escaped, value))[0])
    except yaml.YAMLError:  # typed with a backslash that is no escape
        return value[1:-1].replace('\\"', '"')


def _escaped(piece: re.Match[str]) -> str:
    """Return a line break as an escape, because YAML makes a space of one."""
    return json.dumps(piece[0])[1:-1] if piece[0] in "\r\n" else piece[0]


def _text(key: str, value: str) -> str:
    """Return a value as YAML. The value of an environment variable is always a text, even if it looks like a number."""
    return json.dumps(_plain(value)) if key.startswith(_ENV) else value


def find_variants(
    over: Sequence[str], given: Sequence[str] = (), repeat: int = 1, axes_of: AxisOption = OVER
) -> list[Variant]:
    """Return all combinations of the values, the last option varying fastest, and this list `repeat` times.

    Args:
        over: the options, as typed.
        given: the other overrides.
        repeat: number of runs of each variant. The list of all variants is repeated, not each variant.
        axes_of: the option that they belong to.

    Raises:
        UserError: all mistakes.
    """
    mistakes = Mistakes()
    axes = [axis for text in over if (axis := mistakes.check(partial(parse_axis, text, axes_of)))]
    mistakes.add(*_problems(axes, given, axes_of.name))
    mistakes.raise_any()
    count = math.prod(len(axis.values) for axis in axes)
    if count < axes_of.least:
        raise UserError(f"one variant has nothing to be compared with: give more values, {axes_of.example}")
    if count * repeat > axes_of.most:
        how = f"{count} variants" if repeat == 1 else f"{repeat} runs of {count} variants"
        raise UserError(f"{axes_of.name} asks for {how}, more than {axes_of.most}: give fewer values")
    variants = _name([tuple(values) for values in itertools.product(*([(a.key, v) for v in a.values] for a in axes))])
    again = [
        replace(variant, folder=f"{variant.folder}-run{number}", repeat=number)
        for number in range(2, repeat + 1)
        for variant in variants
    ]
    return [*variants, *again]


def parse_axis(text: str, axes_of: AxisOption = OVER) -> Axis:
    """Parse key=value,value. Raises UserError if malformed."""
    name, example = axes_of.name, axes_of.example
    key, equals, values = text.partition("=")
    if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", key):
        raise UserError(f"{name} {_cut(text)}: write key.path=value,value, {example}")
    parts = split_values(values)
    if parts is None:
        raise UserError(f"{name} {_cut(text)}: a bracket or a quote has no partner; put the value in quotes")
    if "" in parts:
        raise UserError(
            f"{name} {_cut(text)}: value {parts.index('') + 1} is empty; an empty text is '', and no value is null"
        )
    if twice := [part for i, part in enumerate(parts) if part in parts[:i]]:
        raise UserError(f"{name} {_cut(text)}: {_cut(twice[0])} is there twice; keep one of them")
    return Axis(key, tuple(parts))


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def split_values(text: str) -> list[str] | None:
    """Split at commas outside brackets and quotes; None if a bracket or quote is unbalanced."""
    parts, expected, before, at = [""], "", ",", 0
    while at < len(text):
        piece = text[at]
        if piece == "," and not expected:
            parts.append("")
        elif piece in "\"'" and before in ",:[{":  # elsewhere it is an apostrophe
            quoted = _QUOTED.match(text, at)
            if quoted is None:
                return None
            piece = quoted[0]
        elif piece in _PARTNER:
            expected = _PARTNER[piece] + expected
        elif piece in "]}":
            if not expected.startswith(piece):
                return None
            expected = expected[1:]
        if piece != "," or expected:
            parts[-1] += piece
        before = before if piece == " " else piece[0]
        at += len(piece)
    return None if expected else [part.strip() for part in parts]


def _problems(axes: Sequence[Axis], given: Sequence[str], option: str) -> list[str]:
    """Return mistakes: keys that contradict each other, or that a comparison cannot vary."""
    keys = [axis.key for axis in axes]
    typed = [text.partition("=")[0] for text in given if "=" in text]
    problems = [f"{option} {key} is there twice: give all its values in one" for key in _twice(keys)]
    problems += [
        f"{key} has one value on the command line and several in {option}: remove one of the two"
        for key in dict.fromkeys(keys)
        if key in typed
    ]
    problems += [
        f"{option} {key}: all variants have the same pod, and a workdir each; use --slice, --pod and --workdir"
        for key in keys
        if key in OF_THE_POD
    ]
    return problems


def _twice(keys: Sequence[str]) -> list[str]:
    return [key for key in dict.fromkeys(keys) if keys.count(key) > 1]


# --- names ----------------------------------------------------------------------------------------------------------


def _name(products: Sequence[tuple[tuple[str, str], ...]]) -> list[Variant]:
    names = short_keys([key for key, _ in products[0]])
    return [
        Variant(
            name=" ".join(f"{names[key]}={value}" for key, value in values),
            folder=_folder(names, values),
            values=values,
        )
        for values in products
    ]


def short_keys(keys: Sequence[str]) -> dict[str, str]:
    """Return a short name for each key: its shortest unique end (learning_rate); for a `name` key, its section (model)."""
    return {key: _shortest(key, [_ends(other) for other in keys if other != key]) for key in keys}


def _shortest(key: str, others: Sequence[list[str]]) -> str:
    return next((end for end in _ends(key) if not any(end in ends for ends in others)), key)


def _ends(key: str) -> list[str]:
    """Return the ends of a dotted key, the shortest first."""
    parts = (key.removesuffix(".name") or key).split(".")
    return [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]


def _folder(names: Mapping[str, str], values: Sequence[tuple[str, str]]) -> str:
    """Return the folder of a variant. It depends on its values alone, so that another list of values finds it again.

    A name that is too long or has other characters than a folder's is shortened, and ends with a hash of the values.
    """
    name = ",".join(f"{names[key]}={value}" for key, value in values)
    text = re.sub(r"[^\w.,=+-]+", "_", name)
    if text == name and len(text.encode()) <= _FOLDER:
        return text
    digest = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:12]
    return f"{text.encode()[:_FOLDER].decode(errors='ignore')}-{digest}"

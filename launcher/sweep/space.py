"""Choose the values of a trial of a grid or a random search, from the seed and its number alone. PURE."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from random import Random

import yaml
from pydantic import JsonValue

from ..compare.variants import Variant, short_keys
from ..yamlfile.yaml_file import parse
from .sweep_file import Parameter, SweepFile

Values = Mapping[str, JsonValue]
"""The value of each key of the space."""
_BETWEEN = 0.618  # place in a range; from 3 to 9 it is no whole number, as most of the range are none
_DIGITS = 6  # significant digits of a number from a range, so that it is short in tables and read back exactly


def values_of(sweep: SweepFile, number: int) -> Values:
    """Return the values of trial `number`, counted from 0."""
    return _combination(sweep, number) if sweep.search == "grid" else _drawn(sweep, number)


def _combination(sweep: SweepFile, number: int) -> Values:
    """Return a combination of the listed values; the last key varies fastest."""
    values: dict[str, JsonValue] = {}
    for key, parameter in reversed(sweep.space.items()):
        assert parameter.values
        number, index = divmod(number, len(parameter.values))
        values[key] = parameter.values[index]
    return {key: values[key] for key in sweep.space}


def _drawn(sweep: SweepFile, number: int) -> Values:
    """Return random values. Each key has its own generator, so that another key changes nothing for the others."""
    return {
        key: drawn(parameter, Random(f"{sweep.seed} {number} {key}").random()) for key, parameter in sweep.space.items()
    }


def drawn(parameter: Parameter, share: float) -> JsonValue:
    """Return the value at a place between 0 (inclusive) and 1 (exclusive) of a parameter's values."""
    if parameter.values is not None:
        return parameter.values[int(share * len(parameter.values))]
    assert parameter.min is not None and parameter.max is not None
    low, high = parameter.min, parameter.max
    if parameter.whole:
        low, high = low - 0.5 if not parameter.log else low, high + 0.5 if not parameter.log else high + 1
    number = math.exp(math.log(low) + share * math.log(high / low)) if parameter.log else low + share * (high - low)
    if parameter.whole:
        number = math.floor(number) if parameter.log else math.floor(number + 0.5)
        return int(min(max(number, parameter.min), parameter.max))
    return rounded(parameter, number)


def rounded(parameter: Parameter, number: float) -> float:
    """Return a number of a range with few digits, within the range."""
    assert parameter.min is not None and parameter.max is not None
    return min(max(float(f"{number:.{_DIGITS}g}"), parameter.min), parameter.max)


def corners(sweep: SweepFile) -> list[Values]:
    """Return trials that have each listed value, and of each range both ends and a number between, at least once.

    A value that the job does not accept is found by them before anything starts.
    """
    ends = {key: _ends(parameter) for key, parameter in sweep.space.items()}
    count = max(map(len, ends.values()))
    return [{key: values[min(number, len(values) - 1)] for key, values in ends.items()} for number in range(count)]


def _ends(parameter: Parameter) -> Sequence[JsonValue]:
    if parameter.values is not None:
        return parameter.values
    ends: list[JsonValue] = [parameter.min, parameter.max]
    ends = [int(end) if parameter.whole and isinstance(end, float) else end for end in ends]
    return [*ends, drawn(parameter, _BETWEEN)]


def variant_of(number: int, values: Values) -> Variant:
    """Return a trial as a variant of the job: its name, its folder, and its values as YAML."""
    texts = tuple((key, text_of(value)) for key, value in values.items())
    names = short_keys([*values])
    name = " ".join(f"{names[key]}={text}" for key, text in texts)
    return Variant(name, f"trial-{number:04d}", texts)


def text_of(value: JsonValue) -> str:
    """Return a value as YAML on one line, without quotes where it needs none."""
    if isinstance(value, str):
        try:
            plain = parse(value)[0] == value and value == value.strip() and not set(value) & set("\"'[]{},:#\n")
        except yaml.YAMLError:
            plain = False
        if plain:
            return value
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else "".join(map(_escaped, text))


def _escaped(char: str) -> str:
    """Return a character as YAML has it between double quotes; that reads JSON's surrogate pairs as errors."""
    return char if char.isprintable() else f"\\U{ord(char):08x}"

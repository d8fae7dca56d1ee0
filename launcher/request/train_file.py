"""Read train.yaml and `key.path=value` overrides into a validated config, and report all mistakes at once."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from podrun.runtime.config import Launch, LaunchSection
from podrun.runtime.contract import UserError

from ..pod.errors import Mistakes
from ..yamlfile.mistakes import SHOWN, describe_mistakes, mistakes_error
from ..yamlfile.near import near_files
from ..yamlfile.short import short
from ..yamlfile.yaml_file import parse, read_mapping, yaml_problem

if TYPE_CHECKING:
    from podrun.runtime.config import Config


def read_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Return the job that `path` and the overrides describe.

    Its relative files are looked for in the current folder, then beside `path`. Raises one UserError with all mistakes:
    each with its line, key, value and remedy.
    """
    values, lines = read_mapping(
        path,
        str(path),
        "the job",
        instead=_what_to_read,
        start="give the train.yaml of a job; `podrun schema` lists the keys, examples/ has files to start from",
    )
    given = _apply_overrides(values, overrides)
    from podrun.runtime.config import Config, with_files_beside  # slow import that user programs do not need

    try:
        config = Config.model_validate(values)
    except ValidationError as invalid:
        raise mistakes_error(str(path), describe_mistakes(Config, invalid.errors(), lines, given)) from None
    if os.path.realpath(path.parent) == os.path.realpath("."):
        return config
    return with_files_beside(config, path.parent, given)


def with_overrides(config: Config, overrides: Sequence[str], sections: Sequence[str]) -> Config:
    """Return a job with overrides of some of its sections. Raises one UserError with all mistakes."""
    if not overrides:
        return config
    values = config.model_dump(mode="json")
    given = _apply_overrides(values, overrides)
    if other := sorted(key for key in given if key.partition(".")[0] not in sections):
        raise UserError(f"{', '.join(other)}: only keys of {' and '.join(sections)} can be given here")
    from podrun.runtime.config import Config as Job

    try:
        return Job.model_validate(values)
    except ValidationError as invalid:
        raise mistakes_error("the command line", describe_mistakes(Job, invalid.errors(), {}, given)) from None


def read_launch(overrides: Sequence[str]) -> Launch:
    """Return the section `launch` of a user program, from its overrides. Raises one UserError with all mistakes."""
    values: dict[str, Any] = {}
    given = _apply_overrides(values, overrides)
    if other := sorted(key for key in given if key.partition(".")[0] != "launch"):
        raise UserError(f"{', '.join(other)}: a program of your own takes only launch.key=value before the `--`")
    try:
        return Launch(**dict(LaunchSection.model_validate(values.get("launch") or {})))
    except ValidationError as invalid:
        from podrun.runtime.config import Config

        errors = [{**e, "loc": ("launch", *e["loc"])} for e in invalid.errors()]
        rows = describe_mistakes(Config, errors, {}, given)  # type: ignore[arg-type]
    raise mistakes_error("the command line", rows)


def _what_to_read(path: Path) -> str:
    """Return what to do about a train.yaml that cannot be read."""
    if "=" in path.name:
        return "the train.yaml comes first, then the key.path=value overrides"
    return near_files(path) or "give the path of a train.yaml; `podrun --help` shows how, and lists the commands"


def _apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> set[str]:
    """Set each `a.b=value` in `values`, and return the dotted keys. Raises UserError for a malformed override."""
    mistakes = Mistakes()
    given = {key for override in overrides if (key := mistakes.check(partial(_apply, values, override)))}
    del mistakes.texts[SHOWN:]
    mistakes.raise_any()
    return given


def _apply(values: dict[str, Any], override: str) -> str:
    dotted, equals, text = override.partition("=")
    if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", dotted):
        raise UserError(
            f"{short(override)} on the command line is not an override: write key.path=value, "
            "for example optimizer.learning_rate=1e-3"
        )
    try:
        value = parse(text)[0] if text else ""
    except yaml.YAMLError as error:
        raise UserError(f"{short(override)} on the command line: {yaml_problem(error)}") from None
    _set(values, dotted.split("."), value, override)
    return dotted


def _set(values: dict[str, Any], keys: list[str], value: Any, override: str) -> None:
    for depth, key in enumerate(keys[:-1]):
        inner = values.get(key)
        if inner is None:
            inner = {}
        elif isinstance(inner, str):  # `model: gpt2` stands for `model: {name: gpt2}`
            inner = {"name": inner}
        elif not isinstance(inner, dict):
            section = ".".join(keys[: depth + 1])
            raise UserError(
                f"{short(override)} on the command line: {section} is {short(inner)}, it has no keys below it; "
                f"write {section}=value"
            )
        values[key] = inner = dict(inner)
        values = inner
    values[keys[-1]] = value

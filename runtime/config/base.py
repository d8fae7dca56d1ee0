"""Base classes and field types of the sections of train.yaml."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, GetCoreSchemaHandler, Tag
from pydantic_core import CoreSchema

PLUGIN_PATTERN = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"

_PLUGIN = "plugin"
T = TypeVar("T")

Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NaturalFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, lt=1)]


SELECTS = "Selects this choice; the other keys of the section belong to it."
"""Description of the key `name` of a choice."""


class Section(BaseModel):
    """Base of all sections: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Plugin(Section):
    """The user's own code. The module is looked up from the directory where podrun was called."""

    name: Annotated[
        str, Field(pattern=PLUGIN_PATTERN, description="The class or function, as package.module:attribute.")
    ]
    options: dict[str, Any] = Field(
        default={}, description="Options of your own: the class or function gets this mapping unchanged."
    )


@dataclass(frozen=True)
class Tunable:
    """Mark a field whose value may change when a job is resumed."""

    set_or_null: bool = False
    """True if null gives the state another structure: a resumed job may change the value, but not set or remove it."""


Tuned = Annotated[T, Tunable()]
"""Annotation of a field whose value may change when a job is resumed."""


@dataclass(frozen=True)
class ReadsFiles:
    """Mark a field that names files: `check(value, key)` returns their paths, or raises UserError if one is missing here."""

    check: Callable[[Any, str], Sequence[Path]]


class Choice:
    """Mark a union of sections as a seam: the key `name` of a mapping selects the section, or a plug-in.

    Args:
        default: name that a mapping without `name` gets.
        plugins: also accept `package.module:attribute` as a name; the last section of the union is for it.
    """

    def __init__(self, default: str, plugins: bool = True) -> None:
        self._default = default
        self._plugins = plugins

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        tagged = [
            Annotated[section, Tag(tag)] for section, tag in zip(get_args(source), self._tags(source), strict=True)
        ]
        names = ", ".join(tag for tag in self._tags(source) if tag != _PLUGIN)
        discriminator = Discriminator(
            self._tag,
            custom_error_type="unknown_choice",
            custom_error_message=f"`name` must be one of {names}{', or package.module:attribute' * self._plugins}",
        )
        return handler.generate_schema(Annotated[Union[tuple(tagged)], discriminator])  # noqa: UP007

    def _tag(self, value: Any) -> str:
        name = value.get("name", self._default) if isinstance(value, dict) else getattr(value, "name", self._default)
        return _PLUGIN if self._plugins and ":" in str(name) else str(name)

    def _tags(self, source: Any) -> list[str]:
        return [name_of(section) or _PLUGIN for section in get_args(source)]


def name_of(section: type[Section]) -> str:
    """Return the name that selects this section; empty for a plug-in, whose name is the user's."""
    name = section.model_fields["name"].default
    return name if isinstance(name, str) else ""


def named(value: Any) -> Any:
    """Expand a name to a section: `model: gpt2` is short for `model: {name: gpt2}`."""
    return {"name": value} if isinstance(value, str) else value


Named = BeforeValidator(named)


AnyPlugin = Annotated[Plugin, BeforeValidator(named, json_schema_input_type=str | Plugin)]
"""A plug-in, or its name alone."""


def nearest_multiples(number: int, of: int) -> str:
    """Return the multiples of `of` just below and above `number`, as in "8 or 12"."""
    below = number // of * of
    return f"{below} or {below + of}" if below else f"{of}"

"""Base classes and types of all sections of train.yaml."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field

PLUGIN_PATTERN = r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$"

Positive = Annotated[int, Field(gt=0)]
Natural = Annotated[int, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NaturalFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, lt=1)]


class Section(BaseModel):
    """Base of all sections: immutable, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Plugin(Section):
    """The user's own code. The module is found from the directory in which podrun was called."""

    name: Annotated[str, Field(pattern=PLUGIN_PATTERN, description="package.module:attribute")]
    options: dict[str, Any] = Field(default={}, description="Passed to the attribute as it is.")


def choice(default: str, **sections: type[Section]) -> Any:
    """Return the discriminator of a seam, which picks the section class of a mapping by its `name`."""

    def tag(value: Any) -> str:
        name = value.get("name", default) if isinstance(value, dict) else getattr(value, "name", default)
        return "plugin" if ":" in str(name) else str(name)

    allowed = ", ".join(sections)
    return Discriminator(
        tag,
        custom_error_type="unknown_choice",
        custom_error_message=f"`name` must be one of {allowed}, or package.module:attribute",
    )


def named(value: Any) -> Any:
    """Expand a name to a section: `model: gpt2` is short for `model: {name: gpt2}`."""
    return {"name": value} if isinstance(value, str) else value


Named = BeforeValidator(named)


def nearest_multiples(number: int, of: int) -> str:
    below = number // of * of
    return f"{below} or {below + of}" if below else f"{of}"

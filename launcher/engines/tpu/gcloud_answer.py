"""Parse and check gcloud's answers, which are untrusted input."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from podrun.runtime.contract import UnavailableError

from ...yamlfile.short import short
from .gcloud import TpuName, Verb


class Answer(BaseModel):
    """An object within an answer. Unknown fields are ignored."""

    model_config = ConfigDict(alias_generator=to_camel, coerce_numbers_to_str=True)


T = TypeVar("T", bound=Answer)


def parse_answer(verb: Verb, tpu: TpuName, kind: type[T], answer: Any) -> T:
    """Return the answer as `kind`. Raises UnavailableError, which names the first invalid field."""
    try:
        return kind.model_validate(answer)
    except ValidationError as invalid:
        error = invalid.errors()[0]
    key = ".".join(map(str, error["loc"]))
    if error["type"] == "missing":
        what = f"has no {key}"
    elif key:
        what = f"has {key}: {short(str(error['input']))}"
    else:
        what = f"is {short(str(answer))}"
    raise UnavailableError(
        f"{tpu.label}: gcloud's answer {what}, which podrun cannot use; look at `{tpu.command(verb.name, verb.group)}`, "
        "update gcloud, or name the hosts with --hosts"
    )

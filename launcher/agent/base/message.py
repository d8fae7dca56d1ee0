"""Messages as types: a message is a class of `Message`, and `check_of` derives its check from the declared fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Tuple

from .schema import (
    Check,
    Malformed,
    anything,
    count,
    each,
    either,
    exit_code,
    flag,
    integer,
    maybe,
    metric,
    number,
    port,
    python_version,
    raw,
    record,
    short,
    table,
    text,
    version,
    words,
)

__all__ = [
    "Count",
    "ExitStatus",
    "Frames",
    "Message",
    "Metric",
    "Port",
    "PythonVersion",
    "Raw",
    "Version",
    "Words",
    "check_of",
    "fields_of",
    "frame_checks",
    "kind_of",
    "one_of",
]

if TYPE_CHECKING:
    from typing import TypedDict as Message

    Count = int
    Port = int
    ExitStatus = int
    Words = str
    Raw = str
    Version = str
    PythonVersion = str
    Metric = float
else:

    class Message(dict):
        """A JSON object with declared fields: a TypedDict from whose annotations `check_of` derives a check.

        The fields of a subclass with `total=False` are optional; TypedDict of Python 3.8 does not keep that for inherited
        fields. A file that declares messages may not import `annotations` from `__future__`, which would make them texts.
        """

        def __init_subclass__(cls, total=True):
            cls.is_total = total

    Count, Port, ExitStatus = count, port, exit_code
    Words, Raw, Version, PythonVersion = words, raw, version, python_version
    Metric = metric

Frames = Dict[str, Check]
"""Maps the kind of a frame to the check of its fields."""

_OF_TYPES: Dict[Any, Check] = {str: text, bool: flag, int: integer, float: number, Any: anything}


def check_of(declared: Any, known: Dict[Any, Check] = {}) -> Check:
    """Return the check of a declared type: a Message, List, Dict, Optional, Union of two, a plain type, or a check itself.

    `known` maps further types to their checks.
    """
    if declared in known or declared in _OF_TYPES:
        return known.get(declared) or _OF_TYPES[declared]
    if hasattr(declared, "is_total"):
        required, optional = fields_of(declared)
        return record(required, optional)
    origin: Any = getattr(declared, "__origin__", None)
    inner: Tuple[Any, ...] = getattr(declared, "__args__", ())
    if origin is list:
        return each(check_of(inner[0], known))
    if origin is dict:
        return table(check_of(inner[1], known))
    if inner:  # a Union
        first, *second = [check_of(one, known) for one in inner if one is not type(None)]
        check = either(first, second[0]) if second else first
        return maybe(check) if type(None) in inner else check
    checked: Check = declared
    return checked


def fields_of(message: Any) -> Tuple[Dict[str, Check], Dict[str, Check]]:
    """Return the checks of a message's fields: those of the required ones, and those of the optional ones."""
    required: Dict[str, Check] = {}
    optional: Dict[str, Check] = {}
    for cls in reversed(message.__mro__):
        if hasattr(cls, "is_total"):
            fields = required if cls.is_total else optional
            declared = getattr(cls, "__annotations__", {})  # Python 3.8 has none for a class without fields
            fields.update((name, check_of(kind)) for name, kind in declared.items() if name != "type")
    return required, optional


def frame_checks(frames: Any) -> Frames:
    """Return the checks of a Union of frames, by the kind of each."""
    return {kind_of(frame): check_of(frame) for frame in frames.__args__}


def one_of(frames: Frames) -> Check:
    """Return the check that accepts each of the frames."""

    def check(frame: Any) -> None:
        kind = frame.get("type") if isinstance(frame, dict) else None
        if not isinstance(kind, str) or kind not in frames:
            raise Malformed("unknown type %s" % short(kind))
        frames[kind](frame)

    return check


def kind_of(frame: Any) -> str:
    """Return a frame's kind, the value of its Literal `type`."""
    declared = next(cls.__annotations__["type"] for cls in frame.__mro__ if "type" in cls.__annotations__)
    kind: str = declared.__args__[0]
    return kind

"""Load the user's code, `package.module:attribute`, looked up from the directory where podrun was called."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Iterable
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, TypeVar

from .contract import UserError

Method = TypeVar("Method")


def hook(method: Method) -> Method:
    """Mark a method that has a default and may be overridden. Classes of podrun override only marked and abstract methods."""
    method.is_hook = True  # type: ignore[attr-defined]
    return method


def load(name: str, key: str) -> Any:
    """Import the attribute `name`. `key` is its key in train.yaml, for errors. Raises UserError if that fails."""
    module_name, _, attribute = name.partition(":")
    module = _import(module_name, name, key)
    try:
        return getattr(module, attribute)
    except AttributeError:
        public = ", ".join(n for n in vars(module) if not n.startswith("_"))[:200]
        raise UserError(f"{key}: module {module_name!r} has no {attribute!r}; it has: {public or 'nothing'}") from None


def call(name: str, key: str, **arguments: Any) -> Any:
    """Load the attribute `name` and call it with `arguments` by position. Raises UserError if it does not take them."""
    function = load(name, key)
    check_call(function, name, key, arguments)
    if any(base.__module__.startswith("flax.linen.") for base in getattr(function, "__mro__", ())):
        names = [field.name for field in fields(function)]
        if names[: len(arguments)] != [*arguments]:  # such a class takes any values, and would fail far from here
            words, has = ", ".join(arguments), ", ".join(names)
            refuse(name, key, f"has the fields {has}, but is called with ({words}): name a function that makes one")
    try:
        return function(*arguments.values())
    except StopIteration as error:
        line = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(line.filename).name}:{line.lineno}"
        refuse(
            name, key, f"raises StopIteration at {where}: an iterator had nothing more; give `next` a second argument"
        )


def check_call(
    function: Any, name: str, key: str, positional: Iterable[str], by_name: Iterable[str] = (), part: str = ""
) -> None:
    """Raise UserError unless `function` takes these arguments.

    Args:
        function: the plug-in, or a part of it.
        name: name of the plug-in, for errors.
        key: its key in train.yaml, likewise.
        positional: names of the positional arguments.
        by_name: names of the keyword arguments.
        part: name of the part of the plug-in that `function` is, if it is one.
    """
    positional, by_name = list(positional), list(by_name)
    words = ", ".join([*positional, *(f"{word}=..." for word in by_name)])
    start = f"its `{part}` " if part else ""
    if not callable(function):
        refuse(name, key, f"{start}is {short(function)}, which cannot be called with ({words})")
    signature = signature_of(function)
    if signature is None:
        return
    try:
        signature.bind(*positional, **dict.fromkeys(by_name))
    except TypeError:
        refuse(name, key, f"{start}takes {signature}, but is called with ({words})")


def signature_of(function: Any) -> inspect.Signature | None:
    """Return the signature of a function or of a class's constructor; None if Python has none, as for some C functions."""
    try:
        if isinstance(function, type) and type(function).__call__ is not type.__call__:  # such as flax.nnx's metaclass
            return without_self(inspect.signature(function.__init__))  # type: ignore[misc]
        return inspect.signature(function)
    except (ValueError, TypeError):
        return None


def without_self(signature: inspect.Signature) -> inspect.Signature:
    """Return the signature of a method without its first parameter."""
    return signature.replace(parameters=[*signature.parameters.values()][1:])


def refuse(name: str, key: str, reason: str) -> NoReturn:
    """Raise UserError for a plug-in that does not fulfil docs/plugins.md."""
    module = sys.modules.get(name.partition(":")[0])
    file = getattr(module, "__file__", None)
    raise UserError(f"{key} {name}{f' ({file})' if file else ''}: {reason}; docs/plugins.md says what is expected")


def expect(value: Any, kind: type, name: str, key: str) -> Any:
    """Return `value` if it is an instance of `kind`; else raise UserError."""
    if not isinstance(value, kind):
        refuse(name, key, f"returns {short(value)}, expected {kind.__module__}.{kind.__name__}")
    return value


def _import(module_name: str, name: str, key: str) -> ModuleType:
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UserError(
                f"{key}: there is no module {module_name!r} to import {name!r} from; "
                "podrun looks in the directory that it is called from, and among the installed packages"
            ) from None
        _refuse_import(error, module_name, key)
    except (Exception, SystemExit) as error:
        _refuse_import(error, module_name, key)


def _refuse_import(error: BaseException, module_name: str, key: str) -> NoReturn:
    """Print the traceback, and raise UserError with the place in the user's code."""
    traceback.print_exception(error)
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    at = (frames[-1].filename, frames[-1].lineno) if len(frames) > 1 else ("", 0)
    if isinstance(error, SyntaxError):
        at = (error.filename or "", error.lineno or 0)
    where = f" ({at[0]}, line {at[1]})" if at[0] else ""
    words = str(error).partition("\n")[0]
    raise UserError(
        f"{key}: importing {module_name!r} fails{where}: {type(error).__name__}: {words}; "
        f"`python -c 'import {module_name}'` in the directory that podrun is called from shows it too"
    ) from None


def short(value: Any) -> str:
    """Return the type of a value, for a message."""
    return "None" if value is None else f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")

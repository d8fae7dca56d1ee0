"""The user's own code: `package.module:attribute`, found from the directory in which podrun was called."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .contract import UserError


def load(name: str, key: str) -> Any:
    """The attribute that `name` names; `key` is where train.yaml says so. Raises UserError if it is not there."""
    module_name, _, attribute = name.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UserError(
                f"{key}: there is no module {module_name!r} to import {name!r} from; "
                "it is looked for in the directory that podrun is called from, and among the installed packages"
            ) from None
        raise
    try:
        return getattr(module, attribute)
    except AttributeError:
        public = ", ".join(n for n in vars(module) if not n.startswith("_"))[:200]
        raise UserError(f"{key}: module {module_name!r} has no {attribute!r}; it has: {public or 'nothing'}") from None

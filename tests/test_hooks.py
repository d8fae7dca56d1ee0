"""Nothing that has a body is replaced by a subclass, but for what says of itself that it may be: a hook."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib import import_module
from pkgutil import walk_packages
from typing import Any

import pytest

ROOMS = (
    *("podrun.runtime.parallel", "podrun.runtime.tasks", "podrun.runtime.models"),
    *("podrun.launcher.pod", "podrun.launcher.inventory", "podrun.launcher.transport"),
)
DEFENDED = {
    "Transport.close",  # nothing is open with most
    "Transport.prepare",  # only an image has to be brought to the hosts
    "Transport.why_over",  # only a batch system knows, and what srun says is srun's alone
    "Transport.remark",
    "Channel.why_not_started",
}  # do nothing by default; the launcher has no file for a marker of so few methods


def classes(room: str) -> Iterator[type]:
    """Yield the classes that the modules of a room define."""
    package = import_module(room)
    for module in walk_packages(package.__path__, f"{room}."):
        for value in vars(import_module(module.name)).values():
            if inspect.isclass(value) and value.__module__ == module.name:
                yield value


def function_of(value: Any) -> Any:
    """Return the function of a method or property; None for a plain value."""
    value = getattr(value, "fget", None) or getattr(value, "func", None) or getattr(value, "__func__", value)
    return value if inspect.isfunction(value) else None


def overrides(kind: type) -> Iterator[str]:
    """Yield the methods of `kind` that replace one with a body, of a class of podrun, which is no hook."""
    for name in [name for name in vars(kind) if not name.startswith("__")]:
        for base in kind.__mro__[1:]:
            function = function_of(vars(base).get(name))
            if not base.__module__.startswith("podrun.") or function is None:
                continue
            if not getattr(function, "__isabstractmethod__", False) and not getattr(function, "is_hook", False):
                yield f"{base.__name__}.{name}"


@pytest.mark.parametrize("room", ROOMS)
def test_methods_with_a_body_are_final(room: str) -> None:
    replaced = {
        f"{kind.__name__}: {name}" for kind in classes(room) for name in overrides(kind) if name not in DEFENDED
    }
    assert replaced == set()


def test_an_override_is_noticed() -> None:
    """Overrides of a method and of a property are noticed, also two classes up; abstract ones and hooks may be replaced."""
    from podrun.runtime.parallel.single import Single

    class Wrong(Single):
        shares = 3  # type: ignore[assignment]

        def step(self, state: Any, batch: Any) -> Any: ...
        def shard(self, batch: Any) -> Any: ...
        def average(self, metrics: Any) -> Any: ...

    assert set(overrides(Wrong)) == {"Strategy.shares", "Strategy.step", "Single.shard"}

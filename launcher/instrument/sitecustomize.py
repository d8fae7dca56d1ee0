"""Run at the start of every Python of a user's program, in well under a millisecond: watch, and import nothing yet.

`sitecustomize` is Python's own name for such a file. One that the user has stays in force: it is loaded from here.
"""

from __future__ import annotations

import atexit
import builtins
import sys
from _thread import get_ident

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes longer to import than all else here
    from typing import Any


def _helper() -> Any:
    """Import the rest, which only a program needs that uses JAX, or that fails."""
    import podrun_program  # type: ignore[import-not-found]

    return podrun_program


def _jax() -> Any:
    import podrun_jax  # type: ignore[import-not-found]

    return podrun_jax


def _watch_threads() -> None:
    import threading

    before = threading.excepthook

    def excepthook(args: Any) -> None:
        if args.exc_type in (
            _BuiltIn,
            _SystemExit,
        ):  # Python's own hook ignores the first, and knows nothing of the other
            return
        before(args)
        _helper().report(args.exc_type, args.exc_value, args.exc_traceback)

    threading.excepthook = excepthook


def _excepthook(kind: Any, error: Any, trace: Any) -> None:
    _hook_before(kind, error, trace)
    if not issubclass(kind, KeyboardInterrupt):
        _helper().report(kind, error, trace)


_BuiltIn = SystemExit


class _SystemExit(SystemExit):
    """Take the place of the built-in name, because Python tells nobody of the SystemExit that ends it before it has ended.

    `except SystemExit` catches this one, and no other is raised in Python: `sys.exit` raises it as well.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if type(self) is _SystemExit and get_ident() == _main_thread:
            _note_exit(self.code, sys._getframe(1))


_SystemExit.__name__ = _SystemExit.__qualname__ = "SystemExit"
_SystemExit.__module__ = "builtins"


def _note_exit(status: Any, frame: Any) -> None:
    if status is not None and status != 0:
        _helper().note_exit(status, frame)
    elif "podrun_program" in sys.modules:
        _helper().forget_exit()


def _exit(status: Any = None) -> Any:
    raise _SystemExit(*status if isinstance(status, tuple) else [status] * (status is not None))


def _at_exit() -> None:
    if getattr(sys, "last_value", None) is not None:
        _helper().leave()


_after_import: Any = {
    "threading": _watch_threads,
    "jax": lambda: _helper().watch_exit(),
    "jax._src.clusters": lambda: _jax().join_with_jax(),
    "jax._src.distributed": lambda: _jax().prepare_joining(),
    "jax._src.xla_bridge": lambda: _jax().watch_backends(),
}


class _Watcher:
    """Finder on `sys.meta_path` that calls a function after the import of a module that is watched."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _after_import:
            return None
        after = _after_import.pop(name)
        for finder in sys.meta_path:
            spec: Any = (
                finder.find_spec(name, path, target) if finder is not self and hasattr(finder, "find_spec") else None
            )
            if spec is not None:
                break
        else:
            return None
        load: Any = getattr(spec.loader, "exec_module", None)

        def load_and_call(module: Any) -> None:
            load(module)
            try:
                after()
            except Exception as error:  # the program's own work matters more
                print("podrun: cannot watch %s: %s: %s" % (name, type(error).__name__, error), file=sys.stderr)

        try:
            spec.loader.exec_module = load_and_call
        except (AttributeError, TypeError):  # built in, or another kind of loader
            pass
        return spec


def _load_next() -> None:
    """Load the `sitecustomize` that this one hides."""
    from _frozen_importlib import module_from_spec
    from _frozen_importlib_external import PathFinder

    folder = __file__.rpartition("/")[0]
    spec: Any = PathFinder.find_spec("sitecustomize", [path for path in sys.path if path.rstrip("/") != folder])
    if spec is not None and spec.loader is not None:
        module: Any = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        load: Any = spec.loader.exec_module
        load(module)


atexit.register(_at_exit)  # a program may have put its own excepthook in the place of this one
_main_thread = get_ident()
_hook_before = sys.excepthook
sys.excepthook, sys.exit, builtins.SystemExit = _excepthook, _exit, _SystemExit  # type: ignore[misc]
if "threading" in sys.modules:
    _after_import.pop("threading")()
sys.meta_path.insert(0, _Watcher())
_load_next()

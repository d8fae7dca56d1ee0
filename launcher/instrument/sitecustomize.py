"""Install hooks, at the start of each Python process of a user's program, that report how it ends. Takes about 1 ms.

Python imports a module `sitecustomize` at its start. The user's own one still runs: this one loads it.

The program may change `sys.path`, have files with the names of standard modules, or lose the permission to read this folder.
So everything here is loaded before the program runs, by its path, and imports only `os` and built-in modules.
"""

# No `from __future__ import annotations`: it imports a module that the program may hide.
import _thread
import atexit
import builtins
import os
import sys
from _frozen_importlib import module_from_spec
from _frozen_importlib_external import PathFinder, spec_from_file_location

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing takes longer than everything else here
    from typing import Any

_FOLDER = __file__.rpartition("/")[0]
_main_thread = _thread.get_ident()
_hook_before = sys.excepthook
_BuiltIn = SystemExit
_program: "Any" = None
_jax: "Any" = None


def _load(name: str) -> "Any":
    """Load a file of this folder without adding it to `sys.modules`."""
    spec = spec_from_file_location(name, "%s/%s.py" % (_FOLDER, name))
    module = module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


def _quietly(function: "Any", *given: "Any") -> None:
    """Call a function of this folder, and ignore its exceptions: they must not disturb the program."""
    try:
        function(*given)
    except Exception:
        pass


def _watch_threads(threading: "Any") -> None:
    before = threading.excepthook

    def excepthook(args: "Any") -> None:
        # Python's own hook ignores the built-in SystemExit only.
        if args.exc_type in (_BuiltIn, _SystemExit):
            return
        try:
            before(args)
        finally:
            _quietly(_program.report, args.exc_type, args.exc_value, args.exc_traceback)

    threading.excepthook = excepthook
    if hasattr(threading, "__excepthook__"):  # since Python 3.10; a program may restore it
        threading.__excepthook__ = excepthook


def _excepthook(kind: "Any", error: "Any", trace: "Any") -> None:
    try:
        _hook_before(kind, error, trace)
    finally:
        if not issubclass(kind, KeyboardInterrupt) and _thread.get_ident() == _main_thread:
            _quietly(_program.report_end, kind, error, trace, sys._getframe())


class _SystemExit(SystemExit):
    """Replaces the built-in SystemExit, because Python calls no hook for the SystemExit that ends the program.

    `except SystemExit` catches this class. `sys.exit` and `_thread.exit` are replaced as well, and raise it.
    """

    def __new__(cls, *args: "Any", **keys: "Any") -> "Any":
        if cls is not _SystemExit and _thread.get_ident() == _main_thread:
            _quietly(_program.forget_exit)  # the new exception may end the program with any code
        return super().__new__(cls, *args, **keys)

    def __init__(self, *args: "Any") -> None:
        super().__init__(*args)
        if type(self) is _SystemExit and _thread.get_ident() == _main_thread:
            try:
                _program.note_exit(self, sys._getframe(1))
            except Exception:  # as in `_quietly`, which would add a frame
                pass


_SystemExit.__name__ = _SystemExit.__qualname__ = "SystemExit"
_SystemExit.__module__ = "builtins"


def _exit(status: "Any" = None, /) -> "Any":
    raise _SystemExit(*status if isinstance(status, tuple) else [status] * (status is not None))


def _exit_thread() -> "Any":
    raise _SystemExit


_exit.__name__ = _exit.__qualname__ = _exit_thread.__name__ = _exit_thread.__qualname__ = "exit"

_after_import: "Any" = {
    "threading": _watch_threads,
    "jax": lambda jax: _program.watch_exit(),
    "jax._src.clusters": lambda clusters: _jax.join_with_jax(clusters, _program.note),
    "jax._src.distributed": lambda distributed: _jax.prepare_joining(distributed, _program.note),
    "jax._src.compiler": lambda compiler: _jax.watch_compiler(compiler, _program.note),
    "jax._src.xla_bridge": lambda bridge: _jax.watch_backends(bridge, _program.note),
}


class _Watcher:
    """Finder on `sys.meta_path` that calls a function after the import of each module that `_after_import` names."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name not in _after_import:
            return None
        for finder in sys.meta_path:
            if finder is not self and hasattr(finder, "find_spec"):
                spec: Any = finder.find_spec(name, path, target)
                if spec is not None:
                    break
        else:
            return None
        if isinstance(spec.loader, type):  # built in or frozen: all such modules share the loader
            return spec
        load: Any = getattr(spec.loader, "exec_module", None)

        def load_and_call(module: "Any") -> None:
            load(module)
            _quietly(_after_import.pop(name, _nothing), module)
            if name == "jax":
                _jax.join(module)  # not quietly: without it the program would not train on the pod

        try:
            spec.loader.exec_module = load_and_call
        except (AttributeError, TypeError):  # another kind of loader
            pass
        return spec


def _nothing(module: "Any") -> None:
    """Do nothing: the function was called already."""


def _watch() -> None:
    global _program, _jax
    _program, _jax = _load("podrun_program"), _load("podrun_jax")
    atexit.register(_quietly, _program.leave)  # the program may replace the excepthook below
    if sys.excepthook is sys.__excepthook__:  # a console prints errors differently if the two differ
        sys.__excepthook__ = _excepthook
    sys.excepthook, sys.exit, builtins.SystemExit = _excepthook, _exit, _SystemExit  # type: ignore[misc]
    _thread.exit = _thread.exit_thread = _exit_thread
    if "threading" in sys.modules:
        _after_import.pop("threading")(sys.modules["threading"])
    sys.meta_path.insert(0, _Watcher())


def _is_here(path: str) -> bool:
    """Return whether a path, in any spelling, is this folder."""
    try:
        return os.path.samestat(os.stat(path or "."), os.stat(_FOLDER))
    except OSError:
        return False


def _load_next() -> None:
    """Load the `sitecustomize` that this one hides."""
    spec: Any = PathFinder.find_spec("sitecustomize", [path for path in sys.path if not _is_here(path)])
    if spec is not None and spec.loader is not None:
        module: Any = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        load: Any = spec.loader.exec_module
        load(module)


_quietly(_watch)
_load_next()

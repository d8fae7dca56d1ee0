"""The process behind `podrun inspect` and `podrun fit`: reads a job as JSON from stdin, and writes the answer to stdout."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..compiler_package import use_kept
from ..contract import UserError
from ..worker.query import answer_query

if TYPE_CHECKING:
    from ..devices import Devices
    from ..queries import ArraysQuery, InspectQuery, LayoutsQuery


def _answer(request: InspectQuery | LayoutsQuery | ArraysQuery) -> str:
    if "arrays" not in request and (target := request["target"]):
        use_kept(str(target["platform"]))
    import jax

    if "arrays" in request:
        return _answer_arrays(request)
    from ..config import Config
    from .depends import recorded

    depends_on = recorded()
    jax.config.update("jax_threefry_partitionable", True)
    jax.config.update("jax_enable_compilation_cache", False)  # programs from the cache have no memory analysis
    if "layouts" in request:
        return _answer_layouts(request, depends_on)
    from dataclasses import asdict

    from ..queries import InspectAnswer, TooLargeAnswer
    from .look import TooLarge, look
    from .render import text

    width = request["width"]
    pod, note = _devices(request["target"], request["target_is_wanted"])
    try:
        report = look(Config.model_validate(request["config"]), request["slice"], min(width, 100) - 2, pod)
    except TooLarge as error:
        return json.dumps(asdict(TooLargeAnswer(str(error), error.excess, depends_on())))
    shown = text(report, request["title"], width) + (f"\n\n{note}" if note else "")
    return json.dumps(asdict(InspectAnswer(shown, report, depends_on())))


def _devices(given: dict[str, object] | None, is_wanted: bool) -> tuple[Devices | None, str]:
    """Return the devices to compile for, and a note if they are not those of the slice. None: the CPUs of this process.

    Args:
        given: the fields of a `Target`.
        is_wanted: whether the user asked for the target's compiler.

    Raises:
        UserError: the user asked for the compiler, but it is not installed or does not know the topology.
    """
    if given is None:
        return None, ""
    from ..compiler import devices_of
    from ..target import Target

    try:
        return devices_of(Target.of(given)), ""
    except UserError as error:
        if is_wanted:
            raise UserError(f"{error}; or give --compile-for cpu") from None
        return None, f"Compiled for CPU: {error}"


def _answer_layouts(request: LayoutsQuery, depends_on: Callable[[], list[str]]) -> str:
    """Answer a query of `podrun fit`: facts about all layouts, or the result of compiling one."""
    from dataclasses import asdict

    from ..compiler import devices_of
    from ..config import Config
    from ..queries import LayoutsAnswer
    from ..target import Target
    from .measure import measure, survey

    pod = devices_of(Target.of(request["target"]))
    configs = [Config.model_validate(config) for config in request["layouts"]]
    facts = measure(configs[0], pod) if request["compile"] else survey(configs, pod)
    return json.dumps(asdict(LayoutsAnswer(facts, depends_on())))


def _answer_arrays(request: ArraysQuery) -> str:
    from dataclasses import asdict

    from .on_mesh import look_at_arrays
    from .render_arrays import text

    report = look_at_arrays(request["mesh"], request["arrays"], request["expression"], min(request["width"], 100) - 2)
    return json.dumps(asdict(report), indent=1) if request["json"] else text(report)


if __name__ == "__main__":
    answer_query(_answer)

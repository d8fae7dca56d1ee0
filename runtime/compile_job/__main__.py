"""The processes behind `podrun compile`.

python -m podrun.runtime.compile_job        for TPUs or GPUs: a query on stdin, one process for all devices
python -m podrun.runtime.compile_job FILE   for CPUs: the query in a file, one process of a simulated pod
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from ..compiler_package import use_kept
from ..worker.query import answer_query

if TYPE_CHECKING:
    from ..executable_list import CompileQuery, Made
    from .make import Job

_WAIT = 20 * 60
"""Seconds that process 0 waits for the executable of another process."""


def _for_target(query: CompileQuery) -> str:
    """Compile for the devices of a topology, and return the executables."""
    assert query["target"] is not None
    use_kept(str(query["target"]["platform"]))
    import jax

    from ..compiler import devices_of
    from ..target import Target
    from .make import Compiler

    jax.config.update("jax_threefry_partitionable", True)
    compiler = Compiler(_job(query), devices_of(Target.of(query["target"])))
    made = compiler.of_the_pod()
    compiler.write_list(made)
    return _answer(made)


def _in_pod(query: CompileQuery) -> None:
    """Compile for the devices of the pod that this process joins; process 0 writes the answer to a file."""
    from ..distributed import configure_jax, initialize
    from ..executable_list import Made
    from ..worker.blocked import pod_store
    from .make import Compiler

    configure_jax()
    env = initialize()
    store = pod_store()
    compiler = Compiler(_job(query))
    made = compiler.of_this_process()
    if env.process_id > 0:
        store.key_value_set(f"podrun/compiled/{env.process_id}", _answer(made))
        return
    made = compiler.of_the_pod() + made
    for process in range(1, env.num_processes):
        made += Made.parse(store.blocking_key_value_get(f"podrun/compiled/{process}", _WAIT * 1000))
    compiler.write_list(made)
    Path(query["answer"]).write_text(_answer(made))


def _job(query: CompileQuery) -> Job:
    from ..config import Config
    from .make import Job

    return Job(Config.model_validate(query["config"]), query["slice"], Path(query["list"]))


def _answer(made: list[Made]) -> str:
    return json.dumps([asdict(one) for one in made])


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _in_pod(json.loads(Path(sys.argv[1]).read_text()))
    else:
        answer_query(_for_target)

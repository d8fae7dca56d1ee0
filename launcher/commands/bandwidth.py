"""`podrun check --bandwidth`: an all-reduce over all devices of a pod, as a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from podrun.runtime.config import Launch

from ..plan.program import Program
from ..plan.spec import Label, RunSpec
from ..pod.pod import Pod
from ..pod.run_id import new_run_id
from ..run.attempts import run_attempts
from ..rundir.runs import RunDirectory
from ..view.live_console import make_console

PROGRAM = ("python", "-m", "podrun.runtime.bandwidth")


def measure_bandwidth(pod: Pod) -> int:
    """Run the measurement on the pod as a run, and return its exit code. Raises UserError."""
    with TemporaryDirectory(prefix="podrun-bandwidth-") as folder:  # an empty project
        cwd = Path(folder)
        label = Label(name="check --bandwidth")
        spec = RunSpec(new_run_id(), pod, Program(PROGRAM, Launch()), cwd / "workdir", cwd, label=label)
        if not pod.traits.needs_staging:
            return run_attempts(spec, RunDirectory.create(spec), make_console(as_json=False))
        from ..run.pack import with_code

        spec, bundles = with_code(replace(spec, workdir=pod.workdir_on_hosts(Path("bandwidth"))))
        return run_attempts(spec, RunDirectory.create(spec), make_console(as_json=False), bundles)

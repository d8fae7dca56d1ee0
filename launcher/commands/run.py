"""`podrun train.yaml`: run a job in the foreground or in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING

from podrun.runtime.contract import ExitCode

from ..plan.plan import make_plan
from ..plan.program import Program
from ..pod.secret_values import read_secrets
from ..request.request import Request, make_spec, make_workdir
from ..run.attempts import run_attempts
from ..rundir.runs import RunDirectory
from ..rundir.work_tree import note_work_tree
from ..view.live_console import make_console

if TYPE_CHECKING:
    from ..remote.prestart import Prestart
    from ..run.renewal import Renewal
    from ..staging.bundle import Bundle


def run(request: Request, prestarted: Prestart | None = None, renewal: Renewal | None = None) -> int:
    """Run the job, and return podrun's exit code.

    Args:
        request: the command line.
        prestarted: transport of a simulated pod whose agents are already starting; used if the job has the same pod.
        renewal: recreates the machines of the pod if they are taken away.

    Raises UserError before the job starts.
    """
    spec = make_spec(request, prestarted.run_id if prestarted else None)
    pod = spec.pod
    bundles: tuple[Bundle, ...] = ()
    if pod.traits.needs_staging:
        from ..run.pack import with_code

        spec, bundles = with_code(spec)
    elif not isinstance(spec.job, Program):
        from ..run.pack import with_executables

        spec, bundles = with_executables(spec)
    secrets = read_secrets(pod)
    if request.dry_run:
        plan = make_plan(spec, 0, secrets)
        print(plan.to_json() if request.json else plan.render())
        return ExitCode.DONE
    if pod.traits.files_are_here and (not isinstance(spec.job, Program) or request.workdir):
        make_workdir(spec.workdir)
    if spec.pull:
        from ..results.pull_run import check_folder

        check_folder(spec, spec.pull)
    directory = RunDirectory.create(spec)
    note_work_tree([directory.work_tree], spec.cwd)
    if request.detach:
        from ..run.background import start_in_background

        return start_in_background(directory, bundles, request.json)
    console = make_console(request.json)
    transport = prestarted if prestarted and prestarted.pod == pod else None
    return run_attempts(spec, directory, console, bundles, transport=transport, renewal=renewal)

"""Commands about the hosts of a pod: `exec`, `ssh`, `clean`, `checkpoints`, `hold`, `release`; `root.py` adds them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .guard import PROGRAM, guard
from .options import pod_options

if TYPE_CHECKING:
    from ..inventory.pod_request import PodRequest

_WHERE = pod_options(
    slice="Shape of the pod; only --simulate needs it.",
    pod="Hosts of a pod file.",
    hosts="Hosts: tpu-[0-3] or 10.0.0.5,10.0.0.6; with --pod, reached by its settings.",
    hostfile="Hosts from a file with lines `HOST slots=N`.",
    tpu="Hosts of a TPU VM; needs --zone.",
    simulate="This machine, as the hosts of a simulated pod.",
)

_POD = pod_options()


def _pod_request(**where: Any) -> PodRequest:
    from ..inventory.pod_request import PodRequest

    return PodRequest.from_options(where)


@click.command(name="exec")
@_WHERE
@click.option("--run", metavar="RUN", help="Hosts of a run.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Kill the command after that time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print exit code and output of every host as JSON.")
@click.argument("command", nargs=-1, metavar="-- COMMAND [ARGS ...]")
@click.pass_context
def execute(
    ctx: click.Context, /, command: tuple[str, ...], run: str | None, timeout: float | None, as_json: bool, **where: Any
) -> None:
    """Run a command on every host at once; equal outputs are shown once.

    The arguments are passed unchanged; for pipes and variables of the hosts use -- sh -c '...'.
    Exit code: the largest of all hosts; 69 if a host cannot be reached, 124 after --timeout.

    \b
    Examples:
      podrun exec --pod pod.yaml -- nvidia-smi -L
      podrun exec --hosts "tpu-[0-3]" -- df -h /tmp
      podrun exec --run 4f2a --timeout 10 -- sh -c 'ps aux | grep python'
    """

    def action() -> int:
        from ..commands.exec import execute as execute_request

        # words before `--` are probably a mistake, and would change the command
        argv = () if command else ctx.meta.get(PROGRAM, ())
        return execute_request(_pod_request(**where), run, argv, timeout, as_json)

    guard(action)


@click.command()
@_WHERE
@click.option("--run", metavar="RUN", help="Hosts of a run.")
@click.argument("host", metavar="HOST [-- COMMAND [ARGS ...]]")
@click.pass_context
def ssh(ctx: click.Context, /, host: str, run: str | None, **where: Any) -> None:
    """Log in to one host, with the user, key, port and jump host that podrun uses.

    HOST is the name of a host, the beginning of it, or the id of a process.

    
    Examples:
      podrun ssh --pod pod.yaml tpu-3
      podrun ssh --run 4f2a 0 -- htop
    """

    def action() -> int:
        from ..commands.ssh import ssh as ssh_request

        return ssh_request(_pod_request(**where), run, host, ctx.meta.get(PROGRAM, ()))

    guard(action)


@click.command()
@_WHERE
@click.option("--older-than", metavar="TIME", help="Only what is older: 90s, 10m, 2h, 7d.  [default: 7d; with RUN: 0]")
@click.option("--dry-run", is_flag=True, help="List what would be removed.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.argument("run", required=False, metavar="[RUN]")
def clean(run: str | None, older_than: str | None, dry_run: bool, yes: bool, **where: Any) -> None:
    """Remove what finished runs have left behind.

    
    Without a pod: run directories on this machine (logs, events), but no workdirs; compiled programs, the
                   kept answers of inspect and fit, compilers (compile --install), and packages and Pythons for hosts.
    With a pod:    on its hosts, folders and processes of runs that have no agent there any more,
                   and unused bundles, environments and data sets.
    With RUN:      its run directory on this machine, and its folders and processes on its hosts.

    Never removes anything of a run that is still going, or of another user.

    
    Examples:
      podrun clean --older-than 30d --dry-run
      podrun clean --pod pod.yaml
    """

    def action() -> int:
        from ..commands.clean import CleanRequest
        from ..commands.clean import clean as clean_request

        return clean_request(CleanRequest(_pod_request(**where), run, older_than, dry_run, yes))

    guard(action)


@click.command()
@_WHERE
@click.option("--run", metavar="RUN", help="Hosts of a run.")
@click.argument("workdir", required=False, type=click.Path(path_type=Path))
@click.argument(
    "action",
    required=False,
    type=click.Choice(["drop", "keep", "unpin", "restore"]),
    metavar="[drop|keep|unpin|restore",
)
@click.argument("steps", nargs=-1, metavar="STEP ...]")
def checkpoints(
    workdir: Path | None, action: str | None, steps: tuple[str, ...], run: str | None, **where: Any
) -> None:
    """List the checkpoints of a workdir, verify them, or change which are kept.

    \b
    drop STEP ...   Delete these checkpoints.
    keep STEP ...   Keep them, however many newer ones follow.
    unpin STEP ...  Undo keep.
    restore STEP    Make it the one that the next start resumes from: newer ones are set aside, not
                    deleted. Also for one that was set aside: 20.damaged-1, 20.aside-1.

    Every file is compared with its digest; the exit code is 1 if a checkpoint is damaged. With a pod, WORKDIR is a path on
    its first host; with a run, on the host of process 0; without WORKDIR, it is that of the run, or of the newest run.
    Checkpoints in a bucket are downloaded to a temporary folder to be verified.

    \b
    Examples:
      podrun checkpoints                # the newest run
      podrun checkpoints runs/train
      podrun checkpoints runs/train restore 2000
      podrun checkpoints --pod pod.yaml train keep 1000 2000
      podrun checkpoints gs://my-bucket/train
    """

    def perform() -> int:
        from ..commands.checkpoints import CheckpointsRequest
        from ..commands.checkpoints import checkpoints as execute_request

        return execute_request(CheckpointsRequest(_pod_request(**where), run, workdir, action, steps))

    guard(perform)


@click.command()
@_POD
@click.option(
    "--idle", default="30m", metavar="TIME", show_default=True, help="End the hold after that time without a run."
)
@click.option("--list", "lists", is_flag=True, help="List the pods that are held on this machine.")
def hold(idle: str, lists: bool, **where: Any) -> None:
    """Keep agents and warm interpreters on the hosts of a pod, so that the next runs there start at once.

    Returns when all hosts are ready. `podrun train.yaml` on the same pod then finds the hold by itself; code that has changed
    is sent as ever. Devices stay free for others.

    \b
    Examples:
      podrun hold --pod pod.yaml --idle 2h
      podrun hold --slice cpu-2x2 --simulate
      podrun hold --list
    """

    def action() -> int:
        from ..commands.hold import hold as hold_pod
        from ..commands.hold import list_holds

        return list_holds() if lists else hold_pod(_pod_request(**where), idle)

    guard(action)


@click.command()
@_POD
@click.option("--all", "everything", is_flag=True, help="End all holds of this machine.")
def release(everything: bool, **where: Any) -> None:
    """End the hold of a pod: its agents and interpreters. A run that uses it must be ended first.

    \b
    Examples:
      podrun release --pod pod.yaml
      podrun release --all
    """

    def action() -> int:
        from ..commands.hold import release as release_pod

        return release_pod(_pod_request(**where), everything)

    guard(action)


COMMANDS: tuple[click.Command, ...] = (execute, ssh, clean, checkpoints, hold, release)

"""Commands about the hosts of a pod: `exec`, `ssh`, `clean`, `checkpoints`; `root.py` adds them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .guard import PROGRAM, guard
from .options import pod_options

if TYPE_CHECKING:
    from ..request.hosts import HostSelection

_WHERE = pod_options(
    slice="What they are; only --simulate needs it.",
    pod="The hosts of a pod file.",
    hosts="These hosts: tpu-[0-3] or 10.0.0.5,10.0.0.6; how, --pod may say.",
    hostfile="The hosts of a hostfile.",
    tpu="The hosts of a TPU VM; with --zone.",
    simulate="This machine, once for every host of the slice.",
)


def _selection(where: dict[str, Any], run: str | None) -> HostSelection:
    from ..inventory.pod_request import PodRequest
    from ..request.hosts import HostSelection

    return HostSelection(PodRequest.from_options(where), run)


@click.command(name="exec")
@_WHERE
@click.option("--run", metavar="RUN", help="The hosts of a run.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Kill it after that.")
@click.option("--json", "as_json", is_flag=True, help="Print exit code and output of every host as JSON.")
@click.argument("command", nargs=-1, metavar="-- COMMAND [ARGS ...]")
@click.pass_context
def execute(
    ctx: click.Context, /, command: tuple[str, ...], run: str | None, timeout: float | None, as_json: bool, **where: Any
) -> None:
    """Run a command on every host at once; equal outputs are shown once.

    Its arguments arrive as they are; for pipes and variables of the hosts: -- sh -c '...'.
    Exit code: the largest of all hosts; 69 for one that cannot be reached, 124 after --timeout.

    \b
    Examples:
      podrun exec --pod pod.yaml -- nvidia-smi -L
      podrun exec --hosts "tpu-[0-3]" -- df -h /tmp
      podrun exec --run 4f2a --timeout 10 -- sh -c 'ps aux | grep python'
    """

    def action() -> int:
        from ..commands.exec import ExecRequest
        from ..commands.exec import execute as execute_request

        # words before `--` are probably a mistake, and would change the command
        argv = () if command else ctx.meta.get(PROGRAM, ())
        return execute_request(ExecRequest(_selection(where, run), argv, timeout, as_json))

    guard(action)


@click.command()
@_WHERE
@click.option("--run", metavar="RUN", help="The hosts of a run.")
@click.argument("host", metavar="HOST [-- COMMAND [ARGS ...]]")
@click.pass_context
def ssh(ctx: click.Context, /, host: str, run: str | None, **where: Any) -> None:
    """Log in to one host, with the user, key, port and jump host that podrun uses.

    HOST is a host's name or its beginning, or the id of a process.

    
    Examples:
      podrun ssh --pod pod.yaml tpu-3
      podrun ssh --run 4f2a 0 -- htop
    """

    def action() -> int:
        from ..commands.ssh import SshRequest
        from ..commands.ssh import ssh as ssh_request

        return ssh_request(SshRequest(_selection(where, run), host, ctx.meta.get(PROGRAM, ())))

    guard(action)


@click.command()
@_WHERE
@click.option("--older-than", metavar="TIME", help="90s, 10m, 2h, 7d.  [default: 7d; with RUN: 0]")
@click.option("--dry-run", is_flag=True, help="List what would be removed.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.argument("run", required=False, metavar="[RUN]")
def clean(run: str | None, older_than: str | None, dry_run: bool, yes: bool, **where: Any) -> None:
    """Remove what runs that are over have left behind.

    
    Without a pod: their run directories on this machine (logs, events), not their workdirs.
    With a pod:    on its hosts, folders and processes of runs without a live agent there, and
                   bundles and environments that nothing uses.
    With RUN:      that run's directory here, and what it has left on its hosts.

    A run that goes on is never touched, nor anything of another user.

    
    Examples:
      podrun clean --older-than 30d --dry-run
      podrun clean --pod pod.yaml
    """

    def action() -> int:
        from ..commands.clean import CleanRequest
        from ..commands.clean import clean as clean_request

        return clean_request(CleanRequest(_selection(where, run), older_than, dry_run, yes))

    guard(action)


@click.command()
@_WHERE
@click.option("--run", metavar="RUN", help="The hosts of a run.")
@click.argument("workdir", type=click.Path(path_type=Path))
@click.argument(
    "action",
    required=False,
    type=click.Choice(["drop", "keep", "unpin", "restore"]),
    metavar="[drop|keep|unpin|restore",
)
@click.argument("steps", nargs=-1, metavar="STEP ...]")
def checkpoints(workdir: Path, action: str | None, steps: tuple[str, ...], run: str | None, **where: Any) -> None:
    """List the checkpoints of a workdir, and compare every file with its digest.

    \b
    drop STEP ...   Remove them.
    keep STEP ...   Keep them, however many newer ones there are.
    unpin STEP ...  Undo that.
    restore STEP    The next start goes on from it: newer ones are set aside, none is deleted.
                    Also brings back one that was set aside: 20.damaged-1, 20.aside-1.

    With a pod the workdir is the one that its first host sees, with a run the one of process 0.
    One in a bucket is read by this machine, and copied to a temporary folder to be compared.
    Exit code 1 if a checkpoint is damaged.

    \b
    Examples:
      podrun checkpoints runs/train
      podrun checkpoints runs/train restore 2000
      podrun checkpoints --pod pod.yaml train keep 1000 2000
      podrun checkpoints gs://my-bucket/train
    """

    def perform() -> int:
        from ..commands.checkpoints import CheckpointsRequest
        from ..commands.checkpoints import checkpoints as execute_request

        return execute_request(CheckpointsRequest(_selection(where, run), workdir, action, steps))

    guard(perform)


COMMANDS: tuple[click.Command, ...] = (execute, ssh, clean, checkpoints)

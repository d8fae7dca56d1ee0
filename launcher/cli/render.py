"""Commands that print a job for another engine: `render jobset`; `root.py` adds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .guard import guard, typed_program
from .options import complete_job, complete_slice

_NETWORKS = ("pod", "host", "tcpx", "tcpxo", "rdma")
"""The names in `engines/kubernetes/networks.py`, which is imported only when it is used."""


@click.group()
def render() -> None:
    """Print a job in the format of another engine."""


@render.command()
@click.option(
    "--image", required=True, metavar="IMAGE", help="Container image with Python, JAX for the slice, and podrun."
)
@click.option("--slice", "-s", metavar="TYPE", shell_complete=complete_slice, help="Shape of the pod: v5e-16, gpu-2x8.")
@click.option("--num-slices", type=click.IntRange(1, 10_000), metavar="N", help="Number of slices of that shape.")
@click.option(
    "--workdir",
    "-w",
    metavar="URL|DIR",
    help="Workdir: gs://BUCKET/PATH, s3://BUCKET/PATH, or a folder below --volume.",
)
@click.option(
    "--chips-per-host",
    type=click.IntRange(1, 8),
    metavar="N",
    help="Chips of each TPU machine: v5e-8 and v6e-8 are one machine with 8 or, with `4`, two with 4.  [default: 8 for them]",
)
@click.option(
    "--volume",
    multiple=True,
    metavar="WHAT:/DIR[:ro]",
    help="Mount a persistent volume claim, gs://BUCKET (GCS FUSE) or nfs://SERVER/SHARE (Filestore) at DIR; repeatable.",
)
@click.option(
    "--network",
    type=click.Choice(_NETWORKS),
    help="Network of the pods; tcpx, tcpxo and rdma are those of A3 and A4 machines.  "
    "[default: host for TPUs and several GPU machines, else pod]",
)
@click.option(
    "--accelerator", metavar="LABEL", help="GKE's label of the nodes' GPUs: nvidia-h100-80gb.  [default: any]"
)
@click.option(
    "--exclude",
    metavar="LIST",
    help="Nodes that get no pod, such as those that failed: gke-a-1,gke-a-2 (names of Kubernetes).",
)
@click.option("--spot", is_flag=True, help="Run on GKE's spot nodes only.")
@click.option(
    "--toleration",
    multiple=True,
    metavar="KEY[=VALUE][:EFFECT]",
    help="Taint of nodes that the pods tolerate; repeatable. Those of accelerators and spot nodes need none.",
)
@click.option("--queue", metavar="NAME", help="Kueue's LocalQueue that starts the JobSet.")
@click.option("--priority", metavar="NAME", help="PriorityClass of the pods.")
@click.option(
    "--service-account", metavar="NAME", help="Kubernetes service account of the pods, for access to buckets."
)
@click.option(
    "--ttl", type=click.IntRange(0, 31_536_000), metavar="SECONDS", help="Delete the JobSet so long after its end."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="PATH=VALUE",
    help="Set any other field: spec.suspend=true, pod.spec.runtimeClassName=gvisor, container.env[A].value=1; repeatable.",
)
@click.option(
    "--patch",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="YAML file whose fields are merged into the JobSet, below metadata, spec, job, pod or container.",
)
@click.option("--name", metavar="NAME", help="Name of the JobSet.  [default: that of train.yaml]")
@click.option("--namespace", "-n", metavar="NAME", help="Namespace of Kubernetes.  [default: kubectl's]")
@click.option("--submit", is_flag=True, help="Create the JobSet with kubectl.")
@click.argument(
    "job", nargs=-1, metavar="train.yaml [key.path=value ...] | -- PROGRAM [ARGS ...]", shell_complete=complete_job
)
@click.pass_context
def jobset(
    ctx: click.Context,
    /,
    job: tuple[str, ...],
    **options: Any,
) -> None:
    """Print a job as a JobSet of Kubernetes, with a Kubernetes pod for each host.

    Kubernetes restarts the job by podrun's exit codes.

    \b
    Examples:
      podrun render jobset --image IMAGE --slice v5e-16 --workdir gs://my-bucket/train train.yaml
      podrun render jobset --image IMAGE --slice gpu-2x8 --volume runs:/runs -w /runs/train train.yaml --submit
      podrun render jobset --image IMAGE --slice v5e-16 -- python my_train.py
    """
    program = typed_program(ctx, job)

    def action() -> int:
        from ..engines.kubernetes.render_jobset import JobSetRequest
        from ..engines.kubernetes.render_jobset import render as render_jobset

        return render_jobset(
            JobSetRequest(
                train=None if program else Path(job[0]),
                overrides=job if program else job[1:],
                program=program,
                **options,
            )
        )

    guard(action)


COMMANDS: tuple[click.Command, ...] = (render,)
"""Commands that `root.py` adds to the main group."""

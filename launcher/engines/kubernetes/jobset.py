"""Write the JobSet of a job: an indexed Job for each slice, a pod for each host. PURE.

Sources: https://jobset.sigs.k8s.io/docs/concepts, https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy,
https://cloud.google.com/kubernetes-engine/docs/how-to/tpus and .../how-to/gpus.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from podrun.runtime.config import Config, Launch
from podrun.runtime.config.xla_presets import with_presets
from podrun.runtime.contract import ENV_COORDINATOR, ENV_WORKDIR, ExitCode

from ...agent.base.protocol import MULTISLICE
from ...plan.base_env import MEGASCALE_PORT, base_env
from ...plan.program import Program
from ...pod.pod import Pod
from ...pod.slices import Slice
from .hang_watch import PORT_OFFSET
from .member import (
    ENV_CONFIG,
    ENV_HOST_INDEX,
    ENV_HOSTS,
    ENV_INSTALLER,
    ENV_LIBRARIES,
    ENV_PROGRAM,
    ENV_SCRIPT,
    ENV_SLICE_INDEX,
)
from .networks import LIBRARIES, NETWORKS, Network, accelerator_of, default_network
from .scheduling import SPOT, Scheduling
from .tpu_machines import ACCELERATORS, generation
from .volumes import FUSE_ANNOTATION, Volume

Manifest = dict[str, Any]
"""A mapping in a manifest of Kubernetes, as it is written to YAML."""
PORT = 8482
"""Port of the coordinator, on the host's network too: JAX's choice for TPUs, because libtpu uses 8471 and 8476 to 8479."""
WORKER = "worker"
MEMBER = ("python", "-m", "podrun.launcher.kubernetes.member")
_SHARED_MEMORY = "shm"
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
_PREFIX = "jobset.sigs.k8s.io/"
_DISRUPTION_RULE = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
"""Rule for a pod whose node is taken away, with any exit code."""
SAVE_SECONDS = 60
"""Seconds for a checkpoint that is being written when the container is asked to stop."""


@dataclass(frozen=True)
class ClusterOptions:
    """Options of the JobSet that do not belong to the job."""

    name: str
    run_id: str
    image: str
    namespace: str | None = None
    volumes: tuple[Volume, ...] = ()
    network: str | None = None
    """Name of a network in `networks.NETWORKS`; None: that of the slice's kind."""
    accelerator: str | None = None
    """GKE's node label of the GPUs, such as nvidia-h100-80gb; None: any."""
    excluded: tuple[str, ...] = ()
    """Names of nodes that get no pod of the JobSet."""
    scheduling: Scheduling = field(default_factory=Scheduling)


def name_problem(name: str) -> str | None:
    """Return why a JobSet cannot have this name; None if it can. Its pods are NAME-worker-0-0, of at most 63 characters."""
    if _NAME.fullmatch(name):
        return None
    return (
        f"the name {name!r} is not a valid Kubernetes name: 1 to 40 of a-z, 0-9 and -, a letter first and no - at the end; "
        "give one with --name"
    )


def text_problem(cluster: ClusterOptions) -> str | None:
    """Return why the image name or the namespace is invalid; None if they are valid."""
    if not re.fullmatch(r"[\w][\w./:@-]{0,499}", cluster.image, re.ASCII):
        return f"--image {cluster.image!r} cannot be the name of an image"
    if cluster.namespace is not None and not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", cluster.namespace):
        return f"--namespace {cluster.namespace!r} is not a valid Kubernetes name: a-z, 0-9 and -"
    return None


def slice_problem(slice: Slice) -> str | None:
    """Return why a slice is not available on GKE; None if it is."""
    if slice.kind != "tpu" or generation(slice) in ACCELERATORS:
        return None
    known = ", ".join(ACCELERATORS)
    return f"podrun does not know how GKE offers {slice.name}: on GKE it knows {known}, gpu-HxD and cpu-HxD"


def jobset(pod: Pod, job: Config | Program, cluster: ClusterOptions) -> Manifest:
    """Return the manifest of a JobSet. The job's `launch.workdir` is in a bucket or on the volume."""
    slice, job = pod.slice, _with_presets(job, pod.platform)
    metadata: Manifest = {"name": cluster.name}
    if cluster.namespace:
        metadata["namespace"] = cluster.namespace
    if cluster.scheduling.queue:
        metadata["labels"] = {"kueue.x-k8s.io/queue-name": cluster.scheduling.queue}
    if (
        slice.kind == "tpu" and slice.hosts_per_slice > 1
    ):  # one node pool for each slice; machines of one host share a pool
        metadata["annotations"] = {
            "alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool",
        }
    members = {
        "parallelism": slice.hosts_per_slice,
        "completions": slice.hosts_per_slice,
        "completionMode": "Indexed",
        "backoffLimit": 0,  # a single pod cannot rejoin the others
        "podFailurePolicy": {
            "rules": [_fail_job(ExitCode.BAD_CONFIG), _fail_job(ExitCode.PREEMPTED), _DISRUPTION_RULE]
        },
        "template": _pod_template(pod, job, cluster),
    }
    ttl = cluster.scheduling.ttl
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True, "subdomain": cluster.name},
            "successPolicy": {"operator": "All"},
            **({} if ttl is None else {"ttlSecondsAfterFinished": ttl}),
            "failurePolicy": _failure_policy(job.launch),
            "replicatedJobs": [{"name": WORKER, "replicas": slice.slices, "template": {"spec": members}}],
        },
    }


def _with_presets(job: Config | Program, platform: str) -> Config | Program:
    """Return the job with the flags of `launch.xla` in its environment."""
    env = with_presets(job.launch.env, job.launch.xla, platform)
    if isinstance(job, Program):
        return replace(job, launch=replace(job.launch, env=env))
    return job.model_copy(update={"launch": job.launch.model_copy(update={"env": env})})


def _failure_policy(launch: Launch) -> Manifest:
    """Return the failure policy: a config error ends the run, a saved preemption is free, other failures are counted."""
    rules = [_rule("mistake", "FailJobSet", _code(ExitCode.BAD_CONFIG))]
    if launch.max_preemptions or (launch.max_preemptions is None and launch.max_restarts):
        rules.append(
            _rule(
                "preemption",
                "RestartJobSetAndIgnoreMaxRestarts",
                _code(ExitCode.PREEMPTED),
                "condition DisruptionTarget",
            )
        )
    return {"maxRestarts": launch.max_restarts, "rules": rules}


def _code(code: ExitCode) -> str:
    return rf"exit code {int(code)}\b"


def _rule(name: str, action: str, *patterns: str) -> Manifest:
    """Return the rule that takes an action if the failed Job's message matches a pattern; the message has the exit code."""
    return {
        "name": name,
        "action": action,
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": list(patterns),
    }


def _fail_job(code: ExitCode) -> Manifest:
    return {
        "action": "FailJob",
        "onExitCodes": {"containerName": WORKER, "operator": "In", "values": [int(code)]},
    }


def _pod_template(pod: Pod, job: Config | Program, cluster: ClusterOptions) -> Manifest:
    network = NETWORKS[cluster.network or default_network(pod.slice)]
    spec = _pod_spec(pod, job, cluster, network)
    annotations = {**network.annotations, **(FUSE_ANNOTATION if any(v.is_fuse for v in cluster.volumes) else {})}
    return {"metadata": {"annotations": annotations}, "spec": spec} if annotations else {"spec": spec}


def _pod_spec(pod: Pod, job: Config | Program, cluster: ClusterOptions, network: Network) -> Manifest:
    slice, scheduling = pod.slice, cluster.scheduling
    spec: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(job.launch.stop_grace) + SAVE_SECONDS,
    }
    if network.is_hosts:
        spec |= {
            "hostNetwork": True,
            "dnsPolicy": "ClusterFirstWithHostNet",
        }  # the pods of a JobSet have names in its DNS
    if scheduling.service_account:
        spec["serviceAccountName"] = scheduling.service_account
    if scheduling.priority:
        spec["priorityClassName"] = scheduling.priority
    if selector := _selector(slice, cluster, network):
        spec["nodeSelector"] = selector
    if tolerations := _tolerations(slice, scheduling):
        spec["tolerations"] = tolerations
    if cluster.excluded:
        spec["affinity"] = {"nodeAffinity": _without_nodes(cluster.excluded)}
    if network.sidecar:
        spec["initContainers"] = [dict(network.sidecar)]
    spec["containers"] = [_container(pod, job, cluster, network)]
    spec["volumes"] = [
        {"name": _SHARED_MEMORY, "emptyDir": {"medium": "Memory"}},
        *map(dict, network.volumes),
        *({"name": name, **volume.source_of(network.is_hosts)} for name, volume in _named(cluster.volumes)),
    ]
    return spec


def _container(pod: Pod, job: Config | Program, cluster: ClusterOptions, network: Network) -> Manifest:
    ports = (PORT, PORT + 1) if isinstance(job, Program) else (PORT,)
    container: Manifest = {
        "name": WORKER,
        "image": cluster.image,
        "command": list(MEMBER),
        "env": _env(pod, job, cluster, network),
        "ports": [
            *({"containerPort": port} for port in ports),
            {"containerPort": PORT + PORT_OFFSET, "protocol": "UDP"},
        ],
    }
    if limits := _limits(pod.slice):
        container["resources"] = {"limits": limits}
    if network.capabilities:
        container["securityContext"] = {"capabilities": {"add": list(network.capabilities)}}
    if pod.slice.kind == "tpu" and network.is_hosts:
        # as xpk (src/xpk/core/docker_container.py): libtpu opens the chips' devices and locks much memory, which GKE allows
        # other containers only in newer versions. A cluster that forbids it forbids the host's network as well.
        container["securityContext"] = {"privileged": True}
    container["volumeMounts"] = [
        # NCCL, libtpu and the loaders of data divide their work over processes by shared memory; the default is 64 MiB
        {"name": _SHARED_MEMORY, "mountPath": "/dev/shm"},
        *({"name": name, "mountPath": path} for name, path in network.mounts.items()),
        *(
            {"name": name, "mountPath": str(volume.folder), **({"readOnly": True} if volume.is_read_only else {})}
            for name, volume in _named(cluster.volumes)
        ),
    ]
    return container


def _named(volumes: Sequence[Volume]) -> list[tuple[str, Volume]]:
    return [(f"volume-{number}", volume) for number, volume in enumerate(volumes)]


def _tolerations(slice: Slice, scheduling: Scheduling) -> list[Manifest]:
    """Return what nodes of accelerators and spot nodes ask of their pods; GKE adds the former by itself, others do not."""
    key = {"tpu": "google.com/tpu", "gpu": "nvidia.com/gpu"}.get(slice.kind)
    of_devices = [{"key": key, "operator": "Exists"}] if key else []
    spot = {"key": SPOT, "operator": "Equal", "value": "true", "effect": "NoSchedule"}
    return [*of_devices, *([spot] if scheduling.spot else []), *map(dict, scheduling.tolerations)]


def _without_nodes(names: Sequence[str]) -> Manifest:
    excluding = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(names)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [excluding]}]}
    return {"requiredDuringSchedulingIgnoredDuringExecution": terms}


def _limits(slice: Slice) -> dict[str, int]:
    if slice.kind == "tpu":
        return {"google.com/tpu": slice.chips // slice.hosts}
    return {"nvidia.com/gpu": slice.devices_per_host} if slice.kind == "gpu" else {}


def _selector(slice: Slice, cluster: ClusterOptions, network: Network) -> dict[str, str]:
    spot = {SPOT: "true"} if cluster.scheduling.spot else {}
    if slice.kind == "tpu":
        return {
            "cloud.google.com/gke-tpu-accelerator": ACCELERATORS[generation(slice)],
            "cloud.google.com/gke-tpu-topology": slice.topology,
            **spot,
        }
    accelerator = cluster.accelerator or accelerator_of(slice, network)
    return {**({"cloud.google.com/gke-accelerator": accelerator} if accelerator else {}), **spot}


def _what_runs(job: Config | Program) -> dict[str, str]:
    if not isinstance(job, Program):
        return {ENV_CONFIG: job.model_dump_json()}
    given = job.launch
    launch = {
        "env": given.env,
        "instrument": given.instrument,
        "join": given.join,
        "stall_timeout": given.stall_timeout,
    }
    return {ENV_PROGRAM: json.dumps({"argv": job.argv, "launch": launch})}


def _env(pod: Pod, job: Config | Program, cluster: ClusterOptions, network: Network) -> list[Manifest]:
    """Return the container's environment: variables of `WorkerEnv`, and those from which `Member` computes the others."""
    slice, ids = pod.slice, range(pod.slice.devices_per_host)
    coordinator = f"{cluster.name}-{WORKER}-0-0.{cluster.name}"
    values = {
        **base_env(pod, ids),
        "PODRUN_RUN_ID": cluster.run_id,
        "PODRUN_NUM_PROCESSES": str(slice.hosts),
        "PODRUN_LOCAL_DEVICE_IDS": ",".join(map(str, ids)),
        "PODRUN_SLICE": slice.name,
        ENV_COORDINATOR: f"{coordinator}:{PORT}",
        **({ENV_WORKDIR: str(job.launch.workdir)} if job.launch.workdir else {}),
        ENV_HOSTS: str(slice.hosts_per_slice),
        **_what_runs(job),
        **({ENV_LIBRARIES: LIBRARIES} if slice.kind == "gpu" else {}),
        **({ENV_SCRIPT: network.env_script, ENV_INSTALLER: network.installer} if network.env_script else {}),
        **network.env,
        **job.launch.env,
    }
    told = {
        "PODRUN_HOST": "metadata.name",
        "PODRUN_ATTEMPT": f"metadata.labels['{_PREFIX}restart-attempt']",
        ENV_SLICE_INDEX: f"metadata.labels['{_PREFIX}job-index']",
        ENV_HOST_INDEX: "metadata.labels['batch.kubernetes.io/job-completion-index']",
    }
    if slice.kind == "tpu" and slice.slices > 1:
        address, number, index, port = MULTISLICE
        values |= {address: coordinator, number: str(slice.slices), port: MEGASCALE_PORT}
        told[index] = told[ENV_SLICE_INDEX]
    return [
        # Kubernetes expands `$(NAME)`, and `$$` to a dollar.
        *({"name": name, "value": value.replace("$", "$$")} for name, value in values.items()),
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in told.items()),
    ]

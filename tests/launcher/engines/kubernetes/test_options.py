"""Options of `podrun render jobset` that are about the cluster, and fields that users set themselves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from podrun.launcher.engines.kubernetes.jobset import MEMBER
from podrun.launcher.engines.kubernetes.networks import NETWORKS
from podrun.launcher.engines.kubernetes.patch import read_changes, schema_problems
from podrun.launcher.engines.kubernetes.render_jobset import JobSetRequest, make_manifest, to_yaml
from podrun.runtime.contract import UserError

from ....conftest import SMALL, Podrun
from .golden import manifests


@pytest.fixture
def train(tmp_path: Path) -> Path:
    path = tmp_path / "train.yaml"
    path.write_text(SMALL)
    return path


def made(train: Path, **options: Any) -> dict[str, Any]:
    given = {"overrides": ("batch_size=128",), "image": "i", "slice": "cpu-2x1", "workdir": "gs://bucket/t", **options}
    return dict(yaml.safe_load(to_yaml(make_manifest(JobSetRequest(train, **given), "r"))))


def pod_of(manifest: dict[str, Any]) -> dict[str, Any]:
    return dict(manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"])


def refused(train: Path, **options: Any) -> str:
    with pytest.raises(UserError) as raised:
        made(train, **options)
    return str(raised.value)


@pytest.mark.parametrize("name", manifests())
def test_every_jobset_has_fields_of_jobset_only(name: str) -> None:
    assert schema_problems(yaml.safe_load(manifests()[name])) == []


@pytest.mark.parametrize(
    ("slice", "chips", "hosts", "limit", "topology"),
    [
        ("v5e-8", None, 1, 8, "2x4"),
        ("v5e-8", 8, 1, 8, "2x4"),
        ("v5e-8", 4, 2, 4, "2x4"),
        ("v6e-8", 4, 2, 4, "2x4"),
        ("v6e-16", 4, 4, 4, "4x4"),
        ("v5e-1", None, 1, 1, "1x1"),
        ("v5p-16", None, 2, 4, "2x2x2"),
        ("tpu7x-16", None, 2, 4, "2x2x2"),
        ("tpu7x-2", None, 1, 1, "1x1x1"),
    ],
)
def test_pods_are_as_many_as_machines(
    train: Path, slice: str, chips: int | None, hosts: int, limit: int, topology: str
) -> None:
    manifest = made(train, slice=slice, chips_per_host=chips)
    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    pod = pod_of(manifest)
    assert (job["parallelism"], job["completions"]) == (hosts, hosts)
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": limit}
    assert pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == topology
    env = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
    assert env["PODRUN_NUM_PROCESSES"] == env["PODRUN_HOSTS_PER_SLICE"] == str(hosts)
    assert ("annotations" in manifest["metadata"]) == (hosts > 1)  # machines of one host share a node pool


def test_two_slices_of_two_machines(train: Path) -> None:
    manifest = made(train, slice="v6e-8", num_slices=2, chips_per_host=4)
    env = {entry["name"]: entry.get("value") for entry in pod_of(manifest)["containers"][0]["env"]}
    assert manifest["spec"]["replicatedJobs"][0]["replicas"] == 2
    assert (env["PODRUN_NUM_PROCESSES"], env["PODRUN_LOCAL_DEVICE_IDS"]) == ("4", "0,1,2,3")


@pytest.mark.parametrize(
    ("slice", "network", "is_hosts"),
    [
        ("v5e-1", None, True),
        ("v6e-16", None, True),
        ("v6e-16", "pod", False),
        ("gpu-2x8", None, True),
        ("gpu-1x8", None, False),
        ("cpu-2x1", None, False),
        ("cpu-2x1", "host", True),
    ],
)
def test_the_network(train: Path, slice: str, network: str | None, is_hosts: bool) -> None:
    pod = pod_of(made(train, slice=slice, network=network))
    assert pod.get("hostNetwork", False) == is_hosts
    assert ("dnsPolicy" in pod) == is_hosts
    assert pod["containers"][0]["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]


@pytest.mark.parametrize(
    ("network", "accelerator", "cards"),
    [("tcpx", None, 4), ("tcpxo", None, 8), ("rdma", "nvidia-b200", 8)],
)
def test_the_networks_of_gpu_machines(train: Path, network: str, accelerator: str | None, cards: int) -> None:
    """Each card has an interface, each mount a volume, and the worker's container is the only one that the Job watches."""
    manifest = made(train, slice="gpu-2x8", network=network, accelerator=accelerator)
    template = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    pod = template["spec"]
    interfaces = json.loads(template["metadata"]["annotations"]["networking.gke.io/interfaces"])
    assert len({entry["interfaceName"] for entry in interfaces}) == len(interfaces) == cards + 1
    volumes = {volume["name"] for volume in pod["volumes"]}
    containers = [*pod["containers"], *pod.get("initContainers", [])]
    assert {mount["name"] for container in containers for mount in container["volumeMounts"]} == volumes
    assert all(len({m["mountPath"] for m in c["volumeMounts"]}) == len(c["volumeMounts"]) for c in containers)
    assert [container["name"] for container in pod["containers"]] == ["worker"]
    assert all(container["restartPolicy"] == "Always" for container in pod.get("initContainers", []))
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-accelerator": accelerator or NETWORKS[network].accelerator,
    }
    assert "hostNetwork" not in pod
    assert pod["containers"][0]["command"] == [*MEMBER]


@pytest.mark.parametrize(
    ("slice", "network", "label"),
    [
        ("h200-16", "rdma", "nvidia-h200-141gb"),
        ("b200-8", "rdma", "nvidia-b200"),
        ("h200-16", None, None),
        ("h100-16", "tcpxo", "nvidia-h100-mega-80gb"),
        ("h100-16", None, None),
    ],
)
def test_a_network_chooses_its_nodes(train: Path, slice: str, network: str | None, label: str | None) -> None:
    """Other clusters than GKE have no such labels."""
    pod = pod_of(made(train, slice=slice, network=network))
    assert pod.get("nodeSelector", {}).get("cloud.google.com/gke-accelerator") == label


def test_a_job_may_override_the_variables_of_its_network(train: Path) -> None:
    overrides = ("batch_size=128", "launch.env={NCCL_ALGO: Tree}")
    pod = pod_of(made(train, slice="gpu-2x8", network="tcpx", overrides=overrides))
    values = [entry["value"] for entry in pod["containers"][0]["env"] if entry["name"] == "NCCL_ALGO"]
    assert values == ["Tree"]


def test_scheduling(train: Path) -> None:
    manifest = made(
        train,
        slice="v6e-16",
        spot=True,
        toleration=("team=a:NoSchedule", "example.com/x", "b=:NoExecute"),
        queue="team",
        priority="high",
        service_account="trainer",
        ttl=0,
    )
    pod = pod_of(manifest)
    assert manifest["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team"}
    assert manifest["spec"]["ttlSecondsAfterFinished"] == 0
    assert (pod["priorityClassName"], pod["serviceAccountName"]) == ("high", "trainer")
    assert pod["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert pod["tolerations"] == [
        {"key": "google.com/tpu", "operator": "Exists"},
        {"key": "cloud.google.com/gke-spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
        {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
        {"key": "example.com/x", "operator": "Exists"},
        {"key": "b", "operator": "Equal", "value": "", "effect": "NoExecute"},
    ]


def test_volumes(train: Path) -> None:
    volume = ("runs:/runs", "gs://my-bucket/:/data:ro", "nfs://10.0.0.2/share/a:/home/me/")
    manifest = made(train, volume=volume, workdir="/home/me/train")
    template = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    assert template["metadata"]["annotations"] == {"gke-gcsfuse/volumes": "true"}
    bucket = {"bucketName": "my-bucket", "mountOptions": "implicit-dirs"}
    assert template["spec"]["volumes"][1:] == [
        {"name": "volume-0", "persistentVolumeClaim": {"claimName": "runs"}},
        {
            "name": "volume-1",
            "csi": {"driver": "gcsfuse.csi.storage.gke.io", "readOnly": True, "volumeAttributes": bucket},
        },
        {"name": "volume-2", "nfs": {"server": "10.0.0.2", "path": "/share/a"}},
    ]
    assert template["spec"]["containers"][0]["volumeMounts"][1:] == [
        {"name": "volume-0", "mountPath": "/runs"},
        {"name": "volume-1", "mountPath": "/data", "readOnly": True},
        {"name": "volume-2", "mountPath": "/home/me"},
    ]


@pytest.mark.parametrize(("network", "is_hosts"), [(None, True), ("pod", False)])
def test_buckets_and_privileges_on_the_network_of_the_host(train: Path, network: str | None, is_hosts: bool) -> None:
    """There a bucket is read as the pod's service account only if that is asked for; xpk makes TPU containers privileged."""
    manifest = made(train, slice="v4-16", network=network, volume=("gs://my-bucket:/data",), workdir="gs://bucket/t")
    pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    attributes = pod["volumes"][1]["csi"]["volumeAttributes"]
    assert attributes.get("hostNetworkPodKSA") == ("true" if is_hosts else None)
    assert pod["containers"][0].get("securityContext") == ({"privileged": True} if is_hosts else None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"slice": "v6e-16", "chips_per_host": 8},
            "--chips-per-host 8: GKE's machines for v6e-16 have 4 chips; leave the option out",
        ),
        (
            {"slice": "v5e-8", "chips_per_host": 2},
            "--chips-per-host 2: GKE's machines for v5litepod-8 have 4 or 8 chips; give 4 or 8",
        ),
        ({"chips_per_host": 4}, "--chips-per-host is for TPUs; the devices of each host are in the name cpu-2x1"),
        (
            {"network": "tcpxo"},
            "--network tcpxo is of GPU machines, but cpu-2x1 has none; leave it out, or give host or pod",
        ),
        (
            {"slice": "gpu-4x4", "network": "rdma"},
            "--network rdma: its machines have 8 GPUs, and a pod uses all of them, but gpu-4x4 has 4 on a host; give gpu-2x8",
        ),
        (
            {"slice": "gpu-2x8", "network": "tcpx", "accelerator": "nvidia-l4"},
            "--network tcpx is that of nvidia-h100-80gb, but --accelerator is nvidia-l4; leave one of them out",
        ),
        (
            {"slice": "a100-16", "network": "tcpxo"},
            "--network tcpxo is that of machines with H100, but a100-16 has A100; leave it out",
        ),
        ({"toleration": ("a=b:Never",)}, "--toleration 'a=b:Never': write KEY, KEY=VALUE or KEY=VALUE:EFFECT"),
        ({"toleration": ("a b",)}, "(kubectl describe node); an effect is NoSchedule, PreferNoSchedule or NoExecute"),
        ({"queue": "My queue"}, "--queue 'My queue' is not a valid Kubernetes name; `kubectl get queues` lists"),
        ({"priority": "High"}, "--priority 'High' is not a valid Kubernetes name; `kubectl get priorityclasses`"),
        (
            {"service_account": "-"},
            "--service-account '-' is not a valid Kubernetes name; `kubectl get serviceaccounts`",
        ),
        ({"volume": ("gs://B!:/data",)}, "'gs://B!' is no claim, bucket or share; write CLAIM:/FOLDER"),
        ({"volume": ("nfs://10.0.0.2:/data",)}, "'nfs://10.0.0.2' is no claim, bucket or share"),
        ({"volume": ("runs:data",)}, "write CLAIM:/FOLDER (a persistent volume claim)"),
        ({"volume": ("runs:/usr/",)}, "/usr/ belongs to the container; choose a folder such as /data"),
        ({"volume": ("a:/x", "b:/x/")}, "--volume 'b:/x/': another volume is mounted at /x; give another folder"),
        (
            {"volume": ("gs://my-bucket:/x",), "workdir": "/x/t"},
            "workdir /x/t: --volume gs://my-bucket:/x is a bucket by GCS FUSE, where a checkpoint is not written at once; "
            "give --workdir gs://BUCKET/PATH, or another volume",
        ),
        ({"volume": ("runs:/x:ro",), "workdir": "/x/t"}, "workdir /x/t: --volume runs:/x:ro is read-only; give"),
    ],
)
def test_mistakes_name_the_option_and_the_way_out(train: Path, options: dict[str, Any], words: str) -> None:
    assert words in refused(train, **options)


@pytest.mark.parametrize(
    ("settings", "path", "value"),
    [
        (("spec.suspend=true",), "spec.suspend", True),
        (("job.activeDeadlineSeconds=60",), "spec.replicatedJobs.0.template.spec.activeDeadlineSeconds", 60),
        (("pod.spec.runtimeClassName=gvisor",), "pod.spec.runtimeClassName", "gvisor"),
        (('pod.metadata.annotations."example.com/a"=true',), "pod.metadata.annotations", {"example.com/a": "true"}),
        (('metadata.labels={a: "1"}',), "metadata.labels", {"a": "1"}),
        (("pod.spec.volumes[shm].emptyDir.sizeLimit=64Gi",), "pod.spec.volumes.0.emptyDir.sizeLimit", "64Gi"),
        (("container.securityContext.privileged=true",), "pod.spec.containers.0.securityContext", {"privileged": True}),
        (("container.imagePullPolicy=Always",), "pod.spec.containers.0.imagePullPolicy", "Always"),
        (("pod.spec.imagePullSecrets[+].name=key",), "pod.spec.imagePullSecrets", [{"name": "key"}]),
        (("pod.spec.hostAliases[+]={ip: 10.0.0.1, hostnames: [a]}",), "pod.spec.hostAliases.0.ip", "10.0.0.1"),
        (("pod.spec.nodeSelector.a=b=c",), "pod.spec.nodeSelector", {"a": "b=c"}),
        (("spec.failurePolicy.rules=null",), "spec.failurePolicy", {"maxRestarts": 0}),
        (("spec.failurePolicy.rules[mistake]=null",), "spec.failurePolicy.rules", []),
        (("container.resources.limits.memory=8Gi",), "pod.spec.containers.0.resources.limits", {"memory": "8Gi"}),
        (("container.resources.limits.cpu=8",), "pod.spec.containers.0.resources.limits", {"cpu": 8}),
        (("container.ports[0].name=c", "container.ports[0].name=d"), "pod.spec.containers.0.ports.0.name", "d"),
    ],
)
def test_any_field_can_be_set(train: Path, settings: tuple[str, ...], path: str, value: object) -> None:
    manifest = made(train, settings=settings)
    at: Any = manifest
    for key in path.replace("pod.", "spec.replicatedJobs.0.template.spec.template.", 1).split("."):
        at = at[int(key) if isinstance(at, list) else key]
    assert at == value


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            "spec.ttlSecondsAfterFinnished=1",
            "--set spec.ttlSecondsAfterFinnished: spec has no field 'ttlSecondsAfterFinnished'; "
            "did you mean ttlSecondsAfterFinished?",
        ),
        ("spec.ttlSecondsAfterFinished=soon", "--set spec.ttlSecondsAfterFinished: 'soon' is not of type integer"),
        ("spec.suspend=1", "--set spec.suspend: 1 is not of type boolean"),
        ("specs.suspend=true", "--set specs.suspend: a JobSet has no field 'specs'; did you mean spec?"),
        (
            "pod.spec.volumes.shm.name=x",
            "pod.spec.volumes is a list: write [0], [NAME] of an item, or [+] for a new one",
        ),
        ("pod.spec.volumes[data].name=x", "no item 'data' in the list (shm); [+] adds one"),
        ("pod.spec[0]=x", "--set pod.spec[0]: pod.spec is no list, but has fields: write .0 in place of [0]"),
        ("container.image.tag=x", "container.image is of type string, without fields of its own"),
        ("pod.spec.tolerations={a: b}", "is a list; write [...] around {'a': 'b'}"),
        ("pod.spec.tolerations=[{kee: b}]", "--set pod.spec.tolerations[0]: has no field 'kee'; did you mean key?"),
        (
            "pod.spec.nodeSelector={a: true}",
            '--set pod.spec.nodeSelector.a: True is not of type string; write it in quotes: "true"',
        ),
        ("pod.spec.nodeSelector=x", "--set pod.spec.nodeSelector: has fields, but 'x' has none; write {field: value}"),
        (
            "pod.metadata.annotations.example.com/team=a",
            """--set 'pod.metadata.annotations."example.com/team"=VALUE'""",
        ),
        (
            "pod.spec.nodeSelector.cloud.google.com/gke-spot=true",
            """--set 'pod.spec.nodeSelector."cloud.google.com/gke-spot"=VALUE'""",
        ),
        ("spec", "--set 'spec': write PATH=VALUE, such as spec.ttlSecondsAfterFinished=3600"),
        ("spec={}", "--set spec: names the whole of spec; name a field of it, or give a --patch FILE, which is merged"),
        ("spec..suspend=true", "--set spec..suspend: is not a path, such as pod.spec.volumes[shm]"),
        ("spec.suspend={", "--set spec.suspend: '{' is not valid YAML: line 1"),
    ],
)
def test_a_field_that_cannot_be_set_is_named(train: Path, setting: str, words: str) -> None:
    assert words in refused(train, settings=(setting,))


PATCH = """\
metadata:
  labels: {team: a}
spec:
  failurePolicy: {maxRestarts: 7}
pod:
  spec:
    imagePullSecrets: [{name: key}]
    volumes:
      - name: shm
        emptyDir: {sizeLimit: 1Gi}
      - {name: scratch, emptyDir: {}}
container:
  volumeMounts: [{name: scratch, mountPath: /scratch}]
  ports: null
"""


def test_a_patch_is_merged(train: Path, tmp_path: Path) -> None:
    """Into mappings, and into lists of named items by their names; the command line comes last."""
    (tmp_path / "patch.yaml").write_text(PATCH)
    manifest = made(train, patch=tmp_path / "patch.yaml", settings=("metadata.labels.team=b",), queue="q")
    pod = pod_of(manifest)
    assert manifest["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "q", "team": "b"}
    policy = manifest["spec"]["failurePolicy"]
    assert (policy["maxRestarts"], [rule["name"] for rule in policy["rules"]]) == (7, ["mistake"])
    assert pod["volumes"] == [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}},
        {"name": "scratch", "emptyDir": {}},
    ]
    assert [mount["name"] for mount in pod["containers"][0]["volumeMounts"]] == ["shm", "scratch"]
    assert "ports" not in pod["containers"][0]


def test_a_patch_with_mistakes_names_their_lines(train: Path, in_process: Podrun, tmp_path: Path) -> None:
    path = tmp_path / "patch.yaml"
    path.write_text(
        "spec:\n  suspend: soon\npod:\n  spec:\n    tolerations:\n      - {kee: a}\n    nodeSelector:\n      a: 1\n"
    )
    options = ("render", "jobset", "--image=i", "--slice=cpu-2x1", "--workdir=gs://bucket/t", f"--patch={path}")
    done = in_process(*options, "--set=spec.x=1", str(train))
    assert done.returncode == 2
    for words in (
        f"--patch {path}: line 2: spec.suspend: 'soon' is not of type boolean",
        "line 6: pod.spec.tolerations[0] has no field 'kee'; did you mean key?",
        'line 8: pod.spec.nodeSelector.a: 1 is not of type string; write it in quotes: "1"',
        "--set spec.x: spec has no field 'x'",
    ):
        assert words in done.stderr
    several = in_process(*options, "--set=spec.x=1", "--toleration=a b", str(train))
    assert all(words in several.stderr for words in ("spec has no field 'x'", "--toleration 'a b'", "line 6: pod"))
    missing = in_process(*options[:-1], "--patch=pach.yaml", str(train))
    assert missing.returncode == 2
    assert re.search(r"--patch pach.yaml: cannot read the patch: No such file", missing.stderr)


def test_the_command_line_has_every_option(train: Path, in_process: Podrun) -> None:
    done = in_process(
        *("render", "jobset", "--image=i", "--slice=v5e-8", "--chips-per-host=4", "--workdir=/runs/t"),
        *("--volume=runs:/runs", "--volume=gs://my-bucket:/data", "--spot", "--toleration=a", "--toleration=b=c"),
        *("--queue=q", "--priority=p", "--service-account=s", "--ttl=60", "--network=pod"),
        *("--set=spec.suspend=true", "--set=container.imagePullPolicy=Always", str(train)),
    )
    assert done.returncode == 0, done.stderr
    manifest = yaml.safe_load(done.stdout)
    assert manifest["spec"]["suspend"] is True
    assert manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] == 2
    assert len(pod_of(manifest)["tolerations"]) == 4
    assert [volume["name"] for volume in pod_of(manifest)["volumes"]] == ["shm", "volume-0", "volume-1"]


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("metadata.name=other", "changes metadata.name, which other parts of the JobSet must fit; give --name"),
        ("container.name=main", "changes container.name"),
        ("job.completions=3", "changes job.completions, which other parts of the JobSet must fit; the slice has it"),
        ("pod.spec.restartPolicy=OnFailure", "changes pod.spec.restartPolicy"),
        ("container.command=null", "changes container.command"),
        ("pod.spec.containers=[]", "changes container.name"),
        ("spec.replicatedJobs=null", "changes spec.replicatedJobs[0].name"),
        ("container.env[PODRUN_SLICE].value=x", "changes container.env[PODRUN_SLICE]"),
    ],
)
def test_fields_that_others_must_fit(setting: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        read_changes(None, [setting, "container.image=x"]).apply(manifest_of())
    assert said in str(caught.value)


def manifest_of() -> dict[str, Any]:
    env = [{"name": "PODRUN_SLICE", "value": "v5e-16"}, {"name": "JAX_PLATFORMS", "value": "tpu"}]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    container = {"name": "worker", "command": ["python"], "env": env, "volumeMounts": mounts}
    pod = {"restartPolicy": "Never", "containers": [container], "tolerations": [{"key": "google.com/tpu"}]}
    job = {"completions": 4, "parallelism": 4, "template": {"spec": pod}}
    jobs = [{"name": "worker", "replicas": 1, "template": {"spec": job}}]
    return {"metadata": {"name": "train"}, "spec": {"network": {"subdomain": "train"}, "replicatedJobs": jobs}}


def test_lists_of_a_patch(tmp_path: Path) -> None:
    """Mounts are told apart by their paths, tolerations are added, and a variable has one kind of value."""
    patch = {
        "container": {
            "volumeMounts": [{"name": "data", "mountPath": "/a"}, {"name": "data", "mountPath": "/b"}],
            "env": [{"name": "JAX_PLATFORMS", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        },
        "pod": {"spec": {"tolerations": [{"key": "mine"}]}},
    }
    (tmp_path / "patch.yaml").write_text(yaml.safe_dump(patch))
    manifest = manifest_of()
    read_changes(tmp_path / "patch.yaml", ["container.env[LR].value=1"]).apply(manifest)
    pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert [mount["mountPath"] for mount in container["volumeMounts"]] == ["/dev/shm", "/a", "/b"]
    assert [one["key"] for one in pod["tolerations"]] == ["google.com/tpu", "mine"]
    assert [sorted(one) for one in container["env"]] == [["name", "value"], ["name", "valueFrom"], ["name", "value"]]
    assert container["env"][2] == {"name": "LR", "value": "1"}

"""Write JobSets as Kubernetes takes them, refuse what could not run there, and say what kubectl answers."""

from __future__ import annotations

import json
import re
import sys
import threading
from pathlib import Path

import pytest
import yaml

from podrun.launcher.engines.kubernetes.member import (
    ENV_CONFIG,
    ENV_HOST_INDEX,
    ENV_HOSTS,
    ENV_LIBRARIES,
    ENV_PROGRAM,
    ENV_SLICE_INDEX,
    script_env,
    worker_command,
    worker_env,
)
from podrun.launcher.engines.kubernetes.render_jobset import JobSetRequest, make_manifest
from podrun.runtime.config import Config
from podrun.runtime.contract import UnavailableError, UserError

from ....conftest import SMALL, Podrun, Sandbox
from .golden import FOLDER, file_of, manifests

MANIFESTS = manifests()
BUCKET = "--workdir=gs://bucket/train"


@pytest.fixture
def train(tmp_path: Path) -> Path:
    path = tmp_path / "My train_1.yaml"
    path.write_text(SMALL)
    return path


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_jobset_is_as_it_was(name: str) -> None:
    """If the change is meant: `python -m tests.launcher.engines.kubernetes.golden`, and read the difference."""
    assert MANIFESTS[name] == file_of(name).read_text(encoding="utf-8")


def test_every_file_is_of_a_jobset() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {file_of(name).name for name in MANIFESTS}


def test_names_and_texts_are_safe(train: Path) -> None:
    """Make a name that Kubernetes takes, and let it expand nothing in the values."""
    request = JobSetRequest(train, ('launch.env={A: "$(HOME) pa$$word"}',), "i", "cpu-1x1", workdir="s3://bucket/t")
    manifest = yaml.safe_load(yaml.safe_dump(make_manifest(request, "r")))
    assert manifest["metadata"]["name"] == "my-train-1"
    spec = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    values = {entry["name"]: entry.get("value") for entry in spec["containers"][0]["env"]}
    assert values["A"] == "$$(HOME) pa$$$$word"
    given = Config.model_validate_json(values["PODRUN_CONFIG"].replace("$$", "$"))
    assert given.launch.env == {"A": "$(HOME) pa$$word"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"slice": None}, "no slice: give one with --slice"),
        ({"slice": "v3-32"}, "does not know how GKE offers v3-32"),
        ({"slice": "v5e-17"}, "unknown slice"),
        ({"name": "Train"}, "the name 'Train' is not a valid Kubernetes name"),
        ({"name": "a" * 41}, "is not a valid Kubernetes name"),
        ({"workdir": None}, "workdir is missing; give --workdir gs://"),
        ({"workdir": "/runs/t"}, "/runs/t, which ends with its container"),
        ({"workdir": "/elsewhere/t", "volume": ("runs:/runs",)}, "/elsewhere/t, which ends with its container"),
        ({"volume": ("runs",)}, "write CLAIM:/FOLDER"),
        ({"volume": ("Runs!:/runs",)}, "write CLAIM:/FOLDER"),
        ({"workdir": "gs://b"}, "is not a valid bucket name"),
        ({"workdir": "/runs/../t", "volume": ("runs:/runs",)}, "/runs/../t, which ends with its container"),
        ({"image": "a b"}, "--image 'a b' cannot be the name of an image"),
        ({"namespace": "A b"}, "--namespace 'A b' is not a valid Kubernetes name"),
        ({"accelerator": "nvidia-l4"}, "--accelerator names the GPUs"),
        ({"slice": "cpu-16x1"}, "batch_size 8 is too small for 16 devices"),
        ({"overrides": ("launch.process_per=device",)}, "a container has one process"),
        ({"overrides": ("launch.python=/x/python",)}, "are for hosts"),
        ({"overrides": ("stpes=3",)}, "did you mean steps?"),
    ],
)
def test_what_cannot_run_is_refused(train: Path, options: dict[str, object], words: str) -> None:
    given = {"overrides": (), "image": "i", "slice": "cpu-2x1", "workdir": "gs://bucket/t", **options}
    with pytest.raises(UserError, match=re.escape(words)):
        make_manifest(JobSetRequest(train, **given), "r")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workdir": "gs://bucket/t"}, "a user program keeps its results in a folder"),
        ({"workdir": "/runs/t"}, "/runs/t, which ends with its container; give --volume CLAIM:/FOLDER"),
        ({"slice": None}, "no slice: give one with --slice"),
        ({"overrides": ("steps=3",)}, "takes only launch.key=value before the `--`"),
        ({"overrides": ("train.yaml",)}, "a train.yaml and a program are two runs"),
        ({"overrides": ("launch.process_per=device",)}, "a container has one process"),
        ({"program": ("train.yaml",)}, "train.yaml is not a program"),
        ({"program": ("",)}, "the word after `--` is empty"),
    ],
)
def test_a_program_that_cannot_run_is_refused(options: dict[str, object], words: str) -> None:
    given = {"overrides": (), "image": "i", "slice": "cpu-2x1", "program": ("python", "my.py"), **options}
    with pytest.raises(UserError, match=re.escape(words)):
        make_manifest(JobSetRequest(None, **given), "r")  # type: ignore[arg-type]


def test_a_program_is_named_and_needs_no_workdir(in_process: Podrun) -> None:
    """Say what it means to have none."""
    words = (
        "render",
        "jobset",
        "--image=i",
        "--slice=cpu-2x1",
        "launch.env={A: '1'}",
        "--",
        "python",
        "-u",
        "My_fit.py",
    )
    done = in_process(*words)
    assert done.returncode == 0, done.stderr
    assert "there is no --workdir" in done.stderr
    manifest = yaml.safe_load(done.stdout)
    assert manifest["metadata"]["name"] == "my-fit"
    with_folder = in_process(*words[:4], "--volume=runs:/runs", "-w", "/runs/fit", *words[5:])
    assert (with_folder.returncode, with_folder.stderr) == (0, "")
    of_launch = in_process(*words[:4], "--volume=runs:/runs", "launch.workdir=/runs/fit", *words[5:])
    assert (of_launch.returncode, of_launch.stderr) == (0, "")
    refused = in_process(*words[:4], "train.py")
    assert refused.returncode == 2
    assert "write it after two dashes: podrun ... -- python train.py" in refused.stderr


def test_all_mistakes_at_once(in_process: Podrun) -> None:
    done = in_process("render", "jobset", "--image=i", "--slice=v9-1", "--name=-", "small.yaml", "stpes=3")
    assert done.returncode == 2
    assert all(word in done.stderr for word in ("unknown slice", "the name '-'", "did you mean steps?"))


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        (
            "cat > $HERE/got; echo jobset.jobset.x-k8s.io/small created",
            0,
            "kubectl logs -f -l jobset.sigs.k8s.io/jobset-name=small",
        ),
        ("echo 'Error from server (AlreadyExists): x' >&2; exit 1", 2, "give another --name"),
        ("echo 'error: no matches for kind \"JobSet\"' >&2; exit 1", 2, "the cluster has no JobSet: install it"),
        (
            "echo 'Error from server (BadRequest): strict decoding error: unknown field \"spec.x\"' >&2; exit 1",
            2,
            "it is too old",
        ),
        ("echo 'The JobSet is invalid: Unsupported value: \"Restart\"' >&2; exit 1", 2, "podrun needs 0.10 or newer"),
        ("exit 3", 2, "it ended with 3"),
        ("printf '\\377' >&2; exit 1", 2, "kubectl has not created the JobSet"),
    ],
)
def test_kubectl_is_given_the_jobset(
    sandbox: Sandbox, in_process: Podrun, monkeypatch: pytest.MonkeyPatch, script: str, code: int, words: str
) -> None:
    program = sandbox.path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("HERE", str(sandbox.path))
    done = in_process("render", "jobset", "--image=i", "--slice=cpu-2x1", BUCKET, "--submit", "small.yaml")
    assert done.returncode == code, done.stderr
    assert words in done.stdout + done.stderr
    if code == 0:
        assert yaml.safe_load((sandbox.path / "got").read_text())["kind"] == "JobSet"


def test_without_kubectl(sandbox: Sandbox, in_process: Podrun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(sandbox.path))
    done = in_process("render", "jobset", "--image=i", "--slice=cpu-2x1", BUCKET, "--submit", "small.yaml")
    assert done.returncode == 2
    assert "there is no `kubectl` in the PATH" in done.stderr


@pytest.mark.parametrize(
    ("overrides", "actions"),
    [
        ((), ["FailJobSet"]),
        (("launch.max_restarts=3",), ["FailJobSet", "RestartJobSetAndIgnoreMaxRestarts"]),
        (("launch.max_restarts=3", "launch.max_preemptions=0"), ["FailJobSet"]),
        (("launch.max_preemptions=2",), ["FailJobSet", "RestartJobSetAndIgnoreMaxRestarts"]),
    ],
)
def test_preemptions_are_restarted_as_the_job_says(train: Path, overrides: tuple[str, ...], actions: list[str]) -> None:
    manifest = make_manifest(JobSetRequest(train, overrides, "i", "cpu-1x1", workdir="s3://bucket/t"), "r")
    policy = manifest["spec"]["failurePolicy"]  # type: ignore[index]
    assert [rule["action"] for rule in policy["rules"]] == actions


def test_a_program_knows_its_place() -> None:
    """Under the names that others read; its own variables go first, and Python loads what watches it."""
    program = json.dumps(
        {"argv": ["python", "my.py"], "launch": {"env": {"RANK": "r{process_id}"}, "instrument": True}}
    )
    given = {ENV_PROGRAM: program, ENV_HOSTS: "2", ENV_SLICE_INDEX: "0", ENV_HOST_INDEX: "1", "PYTHONPATH": "/mine"}
    pod = {"RUN_ID": "r", "ATTEMPT": "0", "HOST": "h", "NUM_PROCESSES": "2", "LOCAL_DEVICE_IDS": "0", "SLICE": "s"}
    env = {**given, **{f"PODRUN_{name}": value for name, value in pod.items()}, "PODRUN_COORDINATOR": "c:8476"}
    made = worker_env(env, Path("/d"))
    assert (made["RANK"], made["WORLD_SIZE"], made["MASTER_PORT"], made["JAX_COORDINATOR_ADDRESS"]) == (
        *("r1", "2", "8477", "c:8476"),
    )
    assert re.fullmatch(r"/.*/instrument:/mine", made["PYTHONPATH"])
    assert worker_command(env)[-2:] == [sys.executable, "my.py"]
    with pytest.raises(LookupError):
        worker_command({**env, ENV_PROGRAM: program.replace('"python", "my.py"', "")})
    plain = worker_env({**env, ENV_PROGRAM: program.replace("true", "false")}, Path("/d"))
    assert plain["PYTHONPATH"] == "/mine"


def test_a_container_knows_its_place() -> None:
    """Number the processes over slices, and fill the job's own variables."""
    config = '{"launch": {"env": {"WHO": "{process_id} of {num_processes}, $HOME"}}}'
    given = {ENV_CONFIG: config, ENV_HOSTS: "4", ENV_SLICE_INDEX: "1", ENV_HOST_INDEX: "2", "WHO": "{process_id}"}
    pod = {"RUN_ID": "r", "ATTEMPT": "0", "HOST": "h", "NUM_PROCESSES": "8", "LOCAL_DEVICE_IDS": "0,1", "SLICE": "s"}
    env = {**given, **{f"PODRUN_{name}": value for name, value in pod.items()}, "PODRUN_COORDINATOR": "c:1"}
    made = worker_env(env, Path("/d"))
    assert (made["PODRUN_PROCESS_ID"], made["PODRUN_DIR"], made["WHO"]) == ("6", "/d", "6 of 8, $HOME")
    assert ENV_CONFIG not in made


@pytest.mark.parametrize(
    ("of_image", "path"),
    [(None, "/driver"), ("/cuda/compat", "/cuda/compat:/driver"), ("/driver:/cuda", "/driver:/cuda"), ("", "/driver")],
)
def test_libraries_of_the_driver_are_added_to_those_of_the_image(of_image: str | None, path: str) -> None:
    given = {ENV_CONFIG: '{"launch": {"env": {}}}', ENV_HOSTS: "1", ENV_SLICE_INDEX: "0", ENV_HOST_INDEX: "0"}
    pod = {"RUN_ID": "r", "ATTEMPT": "0", "HOST": "h", "NUM_PROCESSES": "1", "LOCAL_DEVICE_IDS": "0", "SLICE": "s"}
    env = {**given, **{f"PODRUN_{name}": value for name, value in pod.items()}, "PODRUN_COORDINATOR": "c:1"}
    images = {} if of_image is None else {"LD_LIBRARY_PATH": of_image}
    made = worker_env({**env, **images, ENV_LIBRARIES: "/driver"}, Path("/d"))
    assert made["LD_LIBRARY_PATH"] == path
    assert ENV_LIBRARIES not in made
    assert "LD_LIBRARY_PATH" not in worker_env(env, Path("/d"))


def test_a_script_of_the_node_sets_what_is_not_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if an installer writes it only after the container has started."""
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    script = tmp_path / "nccl env.sh"
    written = 'echo hello; export NCCL_ALGO=Ring NCCL_PROTO="Simple\n  and more"; NOT_EXPORTED=1\n'
    (tmp_path / "new").write_text(written)
    writer = threading.Timer(0.2, (tmp_path / "new").rename, (script,))
    writer.start()
    env = script_env(script, "installer.yaml", wait=60)
    writer.join()
    assert (env["NCCL_ALGO"], env["NCCL_PROTO"]) == ("Tree", "Simple\n  and more")
    assert "NOT_EXPORTED" not in env


def test_a_script_that_is_missing_or_fails_is_named(tmp_path: Path) -> None:
    script = tmp_path / "nccl.sh"
    with pytest.raises(
        UnavailableError, match=r"this node has no .*nccl.sh after 0 s.* \(gpudirect-\*/installer.yaml of"
    ):
        script_env(script, "installer.yaml", wait=0)
    script.write_text("echo no such card >&2\nfalse\n")
    with pytest.raises(UnavailableError, match=r"nccl.sh ended with 1: no such card$"):
        script_env(script, "installer.yaml", wait=0)


def test_nodes_that_get_no_pod(train: Path) -> None:
    request = JobSetRequest(train, (), "i", "cpu-2x1", workdir="s3://bucket/t", exclude="gke-a-1, gke-b-[2-3] gke-a-1")
    manifest = yaml.safe_load(yaml.safe_dump(make_manifest(request, "r")))
    spec = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    names = ["gke-a-1", "gke-b-2", "gke-b-3"]
    assert required["nodeSelectorTerms"] == [
        {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": names}]}
    ]


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("a,B", "--exclude: 'B' is not the name of a node: `kubectl get nodes` lists them"),
        ("a[", "--exclude: 'a[': has a bracket without its partner; write a range as n[0-3]"),
        (" ,", "--exclude has no names; give those of nodes"),
    ],
)
def test_nodes_that_no_cluster_has(train: Path, typed: str, told: str) -> None:
    request = JobSetRequest(train, (), "i", "cpu-2x1", workdir="s3://bucket/t", exclude=typed)
    with pytest.raises(UserError, match=re.escape(told)):
        make_manifest(request, "r")

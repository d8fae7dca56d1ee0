"""The plan: a pure function of pod and config, printable as a shell would read it."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from podrun.launcher.plan.plan import make_plan
from podrun.launcher.plan.program import Program
from podrun.launcher.plan.spec import Code, RunSpec
from podrun.runtime.config import Config, Launch, LaunchSection
from podrun.runtime.contract import CONFIG_FILE, ENV_COORDINATOR, WorkerEnv

from .made import environments, make, plan_of, pod_of

if TYPE_CHECKING:
    from tests.conftest import Podrun, Sandbox

NASTY = {
    "SPACES": "  two  words ",
    "QUOTES": """it's "quoted" `so`""",
    "DOLLAR": "$HOME ${PATH} $(id) \\$x",
    "NEWLINES": "one\ntwo\n\n  env      FAKE=1\n",
    "UNICODE": "grün 火 \N{SNOWMAN}",
    "EMPTY": "",
    "GLOB": "* ? [a] ~ # ; & | < > !",
    "EQUALS": "a=b=c",
    "BACKSLASH": "a\\nb\\",
    "XLA_FLAGS": "--a=1 --b='2 3'",
}


JOB = Config(steps=3, batch_size=64)
CODE = Code("~/.podrun/projects/1f", "sub dir/jobs", "~/.podrun/podruns/2e", "~/.podrun/envs/3d/bin/python")
SECRETS = {"WANDB_API_KEY": "hush-7e1d", "EMPTY_ONE": "", "QUOTED": 'it\'s "hush-7e1d"'}


def test_the_plan_is_pure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal inputs give equal plans, down to the printed text; nothing is written, and no input is changed."""
    monkeypatch.chdir(tmp_path)
    config = Config(steps=3, batch_size=64)
    before = config.model_dump_json()
    pod = pod_of("v3-32")
    spec = RunSpec("r", pod, config, tmp_path / "work", tmp_path)
    one, two = (make_plan(spec, 0, SECRETS) for _ in range(2))
    assert one == two
    assert one.render() == two.render()
    assert one.to_json() == two.to_json()
    assert [h.spec for h in one.hosts] == [h.spec for h in two.hosts]
    assert list(tmp_path.iterdir()) == []
    assert config.model_dump_json() == before
    assert make_plan(spec, 1, SECRETS) != one


@pytest.mark.parametrize(("slice", "hosts", "devices"), [("v3-32", 4, 8), ("cpu-1x1", 1, 1), ("cpu-3x5", 3, 5)])
def test_every_process_knows_who_it_is(slice: str, hosts: int, devices: int) -> None:
    """Ids 0 to n-1 in the order of the hosts, n itself, its devices, and what makes JAX see exactly those."""
    plan = plan_of(slice, attempt=2)
    for number, (host, env) in enumerate(zip(plan.hosts, environments(plan), strict=True)):
        assert WorkerEnv.from_env({**env, ENV_COORDINATOR: "127.0.0.1:1"}) == WorkerEnv(
            address="127.0.0.1",
            run_id=plan.run.run_id,
            attempt=2,
            host=f"host-{number}",
            process_id=number,
            num_processes=hosts,
            local_device_ids=tuple(range(devices)),
            slice=slice,
            directory=Path(host.spec["dir"]),
            coordinator="127.0.0.1:1",
        )
        assert host.processes == [number]
        assert host.spec["processes"][0]["argv"][1:] == ["-m", "podrun.runtime"]
        assert env["JAX_PLATFORMS"] == "cpu"
        assert env["JAX_NUM_CPU_DEVICES"] == str(devices)
        (process,) = host.spec["processes"]
        assert process["threads"] == devices  # the agent knows how many the host has
        assert host.spec["coordinator"] == (number == 0)
    assert len({host.spec["dir"] for host in plan.hosts}) == hosts


def test_attempts_have_directories_of_their_own() -> None:
    """A restart never reads what the attempt before it wrote."""
    first, second = ({h.spec["dir"] for h in plan_of(attempt=n).hosts} for n in (0, 1))
    assert not first & second


def test_every_host_gets_the_same_resolved_config() -> None:
    """With the workdir in it, whole, so that no default of the worker's can differ."""
    plan = plan_of()
    texts = {host.spec["files"][CONFIG_FILE] for host in plan.hosts}
    assert len(texts) == 1
    config = Config.model_validate(json.loads(texts.pop()))
    assert config == plan.run.job
    assert config.launch.workdir == Path("/work dir")


def test_whose_environment_wins() -> None:
    """The user may change what podrun tells JAX, but not who a process is."""
    (env,) = environments(plan_of("cpu-1x1", env={"JAX_PLATFORMS": "mine", "PODRUN_PROCESS_ID": "7", "PODRUN_X": "x"}))
    assert (env["JAX_PLATFORMS"], env["PODRUN_PROCESS_ID"], env["PODRUN_X"]) == ("mine", "0", "x")


def test_an_interpreter_can_be_chosen() -> None:
    """launch.python is the worker's interpreter."""
    assert (
        plan_of(python="/opt/my python/bin/python").hosts[0].spec["processes"][0]["argv"][0]
        == "/opt/my python/bin/python"
    )


def test_spec_carries_the_environment_as_it_is() -> None:
    """The agent gets one JSON line over its stdin; nothing in it is quoted for a shell."""
    plan = plan_of(env=NASTY)
    for host in plan.hosts:
        line = json.dumps(host.spec)
        assert "\n" not in line
        (process,) = json.loads(line)["processes"]
        assert NASTY.items() <= process["env"].items()
        assert process["cwd"] == "/jobs/it's mine"


def test_render_quotes_the_environment_for_a_shell() -> None:
    """The printed plan can be pasted into a shell: any value comes back as it was, for shlex and for sh itself."""
    plan = plan_of("cpu-1x1", env=NASTY)
    (env,) = environments(plan)
    text = plan.render()
    lines = text[text.index("\n  env ") : text.rindex("\n  command ")]
    words = shlex.split(lines)
    assert words == [word for name in sorted(env) for word in ("env", f"{name}={env[name]}")]
    script = "env() { printf '%s\\0' \"$@\"; }\n" + lines
    printed = subprocess.run(["sh", "-c", script], capture_output=True, check=True).stdout.decode()
    assert printed.split("\0")[:-1] == words[1::2]


def test_render_quotes_commands_and_paths() -> None:
    """Commands and folders with spaces and quotes in them are quoted too."""
    plan = plan_of("cpu-1x1", python="/opt/my python")
    lines = [line.strip().partition("  ") for line in plan.render().splitlines()]
    found = {key: shlex.split(rest) for key, _, rest in lines if key in ("cwd", "command", "agent")}
    host = plan.hosts[0]
    assert found == {
        "cwd": ["/jobs/it's mine"],
        "command": ["/opt/my python", "-m", "podrun.runtime"],
        "agent": list(host.agent),
    }


def test_the_record_has_every_host() -> None:
    """plan.json in the run directory says what each host was told."""
    record = json.loads(plan_of("cpu-3x2").to_json())
    assert [h["host"] for h in record["hosts"]] == ["host-0", "host-1", "host-2"]
    assert [h["processes"][0]["process"] for h in record["hosts"]] == [0, 1, 2]
    assert (record["slice"], record["transport"], record["workdir"]) == ("cpu-3x2", "local", "/work dir")


# --- programs of the user's own -------------------------------------------------------------------------------------


def test_a_program_is_started_as_it_was_typed() -> None:
    """No shell, no config file, and all of the environment of podrun's own runtime."""
    argv = ("./run", "train it.py", "--lr=1e-3", "", "$HOME", "-x", "a\nb")
    plan = make(pod_of(), Program(argv, Launch(env=NASTY, instrument=False)))
    config = make(pod_of(), Config.model_validate({"steps": 3, "batch_size": 64, "launch": {"env": NASTY}}))
    assert (plan.is_program, config.is_program) == (True, False)
    for host, other in zip(plan.hosts, config.hosts, strict=True):
        spec = json.loads(json.dumps(host.spec))
        (process,) = spec["processes"]
        assert tuple(process["argv"]) == argv
        assert spec["files"] == {}
        assert CONFIG_FILE in other.spec["files"]
        assert host.spec["processes"][0]["env"].items() >= other.spec["processes"][0]["env"].items()
    text = plan.render()
    assert f"  command  {shlex.join(argv)}\n" in text
    assert CONFIG_FILE not in text
    assert CONFIG_FILE in config.render()


@pytest.mark.parametrize("kind", ["program", "config"])
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_a_process_per_device(kind: str, platform: str) -> None:
    """Ids go on from host to host, each process has one device of its host, and files of its own there."""
    config = Config(steps=3, batch_size=64, launch=LaunchSection(process_per="device"))
    job = Program(("a",), Launch(process_per="device")) if kind == "program" else config
    plan = make(pod_of("gpu-2x3", platform=platform), job)
    env = [WorkerEnv.from_env({**e, ENV_COORDINATOR: ""}) for e in environments(plan)]
    assert [(e.host, e.process_id, e.local_device_ids) for e in env] == [
        ("host-0", 0, (0,)),
        ("host-0", 1, (1,)),
        ("host-0", 2, (2,)),
        ("host-1", 3, (0,)),
        ("host-1", 4, (1,)),
        ("host-1", 5, (2,)),
    ]
    assert {(e.num_processes, e.local_devices) for e in env} == {(6, 1)}
    first, second = plan.hosts
    assert [first.log_name(i) for i in (0, 2)] == ["host-0.0", "host-0.2"]
    assert [second.log_name(i) for i in (3, 5)] == ["host-1.3", "host-1.5"]
    processes = second.spec["processes"]
    assert [(p["process"], p["output"], p["events"]) for p in processes] == [
        (n, f"{n}.out", f"{n}.events") for n in (3, 4, 5)
    ]
    assert {p["threads"] for p in processes} == {1 if platform == "cpu" else None}
    names = {"cpu": "JAX_NUM_CPU_DEVICES", "cuda": "JAX_LOCAL_DEVICE_IDS"}
    values = {"cpu": ["1"] * 6, "cuda": ["0", "1", "2"] * 2}
    assert [e[names[platform]] for e in environments(plan)] == values[platform]
    assert [host.spec["coordinator"] for host in plan.hosts] == [True, False]


def test_a_process_per_host_has_the_hosts_log() -> None:
    """Its name alone, also if the host has several devices."""
    plan = plan_of("cpu-2x4")
    assert [host.log_name(host.processes[0]) for host in plan.hosts] == ["host-0", "host-1"]


# --- hosts that are other machines ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slice", "platforms", "ids"),
    [("gpu-2x8", "cuda,cpu", "0,1,2,3,4,5,6,7"), ("v4-16", "tpu,cpu", None), ("cpu-2x2", "cpu", None)],
)
def test_jax_sees_the_devices_of_the_slice(slice: str, platforms: str, ids: str | None) -> None:
    """Virtual ones only on CPU; GPUs by name, since a stray SLURM_LOCALID would choose one; TPU hosts know their own."""
    for env in environments(make(pod_of(slice, transport="ssh"), JOB)):
        assert (env["JAX_PLATFORMS"], env.get("JAX_LOCAL_DEVICE_IDS")) == (platforms, ids)
        assert env.get("JAX_NUM_CPU_DEVICES") == ("2" if slice == "cpu-2x2" else None)


def test_without_code_the_hosts_use_what_is_here() -> None:
    """A simulated pod runs in the user's own folder with this interpreter, and nothing is copied."""
    plan = plan_of()
    for host in plan.hosts:
        spec = host.spec
        (process,) = spec["processes"]
        assert (spec["code"], spec["uses"], spec["exclusive"]) == (None, [], False)
        assert (process["cwd"], process["path"], process["argv"][0]) == ("/jobs/it's mine", {}, sys.executable)


@pytest.mark.parametrize("job", [JOB, Program(("python", "train.py"), Launch())], ids=["config", "program"])
def test_code_on_the_hosts(job: Config | Program) -> None:
    """The run has a copy of the project, and works in the folder in which podrun was called; podrun comes before it."""
    plan = make(pod_of(transport="ssh", python="/not/this/one"), job, code=CODE)
    for host in plan.hosts:
        spec = host.spec
        (process,) = spec["processes"]
        assert (spec["code"], spec["exclusive"]) == ("~/.podrun/projects/1f", True)
        assert spec["uses"] == ["~/.podrun/projects/1f", "~/.podrun/podruns/2e", "~/.podrun/envs/3d"]
        assert process["cwd"] == "code/sub dir/jobs"
        instrument = [f"{host.spec['dir']}/instrument"] if isinstance(job, Program) else []
        assert process["path"] == {"PYTHONPATH": [*instrument, CODE.podrun], "PATH": ["~/.podrun/envs/3d/bin"]}
        assert process["argv"] == [
            CODE.python,
            *(["-m", "podrun.runtime"] if isinstance(job, Config) else ["train.py"]),
        ]
    assert "\nproject ~/.podrun/projects/1f\npodrun  ~/.podrun/podruns/2e\n" in plan.render()
    assert "  path     PATH=~/.podrun/envs/3d/bin\n" in plan.render()


def test_an_interpreter_of_the_hosts_is_not_podruns() -> None:
    """Only an environment that podrun built is kept from being pruned; a name without a folder changes no PATH."""
    for python, path in (("/usr/bin/python3", ["/usr/bin"]), ("python3", None)):
        plan = make(pod_of(transport="ssh"), JOB, code=replace(CODE, python=python))
        spec = plan.hosts[0].spec
        assert spec["uses"] == [CODE.project, CODE.podrun]
        assert spec["processes"][0]["path"].get("PATH") == path


def test_a_home_elsewhere() -> None:
    """Agent, runs and environments are below it."""
    pod = pod_of(transport="ssh", home="/data/my home", python="/opt/py")
    plan = make(pod, JOB, attempt=2, code=replace(CODE, python="/data/my home/envs/3d/bin/python"))
    host = plan.hosts[1]
    assert host.agent[:4] == ("/opt/py", "-I", "-S", "-c")
    assert host.agent[5].startswith("/data/my home/agents/")
    assert host.agent[6:] == ("run", "20260101-000000-abcd")
    assert host.spec["dir"] == "/data/my home/runs/20260101-000000-abcd/hosts/host-1.2"
    assert host.spec["uses"][2:] == ["/data/my home/envs/3d"]


@pytest.mark.parametrize(
    ("transport", "detached", "lease"),
    [("local", False, 10.0), ("ssh", False, 15.0), ("local", True, 86400.0), ("ssh", True, 86400.0)],
)
def test_lease(transport: str, detached: bool, lease: float) -> None:
    """Short where the launcher is watched, longer where connections drop, a day where nobody need be there."""
    plan = make(pod_of(transport=transport), JOB, detached=detached)
    assert {plan.lease} | {host.spec["lease"] for host in plan.hosts} == {lease}


# --- secrets --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [JOB, Program(("a",), Launch(process_per="device"))], ids=["config", "program"])
def test_secrets_go_to_the_agent_and_nowhere_else(job: Config | Program) -> None:
    """Every process gets them; what is printed or recorded has their names only."""
    plan = make(pod_of(transport="ssh"), job, code=CODE, secrets=SECRETS)
    for host in plan.hosts:
        for process in host.spec["processes"]:
            assert SECRETS.items() <= process["env"].items()
        assert "hush" not in " ".join(host.agent)
    for text in (plan.to_json(), plan.render(), repr(plan), str(plan), repr(plan.hosts)):
        assert "hush" not in text
    count = sum(len(host.processes) for host in plan.hosts)
    assert plan.render().count("  env      WANDB_API_KEY=(secret)\n") == count
    for process in (p for host in json.loads(plan.to_json())["hosts"] for p in host["processes"]):
        assert {name: process["env"][name] for name in SECRETS} == dict.fromkeys(SECRETS, "(secret)")


def test_a_secret_wins_over_the_environment() -> None:
    """It is the one that was asked for by name."""
    plan = make(pod_of(env={"TOKEN": "of the pod"}), JOB, secrets={"TOKEN": "hush"})
    assert plan.hosts[0].spec["processes"][0]["env"]["TOKEN"] == "hush"
    assert json.loads(plan.to_json())["hosts"][0]["processes"][0]["env"]["TOKEN"] == "(secret)"


# --- on the command line --------------------------------------------------------------------------------------------


def test_dry_run_prints_every_host_and_does_nothing(sandbox: Sandbox, in_process: Podrun) -> None:
    """`--dry-run` shows for each host its agent, environment, command and files; no folder is made, nothing is run."""
    before = sorted(p.name for p in sandbox.path.rglob("*"))
    args = ("--slice", "v3-32", "--simulate", "--dry-run", "-w", "new/work", "train.yaml", "batch_size=32")
    done = in_process(*args, "launch.env.SECRET=a b")
    assert (done.returncode, done.stderr) == (0, "")
    for number in range(4):
        assert done.stdout.count(f"\nhost-{number} (127.0.0.1)\n") == 1
        assert done.stdout.count(f"PODRUN_PROCESS_ID={number}\n") == 1
    assert done.stdout.count("  env      SECRET='a b'\n") == 4
    assert done.stdout.count(" -m podrun.runtime\n") == 4
    assert str(sandbox.path / "new" / "work") in done.stdout
    assert '"batch_size": 32' in done.stdout
    assert sorted(p.name for p in sandbox.path.rglob("*")) == before


@pytest.mark.parametrize(
    "file", sorted((Path(__file__).parents[3] / "pod_configs").glob("simulated_*.yaml")), ids=lambda p: p.stem
)
def test_pod_files_give_the_slice(in_process: Podrun, file: Path) -> None:
    """Every simulated pod in pod_configs can be planned; a --slice on the command line goes before it."""
    done = in_process("--pod", str(file), "--dry-run", "train.yaml", "batch_size=32")
    assert done.returncode == 0, done.stderr
    assert "simulated by the CPU of this machine" in done.stdout.splitlines()[0]
    other = in_process("--pod", str(file), "--slice", "cpu-1x2", "--dry-run", "train.yaml")
    assert ": cpu-1x2, 1 hosts x 2 devices" in other.stdout.splitlines()[0]


def test_programs_that_were_compiled_before() -> None:
    """Their list is known to every worker, and the bundle is kept as long as the run lasts."""
    executables = "~/.podrun/bundles/programs-1f/ab.json"
    plan = make(pod_of("cpu-2x1", transport="ssh"), JOB, code=CODE, executables=executables)
    assert [env["PODRUN_PROGRAMS"] for env in environments(plan)] == [executables] * 2
    assert all("~/.podrun/bundles/programs-1f" in host.spec["uses"] for host in plan.hosts)
    assert f"compiled {executables}" in plan.render()
    assert RunSpec.from_json(plan.run.to_json()).executables == executables
    assert not any("PODRUN_PROGRAMS" in env for env in environments(plan_of()))

"""The plan: a pure function of pod and config, printable as a shell would read it."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from podrun.launcher.inventory.simulated import simulated_pod
from podrun.launcher.plan import LaunchPlan, make_plan
from podrun.launcher.slices import parse_slice
from podrun.runtime.config import Config
from podrun.runtime.contract import CONFIG_FILE, ENV_COORDINATOR, WorkerEnv

if TYPE_CHECKING:
    from tests.conftest import Sandbox

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


def plan_of(slice: str = "cpu-2x4", attempt: int = 0, **launch: Any) -> LaunchPlan:
    config = Config.model_validate({"steps": 3, "batch_size": 64, "launch": launch})
    return make_plan(
        simulated_pod(parse_slice(slice)),
        config,
        run_id="20260101-000000-abcd",
        attempt=attempt,
        workdir=Path("/work dir"),
        run_directory=Path("/home dir/runs/r"),
        cwd=Path("/jobs/it's mine"),
    )


def environments(plan: LaunchPlan) -> list[dict[str, str]]:
    return [dict(process.env) for host in plan.hosts for process in host.processes]


def test_the_plan_is_pure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same inputs give equal plans, down to the printed text; nothing is written, and no input is changed."""
    monkeypatch.chdir(tmp_path)
    config = Config(steps=3, batch_size=64)
    before = config.model_dump_json()
    pod = simulated_pod(parse_slice("v3-32"))
    arguments: dict[str, Any] = {
        "run_id": "r",
        "attempt": 0,
        "workdir": tmp_path / "work",
        "run_directory": tmp_path / "run",
        "cwd": tmp_path,
    }
    one, two = (make_plan(pod, config, **arguments) for _ in range(2))
    assert one == two
    assert one.render() == two.render()
    assert one.to_json() == two.to_json()
    assert [one.spec(h) for h in one.hosts] == [two.spec(h) for h in two.hosts]
    assert list(tmp_path.iterdir()) == []
    assert config.model_dump_json() == before
    assert make_plan(pod, config, **{**arguments, "attempt": 1}) != one


@pytest.mark.parametrize(("slice", "hosts", "devices"), [("v3-32", 4, 8), ("cpu-1x1", 1, 1), ("cpu-3x5", 3, 5)])
def test_every_process_knows_who_it_is(slice: str, hosts: int, devices: int) -> None:
    """Ids 0 to n-1 in the order of the hosts, n itself, its devices, and what makes JAX see exactly those."""
    plan = plan_of(slice, attempt=2)
    for number, (host, env) in enumerate(zip(plan.hosts, environments(plan), strict=True)):
        assert WorkerEnv.from_env({**env, ENV_COORDINATOR: "127.0.0.1:1"}) == WorkerEnv(
            run_id=plan.run_id,
            attempt=2,
            host=f"host-{number}",
            process_id=number,
            num_processes=hosts,
            local_devices=devices,
            slice=slice,
            directory=host.directory,
            coordinator="127.0.0.1:1",
        )
        assert [p.process_id for p in host.processes] == [number]
        assert host.processes[0].argv[1:] == ("-m", "podrun.runtime")
        assert env["JAX_PLATFORMS"] == "cpu"
        assert env["JAX_NUM_CPU_DEVICES"] == str(devices)
        assert int(env["NPROC"]) >= devices  # XLA's thread pool: one thread per device, or a collective waits for ever
        assert host.coordinator == (number == 0)
    assert len({host.directory for host in plan.hosts}) == hosts


def test_attempts_have_directories_of_their_own() -> None:
    """A restart never reads what the attempt before it wrote."""
    first, second = ({h.directory for h in plan_of(attempt=n).hosts} for n in (0, 1))
    assert not first & second


def test_every_host_gets_the_same_resolved_config() -> None:
    """With the workdir in it, whole, so that no default of the worker's can differ."""
    plan = plan_of()
    texts = {host.files[CONFIG_FILE] for host in plan.hosts}
    assert len(texts) == 1
    config = Config.model_validate(json.loads(texts.pop()))
    assert config == plan.config
    assert config.launch.workdir == Path("/work dir")


def test_whose_environment_wins() -> None:
    """The user may change what podrun tells JAX, but not who a process is."""
    (env,) = environments(plan_of("cpu-1x1", env={"JAX_PLATFORMS": "mine", "PODRUN_PROCESS_ID": "7", "PODRUN_X": "x"}))
    assert (env["JAX_PLATFORMS"], env["PODRUN_PROCESS_ID"], env["PODRUN_X"]) == ("mine", "0", "x")


def test_an_interpreter_can_be_chosen() -> None:
    """launch.python is the worker's interpreter."""
    assert plan_of(python="/opt/my python/bin/python").hosts[0].processes[0].argv[0] == "/opt/my python/bin/python"


def test_spec_carries_the_environment_as_it_is() -> None:
    """What the agent gets over its stdin is one JSON line; nothing in it is quoted for a shell."""
    plan = plan_of(env=NASTY)
    for host in plan.hosts:
        line = json.dumps(plan.spec(host))
        assert "\n" not in line
        (process,) = json.loads(line)["processes"]
        assert NASTY.items() <= process["env"].items()
        assert process["cwd"] == "/jobs/it's mine"


def test_render_quotes_the_environment_for_a_shell() -> None:
    """What is printed can be pasted into a shell: any value comes back as it was, for shlex and for sh itself."""
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


def test_dry_run_prints_every_host_and_does_nothing(sandbox: Sandbox) -> None:
    """`--dry-run` shows for each host its agent, environment, command and files; no folder is made, nothing is run."""
    before = sorted(p.name for p in sandbox.path.rglob("*"))
    args = ("--slice", "v3-32", "--simulate", "--dry-run", "-w", "new/work", "train.yaml", "batch_size=32")
    done = sandbox.podrun(*args, "launch.env.SECRET=a b")
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
    "file", sorted((Path(__file__).parents[2] / "pod_configs").glob("simulated_*.yaml")), ids=lambda p: p.stem
)
def test_pod_files_give_the_slice(sandbox: Sandbox, file: Path) -> None:
    """Every simulated pod in pod_configs can be planned; a --slice on the command line goes before it."""
    done = sandbox.podrun("--pod", str(file), "--dry-run", "train.yaml", "batch_size=32")
    assert done.returncode == 0, done.stderr
    assert "reached by local" in done.stdout.splitlines()[0]
    other = sandbox.podrun("--pod", str(file), "--slice", "cpu-1x2", "--dry-run", "train.yaml")
    assert ": cpu-1x2, 1 hosts x 2 devices" in other.stdout.splitlines()[0]

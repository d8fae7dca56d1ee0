"""Variables that a user program finds in its environment besides podrun's own variables."""

from __future__ import annotations

import pytest

from podrun.launcher.plan.program import Program, coordinator_env, instrument_files
from podrun.runtime.config import Launch

from .made import make, pod_of


def envs(slice: str = "cpu-2x2", **launch: object) -> list[dict[str, str]]:
    plan = make(pod_of(slice), Program(("python", "train.py"), Launch(**launch)))
    return [worker["env"] for host in plan.hosts for worker in host.spec["processes"]]


@pytest.mark.parametrize(("per", "local"), [("host", [(0, 1), (0, 1)]), ("device", [(0, 2), (1, 2), (0, 2), (1, 2)])])
def test_the_names_that_others_read(per: str, local: list[tuple[int, int]]) -> None:
    """Every process has its number, in the pod and on its host, under each of them."""
    processes = envs(process_per=per)
    total = str(len(local))
    for number, (env, (rank, size)) in enumerate(zip(processes, local, strict=True)):
        assert {env[name] for name in ("RANK", "PROCESS_ID", "JAX_PROCESS_ID", "JAX_PROCESS_INDEX")} == {str(number)}
        counts = ("WORLD_SIZE", "NUM_PROCESSES", "JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT")
        assert {env[name] for name in counts} == {total}
        assert (env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) == (str(rank), str(size))
        assert {env["NODE_RANK"], env["GROUP_RANK"]} == {str(number // size)}
        assert {env["NNODES"], env["GROUP_WORLD_SIZE"]} == {"2"}
        assert (env["ROLE_RANK"], env["ROLE_WORLD_SIZE"]) == (str(number), total)
        assert (env["TORCHELASTIC_RESTART_COUNT"], env["TORCHELASTIC_RUN_ID"]) == ("0", env["PODRUN_RUN_ID"])


def test_the_users_values_go_first() -> None:
    """Whatever podrun would set, but for its own names."""
    env = envs(env={"RANK": "7", "PYTHONFAULTHANDLER": "", "PODRUN_PROCESS_ID": "9"})[1]
    assert (env["RANK"], env["PYTHONFAULTHANDLER"], env["PODRUN_PROCESS_ID"]) == ("7", "", "1")


def test_values_may_name_the_process() -> None:
    """Other braces, as in JSON or a format of the user's own, stay as they are."""
    job = {"OUT": "/data/{host}/{process_id}-of-{num_processes}", "JSON": '{"host": {1}}', "OTHER": "{user}{}{{host}}"}
    env = envs(env=job)[1]
    assert env["OUT"] == "/data/host-1/1-of-2"
    assert (env["JSON"], env["OTHER"]) == ('{"host": {1}}', "{user}{}{host-1}")


@pytest.mark.parametrize(
    ("address", "second", "host", "port"),
    [("10.0.0.1:5000", 6000, "10.0.0.1", "6000"), ("[fe80::1]:5000", None, "fe80::1", "5000")],
)
def test_where_process_0_listens(address: str, second: int | None, host: str, port: str) -> None:
    """torch gets a port of its own; a `ports:` of one port has no second."""
    env = coordinator_env(address, second)
    assert (env["JAX_COORDINATOR_ADDRESS"], env["MASTER_ADDR"], env["MASTER_PORT"]) == (address, host, port)
    assert (env["JAX_COORDINATOR_IP"], env["JAX_COORDINATOR_PORT"]) == (host, "5000")


def test_python_is_the_runs_own() -> None:
    """Not the first of the PATH; another name is what was typed."""
    pod = pod_of()
    plan = make(pod, Program(("python", "a.py"), Launch(python="/opt/bin/python3.12")))
    assert plan.hosts[0].spec["processes"][0]["argv"] == ["/opt/bin/python3.12", "a.py"]
    assert plan.hosts[0].spec["processes"][0]["path"]["PATH"] == ["/opt/bin"]
    for typed in ("./python", "/usr/bin/python", "python3.9", "bash"):
        plan = make(pod, Program((typed, "a.py"), Launch()))
        assert plan.hosts[0].spec["processes"][0]["argv"][0] == typed


def test_the_instrument_is_sent() -> None:
    """With its folder first on PYTHONPATH, unless it is not wanted."""
    plan = make(pod_of(), Program(("python", "a.py"), Launch()))
    spec = plan.hosts[0].spec
    assert (
        spec["files"].keys()
        == instrument_files().keys()
        == {f"instrument/{name}.py" for name in ("sitecustomize", "podrun_program", "podrun_jax")}
    )
    assert spec["processes"][0]["path"]["PYTHONPATH"] == [f"{spec['dir']}/instrument"]
    plan = make(pod_of(), Program(("python", "a.py"), Launch(instrument=False)))
    spec = plan.hosts[0].spec
    assert spec["files"] == {}
    assert "PYTHONPATH" not in spec["processes"][0]["path"]

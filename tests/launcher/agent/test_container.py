"""A container engine is given the variables, what is mounted, and the interpreter that is asked in the image."""

from __future__ import annotations

from pathlib import Path

import pytest

from podrun.launcher.agent.base.container import container_env, inside
from podrun.launcher.agent.base.login_folder import expand_process
from podrun.launcher.agent.prepare.packages import InterpreterError, ask_interpreter
from podrun.launcher.agent.run.worker import worker_env
from podrun.launcher.plan.container import container_request, worker_inside
from podrun.launcher.pod.container import Container
from podrun.launcher.pod.pod import Host, Pod
from podrun.launcher.pod.slices import parse_slice

from .child import worker_spec


def pod_in(container: Container | None, platform: str = "cpu") -> Pod:
    return Pod(parse_slice("cpu-1x1"), (Host("h0", "h0"),), "ssh", platform, container=container)


IMAGE = Container("apptainer", "~/jax.sif", "/opt/venv/bin/python", ("~/data:/data",), ("--cleanenv",))


def test_without_a_container_nothing_changes() -> None:
    pod = pod_in(None)
    assert worker_inside(pod, "python3", "x.py") == ("python3", "x.py")
    assert container_request(pod) is None
    assert inside(None, ["a"]) == ["a"]
    assert container_env(None, {"A": "1"}, ["A"]) == {"A": "1"}


def test_the_engine_before_the_command() -> None:
    """With the host's GPUs where the pod has some."""
    argv = worker_inside(pod_in(IMAGE), "python3", "it's")
    assert argv[:4] == ("apptainer", "exec", "--cleanenv", "~/jax.sif")
    assert argv[-2:] == ("python3", "it's")
    assert worker_inside(pod_in(IMAGE, "cuda"), "python3")[2] == "--nv"


def test_an_engine_that_holds_the_agent_is_not_asked_by_it() -> None:
    pod = pod_in(Container("pyxis", "a.sqsh", "/opt/python"))
    assert worker_inside(pod, "/opt/python", "x.py") == ("/opt/python", "x.py")
    assert container_request(pod) is None
    assert pod.agent_python == "/opt/python"


def test_environment_of_a_worker_in_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan's variables go before the image's, the login's do not. podrun's folders are made, and mounted."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("OF_LOGIN", "login")
    monkeypatch.setenv("APPTAINER_BIND", "/theirs")
    request = container_request(pod_in(IMAGE), tmp_path / "new" / "run")
    argv = list(worker_inside(pod_in(IMAGE), "~"))
    spec = expand_process(worker_spec(container=request, env={"OF_PLAN": "plan"}, argv=argv))
    env = worker_env(spec, {"OF_START": "start"})
    assert env["APPTAINERENV_OF_PLAN"] == "plan"
    assert env["APPTAINERENV_OF_START"] == "start"
    assert "APPTAINERENV_OF_LOGIN" not in env
    assert "APPTAINERENV_PATH" not in env
    assert env["APPTAINERENV_PREPEND_PATH"] == "/opt/venv/bin"
    mounted = ["/theirs", f"{tmp_path}/.podrun", f"{tmp_path}/new/run", f"{tmp_path}/data:/data"]
    assert env["APPTAINER_BIND"] == ",".join(mounted)
    assert (tmp_path / "new" / "run").is_dir()
    assert spec["argv"][3] == f"{tmp_path}/jax.sif"
    assert spec["argv"][-1] == "~"  # the program's own argument


@pytest.mark.parametrize(
    ("program", "why"),
    [
        (None, "there is no 'apptainer' in PATH"),
        (
            "#!/bin/sh\necho 'FATAL: no image' >&2\nexit 255\n",
            "python3 of a.sif does not work: FATAL: no image",
        ),
        ("#!/bin/sh\nexec sleep 100\n", "python3 of a.sif does not answer within"),
    ],
)
def test_an_interpreter_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, why: str
) -> None:
    monkeypatch.setattr("podrun.launcher.agent.prepare.packages._LIMIT", 1.0)
    if program:
        (tmp_path / "apptainer").write_text(program)
        (tmp_path / "apptainer").chmod(0o755)
    request = container_request(pod_in(Container("apptainer", "a.sif")))
    assert request is not None
    with pytest.raises(InterpreterError, match=why):
        ask_interpreter(
            "python3", {"PATH": f"{tmp_path}:/bin" if program else str(tmp_path)}, dict(request, folders=[])
        )
